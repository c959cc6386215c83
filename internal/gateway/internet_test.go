package gateway_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// internet is what the tests have for one: name servers and a SOCKS5 proxy, through
// which the gateway reaches addresses that are nobody's, at any port. It notes what
// was asked and dialled.
type internet struct {
	t        testing.TB
	resolver netip.AddrPort
	proxy    *gateway.Proxy

	mu      sync.Mutex
	records map[string][]string // addresses by name
	servers map[netip.AddrPort]func(net.Conn)
	asked   []string
	dialled []netip.AddrPort
	login   string // of the last connection to the proxy
}

func newInternet(t testing.TB) *internet {
	i := &internet{t: t, records: map[string][]string{}, servers: map[netip.AddrPort]func(net.Conn){}}
	i.resolver = upstream(t, i.resolve)
	listener := listenOutside(t)
	i.proxy = &gateway.Proxy{Kind: gateway.SOCKS5, Address: listener.Addr().String(), Refuses: func(netip.Addr) string { return "" }}
	go serveEach(listener, i.serveSOCKS)
	return i
}

func serveEach(listener net.Listener, serve func(net.Conn)) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			serve(conn)
		}()
	}
}

// name has a name lead to addresses from now on: nobody is to keep them.
func (i *internet) name(name string, addresses ...string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.records[name] = addresses
}

// serve has an address answered.
func (i *internet) serve(address string, server func(net.Conn)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.servers[netip.MustParseAddrPort(address)] = server
}

func (i *internet) resolve(w dns.ResponseWriter, query *dns.Msg) {
	question := query.Question[0]
	name := strings.ToLower(strings.TrimSuffix(question.Name, "."))
	i.mu.Lock()
	i.asked = append(i.asked, name)
	addresses, known := i.records[name]
	i.mu.Unlock()
	answer := new(dns.Msg)
	answer.SetReply(query)
	if !known {
		answer.Rcode = dns.RcodeNameError
	}
	for _, address := range addresses {
		if question.Qtype == dns.TypeA {
			answer.Answer = append(answer.Answer, &dns.A{
				Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(address).To4(),
			})
		}
	}
	_ = w.WriteMsg(answer)
}

// wasAsked returns the names that name servers were asked for since the last call.
func (i *internet) wasAsked() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	asked := i.asked
	i.asked = nil
	return asked
}

// wasDialled returns the addresses that were connected to since the last call.
func (i *internet) wasDialled() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	var dialled []string
	for _, d := range i.dialled {
		dialled = append(dialled, d.String())
	}
	i.dialled = nil
	return dialled
}

// serveSOCKS is RFC 1928 without and with a password (RFC 1929).
func (i *internet) serveSOCKS(conn net.Conn) {
	to, login, err := acceptSOCKS(conn)
	if err != nil {
		return
	}
	i.mu.Lock()
	i.dialled = append(i.dialled, to)
	i.login = login
	server := i.servers[to]
	i.mu.Unlock()
	if server == nil {
		_, _ = conn.Write([]byte{5, 5, 0, 1, 0, 0, 0, 0, 0, 0}) // refused
		return
	}
	if _, err := conn.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0}); err == nil {
		server(conn)
	}
}

func acceptSOCKS(conn net.Conn) (to netip.AddrPort, login string, err error) {
	read := func(count int) []byte {
		b := make([]byte, count)
		if _, failed := io.ReadFull(conn, b); failed != nil {
			err = failed
		}
		return b
	}
	methods := read(int(read(2)[1]))
	if strings.Contains(string(methods), "\x02") {
		_, _ = conn.Write([]byte{5, 2})
		name := read(int(read(2)[1]))
		password := read(int(read(1)[0]))
		login = string(name) + ":" + string(password)
		_, _ = conn.Write([]byte{1, 0})
	} else {
		_, _ = conn.Write([]byte{5, 0})
	}
	head := read(4)
	if err == nil && head[3] != 1 {
		err = errors.New("the proxy was given something else than an IPv4 address")
	}
	addr, port := read(4), read(2)
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(addr)), binary.BigEndian.Uint16(port)), login, err
}

// network is a sandbox's on this internet.
func (i *internet) network(p gateway.Policy, change ...func(*gateway.Config)) *gateway.Network {
	i.t.Helper()
	changes := append([]func(*gateway.Config){withPolicy(p), withResolvers(i.resolver), func(c *gateway.Config) { c.Proxy = i.proxy }}, change...)
	return newNetwork(i.t, changes...)
}

// rules are a policy by names, as the server's is: what is not named is denied.
type rules struct {
	allow  []string            // names to connect to
	see    []string            // names whose requests are looked at
	ask    map[string]chan int // names that somebody is asked about; a value answers one who waits
	opaque bool                // connections that name nothing are allowed by what was looked up
	silent bool                // refusals are not readable
	// noFloor lets private addresses through.
	noFloor bool

	mu      sync.Mutex
	waiting int
	judged  []gateway.Request
}

var onlyPublic = gateway.NewPublic()

func has(names []string, name string) bool {
	for _, known := range names {
		if name == known {
			return true
		}
	}
	return false
}

func (p *rules) Decide(ctx context.Context, r gateway.Request) gateway.Decision {
	p.mu.Lock()
	p.judged = append(p.judged, r)
	p.mu.Unlock()
	deny := gateway.Decision{Reason: "not on the list", Rule: "list", ID: "id-1", Ask: "ask for it", Readable: !p.silent}
	_, asks := p.ask[r.Name]
	known := has(p.allow, r.Name) || has(p.see, r.Name)
	switch r.Protocol {
	case gateway.DNS:
		switch {
		case known:
			return gateway.Decision{Verdict: gateway.Allow}
		case asks:
			return gateway.Decision{Verdict: gateway.Later, Reason: "somebody is to be asked"}
		}
		return deny
	case gateway.DNSAnswer:
		if p.noFloor {
			break
		}
		if why := onlyPublic.Refuses(r.Destination.Addr()); why != "" {
			return gateway.Decision{Reason: why}
		}
		return gateway.Decision{Verdict: gateway.Allow}
	case gateway.UDP:
		return deny
	case gateway.TCP:
		if !r.Held && !p.noFloor && onlyPublic.Refuses(r.Destination.Addr()) != "" || r.Held && !asks && !known {
			return deny
		}
		return gateway.Decision{Verdict: gateway.Inspect}
	case gateway.Opaque:
		if p.opaque && known {
			return gateway.Decision{Verdict: gateway.Allow}
		}
		if !asks || !p.opaque {
			return deny
		}
	case gateway.TLS:
		if has(p.see, r.Name) {
			return gateway.Decision{Verdict: gateway.Inspect}
		}
	}
	switch {
	case known:
		return gateway.Decision{Verdict: gateway.Allow}
	case asks && !r.Again:
		return p.wait(ctx, r, deny)
	}
	return deny
}

// Refused is a decision like those of the rules.
func (p *rules) Refused(_ gateway.Request, reason string) gateway.Decision {
	return gateway.Decision{Reason: reason, Readable: !p.silent}
}

func (p *rules) wait(ctx context.Context, r gateway.Request, deny gateway.Decision) gateway.Decision {
	p.mu.Lock()
	p.waiting++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.waiting--
		p.mu.Unlock()
	}()
	select {
	case answer := <-p.ask[r.Name]:
		if answer > 0 {
			return gateway.Decision{Verdict: gateway.Allow}
		}
	case <-ctx.Done():
	}
	return deny
}

func (p *rules) waits() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting
}

// lookUp resolves a name inside; no address is an error.
func lookUp(t testing.TB, n *gateway.Network, name string) (netip.Addr, error) {
	t.Helper()
	answer := ask(t, n, "udp", dns.Fqdn(name), dns.TypeA)
	for _, record := range answer.Answer {
		if a, ok := record.(*dns.A); ok {
			addr, _ := netip.AddrFromSlice(a.A.To4())
			return addr, nil
		}
	}
	return netip.Addr{}, errors.New(dns.RcodeToString[answer.Rcode])
}

// connect looks a name up inside and connects to it.
func connect(t testing.TB, n *gateway.Network, name, port string) (net.Conn, error) {
	t.Helper()
	addr, err := lookUp(t, n, name)
	if err != nil {
		return nil, err
	}
	return dialFromInside(t, n, "tcp4", net.JoinHostPort(addr.String(), port))
}

// echo answers with what it gets.
func echo(conn net.Conn) { _, _ = io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{conn}) }

// sendAndRead writes, ends its direction and returns all that comes back.
func sendAndRead(t testing.TB, conn net.Conn, text string) (string, error) {
	t.Helper()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	if _, err := conn.Write([]byte(text)); err != nil {
		return "", err
	}
	all, err := io.ReadAll(conn)
	return string(all), err
}
