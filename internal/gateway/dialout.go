package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
)

// outsideConn is a connection of the host's to where a sandbox wants to.
type outsideConn struct {
	net.Conn
	tcp *net.TCPConn   // below Conn; the same unless a proxy wants TLS
	to  netip.AddrPort // what was connected to, by a proxy too
	via *Proxy         // nil: directly
}

// CloseWrite ends the direction out.
func (c *outsideConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.tcp.CloseWrite()
}

// abort ends the connection at once, with a reset.
func (c *outsideConn) abort() {
	_ = c.tcp.SetLinger(0) // these two fail when it is closed already
	_ = c.tcp.Close()
}

// plain tells whether bytes can be read from the socket itself.
func (c *outsideConn) plain() bool { return c.Conn == net.Conn(c.tcp) }

// dialJudged connects to the destination of a request that was allowed, and to nothing
// else: its address, or one that its name leads to now if it was held.
func (n *Network) dialJudged(ctx context.Context, r Request) (*outsideConn, error) {
	addresses, err := n.addressesOf(ctx, r)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, addr := range addresses {
		to := netip.AddrPortFrom(addr, r.Destination.Port())
		conn, err := n.dialTCP(ctx, to)
		if err == nil {
			conn.to = to
			return conn, nil
		}
		if failed = append(failed, err); ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(failed...)
}

// maxDialled is how many addresses of a name are tried.
const maxDialled = 4

func (n *Network) addressesOf(ctx context.Context, r Request) ([]netip.Addr, error) {
	addr := r.Destination.Addr()
	if !r.Held {
		if impossible(r) != "" {
			return nil, errDenied
		}
		return []netip.Addr{addr}, nil
	}
	found, err := n.lookup(ctx, r.Name, r.Destination.Port(), r.Protocol == UDP)
	if err != nil {
		return nil, &leadsNowhere{err}
	}
	return found[:min(len(found), maxDialled)], nil
}

// leadsNowhere is the error of a name that was held, and allowed, and cannot be
// connected to.
type leadsNowhere struct{ error }

var errTooManyQuestions = errors.New("too many questions for names from this sandbox")

// lookup asks the name servers for the addresses of a name that may be asked for, and
// remembers those that the policy lets through; never none without an error. port is that
// of a connection, or of datagrams, to it; 0 when there is none yet.
func (n *Network) lookup(ctx context.Context, name string, port uint16, datagrams bool) ([]netip.Addr, error) {
	if !n.questions.Allow() {
		n.counters.overLimit.Add(1)
		return nil, errTooManyQuestions
	}
	question := dnsQuestion(name)
	answer, err := n.ask(ctx, question, false)
	if err != nil {
		return nil, err
	}
	var found []netip.Addr
	denied := ""
	for _, addr := range addressesIn(answer.Answer) {
		d := n.decide(ctx, Request{Protocol: DNSAnswer, Destination: netip.AddrPortFrom(addr, port), Name: name, Datagrams: datagrams})
		if !d.Allowed() {
			denied = d.Reason
			continue
		}
		n.names.add(addr, name)
		found = append(found, addr)
	}
	switch {
	case len(found) > 0:
		return found, nil
	case denied != "":
		return nil, fmt.Errorf("%s leads to no address that is allowed: %s", name, denied)
	default:
		return nil, fmt.Errorf("%s has no address", name)
	}
}

// dialTCP connects to just that address, through the proxy if there is one.
func (n *Network) dialTCP(ctx context.Context, to netip.AddrPort) (*outsideConn, error) {
	p := n.proxy.Load()
	if p == nil {
		return n.dialHost(ctx, to)
	}
	conn, err := n.dialByProxy(ctx, p, to)
	if err == nil {
		conn.via = p
	}
	return conn, err
}

func (n *Network) dialHost(ctx context.Context, to netip.AddrPort) (*outsideConn, error) {
	conn, err := n.dialer().DialTCP(ctx, "tcp", netip.AddrPort{}, to)
	if err != nil {
		return nil, err
	}
	return &outsideConn{Conn: conn, tcp: conn}, nil
}

func (n *Network) dialer() *net.Dialer {
	return &net.Dialer{
		Timeout: n.limits.DialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepAliveIdle, Interval: keepAliveEvery, Count: keepAliveCount,
		},
	}
}

// loaned is a connection to the outside that an [Interception] uses. It ends with the
// network.
type loaned struct {
	*outsideConn
	n       *Network
	request Request // that it was made for
	close   sync.Once
}

// Close ends the connection.
func (c *loaned) Close() error {
	c.close.Do(func() { c.n.untrack(c) })
	return c.outsideConn.Close()
}

func (n *Network) loan(conn *outsideConn, r Request) (net.Conn, error) {
	c := &loaned{outsideConn: conn, n: n, request: r}
	if !n.track(c) {
		conn.abort()
		return nil, ErrClosed
	}
	if n.proxy.Load() != conn.via {
		n.untrack(c)
		conn.abort()
		return nil, errors.New("the proxy of the sandbox was changed meanwhile")
	}
	return c, nil
}

// loans are the connections that an [Interception] uses now.
func (n *Network) loans() []*loaned {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*loaned
	for c := range n.open {
		if l, ok := c.(*loaned); ok {
			all = append(all, l)
		}
	}
	return all
}
