package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/net/proxy"
)

// ProxyKind is the protocol that a proxy speaks.
type ProxyKind string

// Kinds of proxies.
const (
	SOCKS5      ProxyKind = "socks5" // RFC 1928, with a name and a password (RFC 1929)
	HTTPConnect ProxyKind = "http"   // CONNECT (RFC 9110, 9.3.6), with Basic authentication
)

// Proxy is where TCP connections out are made through. It gets the address that was
// judged, not the name. Datagrams and questions for names do not go through it.
type Proxy struct {
	Kind ProxyKind
	// Address is host:port. A name is looked up at each connection, and just the
	// address found is judged and dialled.
	Address            string
	Username, Password string // both empty: none
	// TLS, when set, is how to speak to the proxy. An empty ServerName is the host.
	TLS *tls.Config
	// Refuses says what the proxy's address is if it may not be used, or nothing. Nil
	// lets through public addresses only.
	Refuses func(netip.Addr) string
}

// Check says what is wrong with a proxy.
func (p *Proxy) Check() error {
	if p.Kind != SOCKS5 && p.Kind != HTTPConnect {
		return fmt.Errorf("proxy: %q is no kind of proxy; take %q or %q", p.Kind, SOCKS5, HTTPConnect)
	}
	host, port, err := net.SplitHostPort(p.Address)
	if err != nil {
		return fmt.Errorf("proxy: the address must be host:port: %w", err)
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return fmt.Errorf("proxy: %q is no port", port)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	if _, err := HostName(host); err != nil {
		return fmt.Errorf("proxy: the host %q is none: %w", host, err)
	}
	if p.Kind == SOCKS5 && (len(p.Username) > 255 || len(p.Password) > 255) {
		return errors.New("proxy: SOCKS5 takes names and passwords of up to 255 bytes")
	}
	return nil
}

// SetProxy has new connections made through p, or directly when p is nil. Those that
// are open stay; but those that requests were sent on one by one end, so that none goes the
// way of before.
func (n *Network) SetProxy(p *Proxy) error {
	if p != nil {
		if err := p.Check(); err != nil {
			return err
		}
	}
	n.proxy.Store(p)
	for _, l := range n.loans() {
		if l.via != p {
			l.abort()
		}
	}
	return nil
}

// dialByProxy never dials the destination itself.
func (n *Network) dialByProxy(ctx context.Context, p *Proxy, to netip.AddrPort) (*outsideConn, error) {
	ctx, cancel := context.WithTimeout(ctx, n.limits.DialTimeout)
	defer cancel()
	conn, err := n.throughProxy(ctx, p, to)
	if err != nil && ctx.Err() == nil {
		n.proxyTrouble.Do(func() { n.log.Warn("connection by proxy failed", "proxy", p.Address, "error", err) })
	}
	return conn, err
}

func (n *Network) throughProxy(ctx context.Context, p *Proxy, to netip.AddrPort) (*outsideConn, error) {
	at, err := n.proxyAddress(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", p.Address, err)
	}
	conn, err := n.dialHost(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", p.Address, err)
	}
	stop := context.AfterFunc(ctx, conn.abort)
	err = p.open(ctx, conn, to)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.abort()
		return nil, fmt.Errorf("proxy %s: connect to %s: %w", p.Address, to, err)
	}
	return conn, nil
}

// proxyAddress resolves and judges the address of a proxy.
func (n *Network) proxyAddress(ctx context.Context, p *Proxy) (netip.AddrPort, error) {
	host, portText, err := net.SplitHostPort(p.Address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addresses, err := n.addressesOfHost(ctx, host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	refuses := p.Refuses
	if refuses == nil {
		refuses = n.public.Refuses
	}
	why := "no address"
	for _, addr := range addresses {
		if why = refuses(addr); why == "" {
			return netip.AddrPortFrom(addr, uint16(port)), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("its address may not be used: %s", why)
}

func (n *Network) addressesOfHost(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	answer, err := n.ask(ctx, dnsQuestion(host), false)
	if err != nil {
		return nil, err
	}
	found := addressesIn(answer.Answer)
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	return found, nil
}

// open makes a connection to the proxy one to the destination.
func (p *Proxy) open(ctx context.Context, conn *outsideConn, to netip.AddrPort) error {
	if p.TLS != nil {
		if err := p.startTLS(ctx, conn); err != nil {
			return err
		}
	}
	if p.Kind == HTTPConnect {
		return p.connectHTTP(conn, to)
	}
	return p.connectSOCKS(ctx, conn, to)
}

func (p *Proxy) startTLS(ctx context.Context, conn *outsideConn) error {
	config := p.TLS.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(p.Address)
	}
	secure := tls.Client(conn.tcp, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	conn.Conn = secure
	return nil
}

func (p *Proxy) connectSOCKS(ctx context.Context, conn *outsideConn, to netip.AddrPort) error {
	var auth *proxy.Auth
	if p.Username != "" || p.Password != "" {
		auth = &proxy.Auth{User: p.Username, Password: p.Password}
	}
	dialer, err := proxy.SOCKS5("tcp", p.Address, auth, have{conn.Conn})
	if err != nil {
		return err
	}
	_, err = dialer.(proxy.ContextDialer).DialContext(ctx, "tcp", to.String())
	return err
}

// have is a dialer that has the connection already.
type have struct{ net.Conn }

func (h have) Dial(string, string) (net.Conn, error) { return h.Conn, nil }

func (h have) DialContext(context.Context, string, string) (net.Conn, error) { return h.Conn, nil }

const maxConnectAnswer = 16 << 10 // bytes

func (p *Proxy) connectHTTP(conn *outsideConn, to netip.AddrPort) error {
	request := &http.Request{
		Method: http.MethodConnect, URL: &url.URL{Opaque: to.String()}, Host: to.String(), Header: http.Header{},
	}
	if p.Username != "" || p.Password != "" {
		basic := &http.Request{Header: http.Header{}}
		basic.SetBasicAuth(p.Username, p.Password)
		request.Header.Set("Proxy-Authorization", basic.Header.Get("Authorization"))
	}
	if err := request.Write(conn); err != nil {
		return err
	}
	// Byte by byte, so that nothing is read that the destination sends.
	answer, err := http.ReadResponse(bufio.NewReaderSize(io.LimitReader(byteByByte{conn}, maxConnectAnswer), 16), request)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the proxy answers %s", answer.Status)
	}
	return nil
}

type byteByByte struct{ io.Reader }

func (r byteByByte) Read(b []byte) (int, error) { return r.Reader.Read(b[:min(len(b), 1)]) }

// proxyTroubleEvery is how often a proxy's failure is logged, per network.
const proxyTroubleEvery = time.Minute
