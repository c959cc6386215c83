package gateway_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// upstream is a name server on loopback, by UDP and TCP on one port.
func upstream(t testing.TB, handler dns.HandlerFunc) netip.AddrPort {
	t.Helper()
	listener := listenOutside(t)
	packets, err := net.ListenPacket("udp4", listener.Addr().String())
	require.NoError(t, err)
	for _, server := range []*dns.Server{{Listener: listener, Handler: handler}, {PacketConn: packets, Handler: handler}} {
		started, ended := make(chan struct{}), make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		go func() {
			defer close(ended)
			_ = server.ActivateAndServe()
		}()
		<-started
		t.Cleanup(func() {
			_ = server.Shutdown()
			<-ended
		})
	}
	return netip.MustParseAddrPort(listener.Addr().String())
}

// zone answers from records in zone-file form, by name and type.
func zone(t *testing.T, records ...string) dns.HandlerFunc {
	t.Helper()
	var all []dns.RR
	for _, text := range records {
		record, err := dns.NewRR(text)
		require.NoError(t, err)
		all = append(all, record)
	}
	return func(w dns.ResponseWriter, query *dns.Msg) {
		answer := new(dns.Msg)
		answer.SetRcode(query, dns.RcodeNameError)
		for _, record := range all {
			if !strings.EqualFold(record.Header().Name, query.Question[0].Name) {
				continue
			}
			answer.Rcode = dns.RcodeSuccess
			if record.Header().Rrtype == query.Question[0].Qtype {
				answer.Answer = append(answer.Answer, record)
			}
		}
		if _, tcp := w.RemoteAddr().(*net.TCPAddr); !tcp {
			answer.Truncate(dns.MinMsgSize)
		}
		_ = w.WriteMsg(answer)
	}
}

func withResolvers(servers ...netip.AddrPort) func(*gateway.Config) {
	return func(c *gateway.Config) { c.Resolvers = gateway.NewResolvers(servers...) }
}

func ask(t testing.TB, n *gateway.Network, network, name string, kind uint16) *dns.Msg {
	t.Helper()
	query := new(dns.Msg)
	query.SetQuestion(name, kind)
	query.SetEdns0(1232, false)
	return exchange(t, n, network, query)
}

func exchange(t testing.TB, n *gateway.Network, network string, query *dns.Msg) *dns.Msg {
	t.Helper()
	conn, err := dialFromInside(t, n, network, "10.0.0.1:53")
	require.NoError(t, err)
	client := dns.Client{Net: network, Timeout: 8 * time.Second}
	answer, _, err := client.ExchangeWithConn(query, &dns.Conn{Conn: conn, UDPSize: 4096})
	require.NoError(t, err)
	return answer
}

func TestNamesAreAnsweredWithoutRefusedAddresses(t *testing.T) {
	server := upstream(t, zone(t,
		"mixed.example. 60 A 198.51.100.7", "mixed.example. 60 A 192.168.0.7", "mixed.example. 60 A 127.0.0.1",
		"private.example. 60 A 169.254.169.254",
		"both.example. 60 A 198.51.100.8", "both.example. 60 AAAA 2001:db8::1",
		`text.example. 60 TXT "hello"`,
		"1.100.51.198.in-addr.arpa. 60 PTR public.example.",
		"1.0.168.192.in-addr.arpa. 60 PTR printer.corp.example.",
		"svc.example. 60 HTTPS 1 . ipv4hint=192.168.0.1",
	))
	n := newNetwork(t, withPolicy(gateway.NewPublic()), withResolvers(server))
	for _, row := range []struct {
		name  string
		kind  uint16
		rcode int
		want  string
	}{
		{"mixed.example.", dns.TypeA, dns.RcodeSuccess, "198.51.100.7"},
		{"MIXED.Example.", dns.TypeA, dns.RcodeSuccess, "198.51.100.7"},
		{"private.example.", dns.TypeA, dns.RcodeSuccess, ""},
		{"both.example.", dns.TypeAAAA, dns.RcodeSuccess, ""},
		{"text.example.", dns.TypeTXT, dns.RcodeSuccess, `"hello"`},
		{"svc.example.", dns.TypeHTTPS, dns.RcodeSuccess, ""},
		{"1.100.51.198.in-addr.arpa.", dns.TypePTR, dns.RcodeSuccess, "public.example."},
		{"1.0.168.192.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError, ""},
		{"168.192.in-addr.arpa.", dns.TypeSOA, dns.RcodeNameError, ""},
		{"absent.example.", dns.TypeA, dns.RcodeNameError, ""},
		{"mixed.example.", dns.TypeANY, dns.RcodeNotImplemented, ""},
		{"example.", dns.TypeAXFR, dns.RcodeNotImplemented, ""},
	} {
		for _, network := range []string{"udp", "tcp"} {
			answer := ask(t, n, network, row.name, row.kind)
			require.Equal(t, row.rcode, answer.Rcode, "%s %s", network, row.name)
			var got []string
			for _, record := range answer.Answer {
				got = append(got, strings.TrimPrefix(record.String(), record.Header().String()))
			}
			require.Equal(t, row.want, strings.Join(got, " "), "%s %s", network, row.name)
		}
	}
	explained := ask(t, n, "udp", "private.example.", dns.TypeA).IsEdns0().Option
	require.Len(t, explained, 1)
	require.Contains(t, explained[0].String(), "link-local")
}

// Programs ask for AAAA beside A: there are none, so that waits neither for name servers nor
// for other questions, and is no event for the policy.
func TestQuestionsForIPv6WaitForNothing(t *testing.T) {
	asked, ended := make(chan uint16, 10), make(chan struct{})
	judged := make(chan gateway.Request, 10)
	n := newNetwork(t, withPolicy(telling{judged}), withResolvers(upstream(t, func(w dns.ResponseWriter, query *dns.Msg) {
		asked <- query.Question[0].Qtype
		<-ended
	})), func(c *gateway.Config) { c.Limits.DNSInFlight = 1 })
	t.Cleanup(func() { close(ended) })
	conn, err := dialFromInside(t, n, "udp", "10.0.0.1:53")
	require.NoError(t, err)
	query := new(dns.Msg)
	query.SetQuestion("a.example.", dns.TypeA)
	require.NoError(t, (&dns.Conn{Conn: conn}).WriteMsg(query))
	require.Equal(t, dns.TypeA, <-asked)
	require.False(t, (<-judged).Silent)

	for _, kind := range []uint16{dns.TypeAAAA, dns.TypeHTTPS, dns.TypeSVCB} {
		got := ask(t, n, "udp", "a.example.", kind)
		require.Equal(t, dns.RcodeSuccess, got.Rcode)
		require.Empty(t, got.Answer)
		r := <-judged
		require.Equal(t, "a.example", r.Name)
		require.True(t, r.Silent, dns.TypeToString[kind])
	}
	for len(asked) > 0 { // again, on a machine that stands still for seconds
		require.Equal(t, dns.TypeA, <-asked)
	}
}

// telling allows everything, and tells of the questions for names.
type telling struct{ judged chan gateway.Request }

func (p telling) Decide(_ context.Context, r gateway.Request) gateway.Decision {
	if r.Protocol == gateway.DNS {
		p.judged <- r
	}
	return gateway.Decision{Verdict: gateway.Allow}
}

func TestTheCaseOfLettersIsNotSentOut(t *testing.T) {
	asked := make(chan string, 1)
	records := zone(t, "public.example. 60 IN A 203.0.113.7")
	n := newNetwork(t, withPolicy(gateway.NewPublic()), withResolvers(upstream(t, func(w dns.ResponseWriter, query *dns.Msg) {
		asked <- query.Question[0].Name
		records(w, query)
	})))
	answer := ask(t, n, "udp", "PuBlIc.eXaMpLe.", dns.TypeA)
	require.Equal(t, "public.example.", <-asked, "letters in two forms would be a way out for data")
	require.Equal(t, "PuBlIc.eXaMpLe.", answer.Question[0].Name, "programs look for their own question")
	require.Len(t, answer.Answer, 1)
}

func TestLongAnswersComeByTCP(t *testing.T) {
	var records []string
	for i := range 200 {
		records = append(records, fmt.Sprintf("many.example. 60 A 198.51.100.%d", i))
	}
	n := newNetwork(t, withPolicy(gateway.NewPublic()), withResolvers(upstream(t, zone(t, records...))))
	short := ask(t, n, "udp", "many.example.", dns.TypeA)
	require.True(t, short.Truncated)
	short.Compress = true // as it was sent
	require.LessOrEqual(t, short.Len(), 1232)
	require.Len(t, ask(t, n, "tcp", "many.example.", dns.TypeA).Answer, 200)
}

func TestSecondResolverIsAskedWhenTheFirstFails(t *testing.T) {
	var asked atomic.Int32
	broken := upstream(t, func(w dns.ResponseWriter, query *dns.Msg) {
		asked.Add(1)
		answer := new(dns.Msg)
		answer.SetRcode(query, dns.RcodeServerFailure)
		_ = w.WriteMsg(answer)
	})
	n := newNetwork(t, withPolicy(gateway.NewPublic()),
		withResolvers(broken, upstream(t, zone(t, "a.example. 60 A 198.51.100.1"))))
	require.Len(t, ask(t, n, "udp", "a.example.", dns.TypeA).Answer, 1)
	require.NotZero(t, asked.Load())
}

func TestDenyAllAnswersNoName(t *testing.T) {
	var asked atomic.Int32
	server := upstream(t, func(dns.ResponseWriter, *dns.Msg) { asked.Add(1) })
	n := newNetwork(t, withPolicy(gateway.DenyAll{}), withResolvers(server))
	answer := ask(t, n, "udp", "secret.leaks.example.", dns.TypeTXT)
	require.Equal(t, dns.RcodeNameError, answer.Rcode)
	require.Contains(t, answer.IsEdns0().Option[0].String(), "no network")
	require.Zero(t, asked.Load(), "a refused name must not leave the host")
}

func TestPolicyIsReplacedWhileRunning(t *testing.T) {
	n := newNetwork(t, withPolicy(gateway.DenyAll{}), withResolvers(upstream(t, zone(t, "a.example. 60 A 198.51.100.1"))))
	require.Empty(t, ask(t, n, "udp", "a.example.", dns.TypeA).Answer)
	n.SetPolicy(gateway.NewPublic())
	require.Len(t, ask(t, n, "udp", "a.example.", dns.TypeA).Answer, 1)
}

func TestKeptAnswersAreJudgedAgain(t *testing.T) {
	var asked atomic.Int32
	records := zone(t, "a.example. 60 A 198.51.100.1", "a.example. 60 A 198.51.100.2")
	n := newNetwork(t, withPolicy(gateway.NewPublic()), withResolvers(upstream(t, func(w dns.ResponseWriter, query *dns.Msg) {
		asked.Add(1)
		records(w, query)
	})))
	for range 3 {
		require.Len(t, ask(t, n, "udp", "a.example.", dns.TypeA).Answer, 2)
	}
	require.EqualValues(t, 1, asked.Load(), "the name servers are asked once")

	n.SetPolicy(gateway.DenyAll{})
	answer := ask(t, n, "udp", "a.example.", dns.TypeA)
	require.Equal(t, dns.RcodeNameError, answer.Rcode, "a name that is refused now is not answered from before")
	require.Empty(t, answer.Answer)

	n.SetPolicy(refusedAddress{netip.MustParseAddr("198.51.100.1")})
	require.Len(t, ask(t, n, "udp", "a.example.", dns.TypeA).Answer, 1, "nor is an address")

	n.SetPolicy(gateway.NewPublic())
	require.Len(t, ask(t, n, "udp", "a.example.", dns.TypeA).Answer, 2)
	require.EqualValues(t, 1, asked.Load())
}

// refusedAddress lets everything through but one address.
type refusedAddress struct{ addr netip.Addr }

func (p refusedAddress) Decide(_ context.Context, r gateway.Request) gateway.Decision {
	if r.Destination.Addr() == p.addr {
		return gateway.Decision{Reason: "refused"}
	}
	return gateway.Decision{Verdict: gateway.Allow}
}

func TestConnectionsAreJudgedWithTheNameAskedBefore(t *testing.T) {
	address := hostAddress(t)
	events := make(chan gateway.Event, 10)
	n := newNetwork(t, withResolvers(upstream(t, zone(t, "named.example. 60 A "+address))), func(c *gateway.Config) {
		c.OnDecision = func(e gateway.Event) { events <- e }
	})
	ask(t, n, "udp", "named.example.", dns.TypeA)
	_, _ = dialFromInside(t, n, "tcp4", address+":1")
	require.Equal(t, gateway.DNS, (<-events).Request.Protocol)
	require.Equal(t, gateway.DNSAnswer, (<-events).Request.Protocol)
	event := <-events
	require.Equal(t, gateway.TCP, event.Request.Protocol)
	require.Equal(t, "named.example", event.Request.Name)
}
