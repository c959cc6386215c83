// Package certs owns the certificates with which the server answers TLS: where
// they come from, where their keys are kept, and when they are renewed. It knows
// nothing of what is served.
package certs

import (
	"crypto/tls"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
)

// Source has the certificate for each handshake. Safe for concurrent use.
type Source interface {
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
}

// Config is the server's side of TLS: HTTP/2 and HTTP/1.1, no version before 1.2.
func Config(s Source) *tls.Config {
	return &tls.Config{
		GetCertificate: s.GetCertificate,
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
	}
}

// Domain is a name below which every sandbox has its own: <port>-<id>.<Name>.
type Domain struct {
	Name string // in lower case, without a final dot
	Port uint16 // 0 when none was given
}

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// maxDomain leaves room for the longest label before it in 253 characters.
const maxDomain = 253 - 64

// ParseDomain reads "name" or "name:port". The name needs a dot: OpenSSL, Node
// and others take no wildcard certificate directly below a name without one.
func ParseDomain(s string) (Domain, error) {
	name, port, hasPort := strings.Cut(s, ":")
	d := Domain{Name: strings.ToLower(strings.TrimSuffix(name, "."))}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return Domain{}, fmt.Errorf("domain %q: the port must be 1 to 65535", s)
		}
		d.Port = uint16(n)
	}
	if net.ParseIP(d.Name) != nil {
		return Domain{}, fmt.Errorf("domain %q is an address, and addresses have no names below them; %s.nip.io has", s, d.Name)
	}
	if len(d.Name) > maxDomain {
		return Domain{}, fmt.Errorf("domain %q is longer than %d characters", s, maxDomain)
	}
	labels := strings.Split(d.Name, ".")
	for _, l := range labels {
		if !label.MatchString(l) {
			return Domain{}, fmt.Errorf("domain %q is not a name of letters, digits and hyphens", s)
		}
	}
	if len(labels) < 2 {
		return Domain{}, fmt.Errorf("domain %q has no dot, and clients take no certificate for *.%s; use sbx.%s", s, d.Name, d.Name)
	}
	return d, nil
}
