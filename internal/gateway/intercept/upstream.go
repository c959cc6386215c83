package intercept

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// upstreamKey tells destinations apart. A connection to one is never used for another,
// also not for the same name at another address: that was judged with the request.
type upstreamKey struct {
	name        string // empty: by address
	destination netip.AddrPort
	held        bool
	encrypted   bool
	http2       bool // in the clear
}

// upstreams are the destinations of one sandbox that were asked lately.
type upstreams struct {
	dial  func(context.Context, gateway.Request) (net.Conn, error)
	roots *x509.CertPool

	mu    sync.Mutex
	byKey map[upstreamKey]*upstream // nil after close
}

// upstream is one destination.
type upstream struct {
	transport *http.Transport
	host      string // of URLs
	scheme    string
	used      time.Time // by upstreams.mu
	users     int       // requests under way, by upstreams.mu
}

func newUpstreams(dial func(context.Context, gateway.Request) (net.Conn, error), roots *x509.CertPool) *upstreams {
	return &upstreams{dial: dial, roots: roots, byKey: map[upstreamKey]*upstream{}}
}

// take returns the upstream for a request; give it back.
func (u *upstreams) take(r gateway.Request, http2 bool) (*upstream, error) {
	key := upstreamKey{r.Name, r.Destination, r.Held, r.Encrypted, http2 && !r.Encrypted}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byKey == nil {
		return nil, errClosed
	}
	up := u.byKey[key]
	if up == nil {
		u.makeRoom()
		up = u.newUpstream(key, r)
		u.byKey[key] = up
	}
	up.users++
	return up, nil
}

func (u *upstreams) give(up *upstream) {
	u.mu.Lock()
	up.users--
	up.used = time.Now()
	closed := u.byKey == nil
	u.mu.Unlock()
	if closed {
		up.transport.CloseIdleConnections()
	}
}

// makeRoom forgets the destination that was asked longest ago when there are many.
func (u *upstreams) makeRoom() {
	if len(u.byKey) < maxUpstreams {
		return
	}
	var oldest upstreamKey
	var found *upstream
	for key, up := range u.byKey {
		if up.users == 0 && (found == nil || up.used.Before(found.used)) {
			oldest, found = key, up
		}
	}
	if found != nil { // else all are in use, and bounded by the requests under way
		delete(u.byKey, oldest)
		go found.transport.CloseIdleConnections()
	}
}

func (u *upstreams) close() {
	u.mu.Lock()
	all := u.byKey
	u.byKey = nil
	u.mu.Unlock()
	for _, up := range all {
		up.transport.CloseIdleConnections()
	}
}

func (u *upstreams) newUpstream(key upstreamKey, r gateway.Request) *upstream {
	host := key.name
	if host == "" {
		host = addrText(key.destination.Addr())
	}
	up := &upstream{scheme: "http", host: hostPort(host, key.destination.Port())}
	protocols := new(http.Protocols)
	switch {
	case key.http2:
		protocols.SetUnencryptedHTTP2(true)
	case key.encrypted:
		up.scheme = "https"
		protocols.SetHTTP2(true)
		fallthrough
	default:
		protocols.SetHTTP1(true)
	}
	template := gateway.Request{
		Protocol: gateway.HTTP, Destination: key.destination,
		Name: key.name, Names: r.Names, Held: key.held, Encrypted: key.encrypted,
	}
	up.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return u.dial(ctx, template)
		},
		TLSClientConfig:     &tls.Config{RootCAs: u.roots, ServerName: host, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: handshakeTimeout,
		Protocols:           protocols,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingAfter, PingTimeout: pingTimeout, MaxReadFrameSize: maxFrame,
			MaxReceiveBufferPerStream: receiveStream, MaxReceiveBufferPerConnection: receiveConnection,
		},
		DisableCompression:     true,
		MaxIdleConnsPerHost:    maxIdlePerHost,
		IdleConnTimeout:        idleOutside,
		ExpectContinueTimeout:  continueTimeout,
		MaxResponseHeaderBytes: maxHeader,
		WriteBufferSize:        16 << 10,
		ReadBufferSize:         16 << 10,
	}
	return up
}
