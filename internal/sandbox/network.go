package sandbox

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// Policy is what the options say about what goes out.
func (o NetworkOptions) Policy() policy.Network {
	n := policy.Network{AllowOut: o.AllowOut, DenyOut: o.DenyOut, DenyInternet: o.DenyInternet}
	if o.DenyInternet {
		n.DenyOut = append(slices.Clone(o.DenyOut), "0.0.0.0/0")
	}
	if slices.ContainsFunc(o.AllowOut, isName) {
		n.AllowOut = append(slices.Clone(o.AllowOut), o.DNSServers...)
	}
	return n
}

func isName(entry string) bool {
	_, noRange := netip.ParsePrefix(entry)
	_, noAddress := netip.ParseAddr(entry)
	return noRange != nil && noAddress != nil
}

// Limits of network options.
const (
	// MaxConnections is the gateway's limit, which a sandbox may have less of.
	MaxConnections = 2560
	minBandwidth   = 1 << 10 // bytes a second; less than a packet now and then is no connection
	maxProxyName   = 255     // bytes of a user name or password (RFC 1929)
	maxProxyHost   = 253
	maxProxyCA     = 8 << 10
)

// Check returns an *InvalidError when the limits or the proxy cannot be had. What may be
// reached is not looked at: see Policy.
func (o NetworkOptions) Check() error {
	for name, bandwidth := range map[string]int64{"bandwidthOut": o.BandwidthOut, "bandwidthIn": o.BandwidthIn} {
		if bandwidth != 0 && bandwidth < minBandwidth {
			return &InvalidError{fmt.Sprintf("%s must be 0, for no limit, or %d bytes a second at least", name, minBandwidth)}
		}
	}
	if o.Connections < 0 || o.Connections > MaxConnections {
		return &InvalidError{fmt.Sprintf("connections must be from 0, for the server's limit, to %d, which that is", MaxConnections)}
	}
	if err := o.Proxy.Check(); err != nil {
		return &InvalidError{"the proxy: " + err.Error()}
	}
	return nil
}

// Check says in words why the proxy cannot be used. Nil is no proxy.
func (p *EgressProxy) Check() error {
	if p == nil {
		return nil
	}
	host, port, err := net.SplitHostPort(p.Address)
	if err == nil && host == "" {
		err = errors.New("it names no host")
	}
	if n, bad := strconv.ParseUint(port, 10, 16); err == nil && (bad != nil || n == 0) {
		err = errors.New("it has no port from 1 to 65535")
	}
	switch {
	case err != nil:
		return fmt.Errorf("address %.300q: %w; use host:port", p.Address, err)
	case p.Kind != "socks5" && p.Kind != "http":
		return fmt.Errorf("kind must be socks5 or http, not %.20q", p.Kind)
	case p.Password != "" && p.Username == "":
		return errors.New("it has a password and no username")
	case len(p.Username) > maxProxyName || len(p.Password) > maxProxyName:
		return fmt.Errorf("user name and password may have %d bytes each", maxProxyName)
	case len(p.ServerName) > maxProxyHost || len(p.CACert) > maxProxyCA:
		return fmt.Errorf("serverName may have %d bytes and caCert %d", maxProxyHost, maxProxyCA)
	}
	return nil
}

// PortPlaceholder stands for the port in NetworkOptions.MaskRequestHost.
const PortPlaceholder = "${PORT}"

// maxMaskHost bounds a Host header, bytes: the longest DNS name, ":" and a port.
const maxMaskHost = 253 + 6

var (
	// maskLabel also allows "_", which names of services have.
	maskLabel = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$`)
	ipv6Host  = regexp.MustCompile(`^\[[0-9a-fA-F:.]{2,45}\]$`)
)

// CheckMaskHost returns an *InvalidError unless mask can be the Host header of
// every port: a DNS name or an address, and after ":" a port, with "${PORT}"
// wherever the port of the request belongs. Empty means no mask.
func CheckMaskHost(mask string) error {
	if mask == "" {
		return nil
	}
	bad := func(why string) error {
		return &InvalidError{fmt.Sprintf("maskRequestHost %q %s: give a host name such as %q, with %s for the port", mask, why, "localhost:"+PortPlaceholder, PortPlaceholder)}
	}
	host := MaskHost(mask, 65535) // the longest
	if len(host) > maxMaskHost {
		return &InvalidError{fmt.Sprintf("maskRequestHost is longer than %d characters", maxMaskHost)}
	}
	name, port, hasPort := cutPort(host)
	if hasPort {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return bad("has no port from 1 to 65535 after the colon")
		}
	}
	if ipv6Host.MatchString(name) {
		return nil
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if !maskLabel.MatchString(label) {
			return bad("is not a host")
		}
	}
	return nil
}

// MaskHost is the Host header that a server on port sees with this mask.
func MaskHost(mask string, port uint16) string {
	return strings.ReplaceAll(mask, PortPlaceholder, strconv.Itoa(int(port)))
}

// cutPort cuts at the colon that is not within an IPv6 address.
func cutPort(host string) (name, port string, found bool) {
	if end := strings.LastIndexByte(host, ']'); end >= 0 {
		rest := host[end+1:]
		if rest == "" {
			return host, "", false
		}
		if rest[0] != ':' {
			return "", "", false
		}
		return host[:end+1], rest[1:], true
	}
	return strings.Cut(host, ":")
}
