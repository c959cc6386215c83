package intercept

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// problem is a request that is not judged, since it cannot be said what it is for.
type problem struct {
	status int
	words  string
}

func bad(format string, args ...any) *problem {
	return &problem{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// requestOf says what r, of connection c, is to be judged as.
func requestOf(c *gateway.Intercepted, r *http.Request) (gateway.Request, *problem) {
	request := gateway.Request{
		Protocol: gateway.HTTP, Encrypted: c.TLS, Method: r.Method,
		Destination: c.Destination, Name: c.Name, Names: c.Names, Held: c.Held,
	}
	if r.Method == http.MethodConnect {
		return request, &problem{http.StatusNotImplemented, "this is no proxy: connect to the destination itself"}
	}
	if p := checkTarget(c, r); p != nil {
		return request, p
	}
	if p := nameOf(c, r, &request); p != nil {
		return request, p
	}
	path, err := judgedPath(r.URL)
	if err != nil {
		return request, bad("%s", err)
	}
	request.Path, request.OtherPaths = path, otherPaths(sentPath(r), r.URL.Path, path)
	request.Query = r.URL.RawQuery
	return request, nil
}

// checkTarget looks at the form of the request target.
func checkTarget(c *gateway.Intercepted, r *http.Request) *problem {
	scheme := "http"
	if c.TLS {
		scheme = "https"
	}
	target, _, _ := strings.Cut(r.RequestURI, "?")
	switch {
	case len(target) > maxTarget:
		return &problem{http.StatusRequestURITooLong, fmt.Sprintf("the path is longer than %d KiB", maxTarget>>10)}
	case strings.ContainsAny(r.RequestURI, "# "): // where some servers end the path
		return bad("the target of the request has a space or a #, which must be percent-encoded")
	case r.URL.Opaque != "" || r.URL.User != nil:
		return bad("the target of the request is no path")
	case r.URL.Scheme != "" && !strings.EqualFold(r.URL.Scheme, scheme):
		return bad("the target of the request is of %s, the connection of %s", r.URL.Scheme, scheme)
	case r.URL.Path == "*" && r.Method != http.MethodOptions:
		return bad("only OPTIONS has the target *")
	}
	// HTTP/2 may have both; the Host is not sent on.
	if also := r.Header.Get("Host"); also != "" && also != r.Host {
		return bad("the request names two hosts, %q and %q", r.Host, also)
	}
	return nil
}

// nameOf puts the name that the request is for into it, if that agrees with the
// connection.
func nameOf(c *gateway.Intercepted, r *http.Request, request *gateway.Request) *problem {
	fixed := c.TLS || c.Held
	if r.Host == "" { // of HTTP/1.0
		if !fixed {
			request.Name = ""
		}
		return nil
	}
	said, err := parseHost(r.Host)
	if err != nil {
		return bad("%s", err)
	}
	switch {
	case said.port != 0 && said.port != c.Destination.Port():
		return elsewhere(c, said, fmt.Sprintf("port %d", c.Destination.Port()))
	case said.name == "" && (c.Name != "" && fixed || said.addr != c.Destination.Addr().Unmap()):
		return elsewhere(c, said, target(c))
	case said.name != "" && fixed && said.name != c.Name:
		return elsewhere(c, said, target(c))
	}
	request.Name = said.name
	return nil
}

func elsewhere(c *gateway.Intercepted, said host, is string) *problem {
	text := said.String()
	if said.port != 0 {
		text = hostPort(text, said.port)
	}
	return &problem{http.StatusMisdirectedRequest, fmt.Sprintf("the request is for %s, and its connection for %s", text, is)}
}

// target is the host that a connection is for.
func target(c *gateway.Intercepted) string {
	if c.Name != "" {
		return c.Name
	}
	return addrText(c.Destination.Addr())
}

func addrText(a netip.Addr) string { return a.Unmap().String() }
