package gateway

import (
	"net/netip"
	"os"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/buffer"
)

// offline returns a network whose device is pipes nobody writes to.
func offline(t testing.TB, policy Policy) *Network {
	t.Helper()
	ns := &namespace{path: t.TempDir() + "/netns"}
	for i := range ns.queues {
		reader, writer, err := os.Pipe()
		require.NoError(t, err)
		t.Cleanup(func() { writer.Close() })
		ns.queues[i] = reader
	}
	n := newNetwork(Config{Policy: policy}, ns)
	require.NoError(t, n.startStack())
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

// FuzzFrame puts any bytes before the stack as a frame from the sandbox.
func FuzzFrame(f *testing.F) {
	ethernet := []byte{2, 0, 10, 0, 0, 1, 2, 0, 10, 0, 0, 2}
	f.Add(append(ethernet, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 10, 0, 0, 2, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1))
	f.Add(append(ethernet, 8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 2, 1, 1, 1, 1, 0, 80, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 4, 0, 0, 0, 0, 0))
	f.Add(append(ethernet, 8, 0, 0x45, 0, 0, 29, 0, 0, 0x20, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1, 0, 80, 0, 53, 0, 9, 0, 0, 0))
	n := offline(f, DenyAll{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) == 0 {
			return
		}
		b := buffer.MakeWithData(frame)
		n.link.receive(&b)
		require.Zero(t, n.Stats().Panics)
	})
}

// FuzzQuestion answers any bytes as a question.
func FuzzQuestion(f *testing.F) {
	query := new(dns.Msg)
	query.SetQuestion("a.example.", dns.TypeA)
	query.SetEdns0(1232, true)
	packed, err := query.Pack()
	require.NoError(f, err)
	f.Add(packed)
	n := offline(f, DenyAll{})
	f.Fuzz(func(t *testing.T, message []byte) {
		query, ok := parseQuery(message)
		if !ok {
			return
		}
		answer := n.answer(query)
		require.Empty(t, answer.Answer)
		answer.Truncate(udpAnswerSize(query))
		if packed, err := answer.Pack(); err == nil {
			require.LessOrEqual(t, len(packed), maxUDPAnswer)
		}
	})
}

// FuzzUpstream takes any bytes as the answer of a name server: no refused
// address may come through.
func FuzzUpstream(f *testing.F) {
	for _, record := range []string{"a.example. 60 A 127.0.0.1", "a.example. 60 AAAA ::1", "a.example. 60 HTTPS 1 . ipv4hint=10.0.0.1"} {
		rr, err := dns.NewRR(record)
		require.NoError(f, err)
		message := &dns.Msg{Answer: []dns.RR{rr}}
		packed, err := message.Pack()
		require.NoError(f, err)
		f.Add(packed)
	}
	policy := NewPublic()
	n := offline(f, policy)
	f.Fuzz(func(t *testing.T, message []byte) {
		var upstream dns.Msg
		if upstream.Unpack(message) != nil {
			return
		}
		for _, record := range n.filter(t.Context(), "a.example", upstream.Answer, new(dns.Msg)) {
			switch record := record.(type) {
			case *dns.AAAA, *dns.HTTPS, *dns.SVCB:
				t.Fatalf("%s came through", record)
			case *dns.A:
				addr, _ := netip.AddrFromSlice(record.A.To4())
				require.Empty(t, policy.refuses(addr), "%s came through", record)
			}
		}
	})
}
