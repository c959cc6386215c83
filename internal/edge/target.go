package edge

import (
	"errors"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

// Headers by which clients that share one address name a sandbox's port.
const (
	idHeader   = "E2b-Sandbox-Id"
	portHeader = "E2b-Sandbox-Port"
)

// maxIDLen keeps an id within a DNS label.
const maxIDLen = 63

// target is the port of the sandbox a request is for.
type target struct {
	id   string
	port uint16
	// host is the Host header the sandbox sees; empty keeps the client's.
	host string
	// ourOrigin: a browser that opens the URL shows the answer on the origin of
	// the control API, so that it must not act as a page of that origin.
	ourOrigin bool
}

// byName tells whether the host of the request is the port's own name, so that a
// browser keeps it apart from others.
func (t target) byName() bool { return t.host == "" }

// labelTarget reads a host of the form <port>-<id>[-anything].rest, as clients
// build it for user ports. rest may be anything, with or without a port.
func labelTarget(host string) (target, bool) {
	label, _, ok := strings.Cut(host, ".")
	if !ok {
		return target{}, false
	}
	digits, rest, ok := strings.Cut(label, "-")
	if !ok {
		return target{}, false
	}
	port, ok := parsePort(digits)
	if !ok {
		return target{}, false
	}
	id := baseID(strings.ToLower(rest))
	// A name like 127-0-0-1.example.com says an address, not a sandbox.
	if !validID(id) || strings.Trim(id, "0123456789") == "" {
		return target{}, false
	}
	return target{id: id, port: port}, true
}

func named(h http.Header) bool { return h.Get(idHeader) != "" || h.Get(portHeader) != "" }

func headerTarget(h http.Header) (target, error) {
	id := baseID(h.Get(idHeader))
	if !validID(id) {
		return target{}, errors.New("the header " + idHeader + " must hold the id of a sandbox")
	}
	port, ok := parsePort(h.Get(portHeader))
	if !ok {
		return target{}, errors.New("the header " + portHeader + " must hold a port, 1 to 65535")
	}
	return target{id: id, port: port, host: localHost(port)}, nil
}

// localHost is the Host of a request that named its port elsewhere.
func localHost(port uint16) string { return "localhost:" + strconv.Itoa(int(port)) }

// baseID is an id without the client id that old clients append with a dash.
func baseID(id string) string {
	id, _, _ = strings.Cut(id, "-")
	return id
}

func validID(id string) bool {
	if id == "" || len(id) > maxIDLen {
		return false
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// parsePort takes plain decimal digits only.
func parsePort(s string) (uint16, bool) {
	if s == "" || s[0] < '1' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil
}

// hostOnlyPaths are endpoints of the agent, here or upstream, that only the
// host may call.
var hostOnlyPaths = map[string]bool{
	"/init": true, "/relieve": true, "/warm": true,
	"/freeze": true, "/unfreeze": true, "/collapse": true, "/fsfreeze": true, "/fsthaw": true, "/upgrade": true,
}

// hostOnly tells whether a request is for what only the host may reach. The
// agent refuses these by itself too.
func hostOnly(port uint16, r *http.Request) bool {
	switch port {
	case hostapi.HostPort:
		return true
	case hostapi.AgentPort:
		return r.Method == http.MethodConnect || hostOnlyPaths[strings.ToLower(path.Clean("/"+r.URL.Path))]
	}
	return r.Method == http.MethodConnect
}
