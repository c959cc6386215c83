package intercept

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// serverTLS is the configuration for all connections from inside, so that clients
// can resume sessions. The certificate is by the connection and not by what the
// handshake says, which the gateway has judged.
func (i *Interceptor) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			c := carriedOf(hello.Conn)
			if said := strings.ToLower(strings.TrimSuffix(hello.ServerName, ".")); said != "" && said != c.Name {
				return nil, fmt.Errorf("the handshake names %q, and the connection was judged for %q", said, c.Name)
			}
			return i.config.Authority.Leaf(target(&c.Intercepted))
		},
	}
}

// handshake begins TLS with the client of c.
func (i *Interceptor) handshake(c *carried) (*tls.Conn, error) {
	conn := tls.Server(c, i.tls)
	ctx, cancel := context.WithTimeout(c.ctx, handshakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, explainHandshake(target(&c.Intercepted), err)
	}
	return conn, nil
}

// isAlert tells whether the other end said that it will have no TLS.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// explainHandshake says what is probably wrong inside.
func explainHandshake(name string, err error) error {
	switch {
	case isAlert(err):
		return fmt.Errorf("the program inside did not take the certificate for %s that Tombolo made, since it trusts other authorities or pins one: %w", name, err)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("the program inside went away in the TLS handshake with %s; it may not trust the certificate that Tombolo made: %w", name, err)
	}
	return fmt.Errorf("TLS with the program inside, in the name of %s: %w", name, err)
}
