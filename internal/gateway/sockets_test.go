package gateway

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

// nameServer answers every question with one address, on loopback, and knows from which
// ports it was asked.
type nameServer struct {
	addr netip.AddrPort
	// stray has it send an answer to another question first.
	stray bool

	mu    sync.Mutex
	ports map[string]bool
	asked int
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	packets, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(t, err)
	s := &nameServer{addr: netip.MustParseAddrPort(packets.LocalAddr().String()), ports: map[string]bool{}}
	server, started, ended := &dns.Server{PacketConn: packets, Handler: s}, make(chan struct{}), make(chan struct{})
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
	return s
}

func (s *nameServer) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	s.mu.Lock()
	s.asked++
	s.ports[w.RemoteAddr().String()] = true
	stray := s.stray
	s.mu.Unlock()
	answer := new(dns.Msg)
	answer.SetReply(query)
	answer.Answer = []dns.RR{&dns.A{
		Hdr: dns.RR_Header{Name: query.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(198, 51, 100, 7),
	}}
	if stray {
		forged := answer.Copy()
		forged.Id++
		forged.Answer[0].(*dns.A).A = net.IPv4(192, 0, 2, 66)
		_ = w.WriteMsg(forged)
	}
	_ = w.WriteMsg(answer)
}

func (s *nameServer) seen() (ports, asked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ports), s.asked
}

func resolversOf(t *testing.T, s *nameServer) *Resolvers {
	r := NewResolvers(s.addr)
	t.Cleanup(r.Close)
	return r
}

// found asks for the address of a name.
func found(t *testing.T, r *Resolvers, name string) string {
	t.Helper()
	answer, err := r.ask(t.Context(), dnsQuestion(name), false)
	require.NoError(t, err)
	require.Equal(t, dns.Fqdn(name), answer.Question[0].Name)
	require.Len(t, answer.Answer, 1)
	return answer.Answer[0].(*dns.A).A.String()
}

func TestASocketToANameServerIsUsedAgain(t *testing.T) {
	s := newNameServer(t)
	r := resolversOf(t, s)
	for i := range 20 {
		require.Equal(t, "198.51.100.7", found(t, r, fmt.Sprintf("n%d.example", i)))
	}
	ports, asked := s.seen()
	require.GreaterOrEqual(t, asked, 20)
	require.Less(t, ports, 10, "one, but on a machine that stands still for seconds")
}

func TestSocketsAreNotUsedForLong(t *testing.T) {
	for why, age := range map[string]func(*askingSocket){
		"it had many questions": func(k *askingSocket) { k.uses = maxSocketUses },
		"it is old":             func(k *askingSocket) { k.since = k.since.Add(-maxSocketAge - time.Second) },
		"nobody used it":        func(k *askingSocket) { k.used = k.used.Add(-maxSocketIdle - time.Second) },
	} {
		s := newNameServer(t)
		r := resolversOf(t, s)
		found(t, r, "a.example")
		age(r.sockets.idle[s.addr][0])
		found(t, r, "b.example")
		ports, _ := s.seen()
		require.Greater(t, ports, 1, why)

		age(r.sockets.idle[s.addr][0])
		r.sockets.closeOld()
		require.Empty(t, r.sockets.idle, "%s: it is closed where nobody asks any more", why)
	}
}

// Where somebody sends answers of his own, each question is from another port.
func TestAForgedAnswerIsNoneAndEndsTheSocket(t *testing.T) {
	s := newNameServer(t)
	s.stray = true
	r := resolversOf(t, s)
	for i := range 5 {
		require.Equal(t, "198.51.100.7", found(t, r, fmt.Sprintf("n%d.example", i)))
	}
	ports, _ := s.seen()
	require.GreaterOrEqual(t, ports, 5)
}

func TestQuestionsAtOnceGetTheirOwnAnswers(t *testing.T) {
	s := newNameServer(t)
	r := resolversOf(t, s)
	var all sync.WaitGroup
	errs := make(chan error, 100)
	for i := range cap(errs) {
		all.Go(func() {
			name := fmt.Sprintf("n%d.example.", i)
			answer, err := r.ask(t.Context(), dnsQuestion(name), false)
			if err == nil && answer.Answer[0].Header().Name != name {
				err = fmt.Errorf("%s got the answer to %s", name, answer.Answer[0].Header().Name)
			}
			errs <- err
		})
	}
	all.Wait()
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	require.LessOrEqual(t, len(r.sockets.idle[s.addr]), maxSockets)
}

func TestANameServerThatWasAwayIsAskedAgain(t *testing.T) {
	s := newNameServer(t)
	r := resolversOf(t, s)
	found(t, r, "a.example")
	_ = r.sockets.idle[s.addr][0].Close() // its next use fails, as after an ICMP error
	found(t, r, "b.example")
}

func TestWhatNetworksAskTogetherIsLimited(t *testing.T) {
	s := newNameServer(t)
	r := resolversOf(t, s)
	r.rate = rate.NewLimiter(0, 1)
	require.True(t, r.rate.Allow()) // another network's
	_, err := r.ask(t.Context(), dnsQuestion("more.example"), false)
	require.ErrorContains(t, err, "too many questions")
	_, asked := s.seen()
	require.Zero(t, asked)
}

func TestWhoAsksDoesNotWaitWhenHisNetworkEnds(t *testing.T) {
	silent, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	r := NewResolvers(netip.MustParseAddrPort(silent.LocalAddr().String()))
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := r.ask(ctx, dnsQuestion("a.example"), false)
		ended <- err
	}()
	_, _, err = silent.ReadFrom(make([]byte, 512)) // it was asked
	require.NoError(t, err)
	cancel()
	require.Error(t, <-ended)
	require.Empty(t, r.sockets.idle)
}
