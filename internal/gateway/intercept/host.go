package intercept

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// host is what a request says it is for.
type host struct {
	name string     // in lower case without a final dot; empty of an address
	addr netip.Addr // when name is empty
	port uint16     // 0 when none was given
}

func (h host) String() string {
	if h.name != "" {
		return h.name
	}
	return h.addr.String()
}

var errHost = errors.New("the Host is not a name or an address, with or without a port")

// parseHost reads the Host of a request.
func parseHost(s string) (host, error) {
	text, port, err := splitPort(s)
	if err != nil {
		return host{}, err
	}
	if inner, ok := strings.CutPrefix(text, "["); ok {
		addr, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		if err != nil || !addr.Is6() || addr.Zone() != "" || !strings.HasSuffix(inner, "]") {
			return host{}, errHost
		}
		return host{addr: addr.Unmap(), port: port}, nil
	}
	if addr, err := netip.ParseAddr(text); err == nil && addr.Is4() {
		return host{addr: addr, port: port}, nil
	}
	name, err := gateway.HostName(text)
	if err != nil {
		return host{}, fmt.Errorf("the Host is none: %w", err)
	}
	return host{name: name, port: port}, nil
}

func splitPort(s string) (text string, port uint16, err error) {
	colon := strings.LastIndexByte(s, ':')
	if colon < 0 || strings.HasSuffix(s, "]") {
		return s, 0, nil
	}
	if s[colon+1:] == "" { // "name:" has no port
		return s[:colon], 0, nil
	}
	n, err := strconv.ParseUint(s[colon+1:], 10, 16)
	if err != nil || n == 0 {
		return "", 0, errHost
	}
	return s[:colon], uint16(n), nil
}

// hostPort is the destination as a URL has it.
func hostPort(h string, port uint16) string { return net.JoinHostPort(h, strconv.Itoa(int(port))) }
