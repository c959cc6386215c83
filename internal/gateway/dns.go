package gateway

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const (
	maxQuestionSize = 4096             // bytes; a question is far smaller
	maxUDPAnswer    = 4096             // bytes, whatever the question says it takes
	dnsTCPIdle      = 10 * time.Second // between questions on a TCP connection
)

// serveDNS answers questions sent to the gateway by UDP until the network is
// closed. More than the limit at once are dropped: who asked asks again.
func (n *Network) serveDNS() error {
	here := tcpip.FullAddress{NIC: nicID, Addr: tcpip.AddrFrom4(gateway4), Port: dnsPort}
	conn, err := gonet.DialUDP(n.stack, &here, nil, ipv4.ProtocolNumber)
	if err != nil {
		return err
	}
	server := &udpServer{conn}
	if !n.track(server) || !n.begin() {
		server.abort()
		return ErrClosed
	}
	go func() {
		defer n.working.Done()
		defer conn.Close()
		n.readQuestions(conn)
	}()
	return nil
}

type udpServer struct{ *gonet.UDPConn }

func (s *udpServer) abort() { _ = s.SetDeadline(time.Unix(1, 0)) }

func (n *Network) readQuestions(conn *gonet.UDPConn) {
	buffer := make([]byte, maxQuestionSize)
	for {
		count, from, err := conn.ReadFrom(buffer)
		if n.ctx.Err() != nil {
			return
		}
		if err != nil {
			continue // an ICMP error of an answer before
		}
		n.answerLater(conn, from, buffer[:count])
	}
}

func (n *Network) answerLater(conn *gonet.UDPConn, from net.Addr, question []byte) {
	select {
	case n.dnsSlots <- struct{}{}:
	default:
		n.counters.overLimit.Add(1)
		return
	}
	query, ok := parseQuery(question)
	if !ok || !n.begin() {
		<-n.dnsSlots
		return
	}
	go func() {
		defer n.working.Done()
		defer func() { <-n.dnsSlots }()
		defer n.guard("DNS question")
		answer := n.answer(query)
		answer.Truncate(udpAnswerSize(query))
		if packed, err := answer.Pack(); err == nil {
			_, _ = conn.WriteTo(packed, from) // lost like any datagram
		}
	}()
}

// parseQuery reads one message. It reports false for what deserves no answer.
func parseQuery(message []byte) (*dns.Msg, bool) {
	query := new(dns.Msg)
	if err := query.Unpack(message); err != nil || query.Response {
		return nil, false
	}
	return query, true
}

// udpAnswerSize is what the asking side takes: 512 bytes (RFC 1035), or what it
// says by EDNS (RFC 6891).
func udpAnswerSize(query *dns.Msg) int {
	if option := query.IsEdns0(); option != nil {
		return min(max(int(option.UDPSize()), dns.MinMsgSize), maxUDPAnswer)
	}
	return dns.MinMsgSize
}

// serveTCPQuestions answers questions on one TCP connection, one at a time.
func (n *Network) serveTCPQuestions(request *tcp.ForwarderRequest, answered func(reset bool)) {
	inside, err := n.accept(request, minBuffer)
	if err != nil {
		return
	}
	answered(false)
	defer inside.Close()
	conn := dns.Conn{Conn: inside}
	for {
		_ = inside.SetDeadline(time.Now().Add(dnsTCPIdle))
		message, err := conn.ReadMsgHeader(nil)
		if err != nil {
			return
		}
		query, ok := parseQuery(message)
		if !ok || !n.answerNow(&conn, query) {
			return
		}
	}
}

func (n *Network) answerNow(conn *dns.Conn, query *dns.Msg) bool {
	select {
	case n.dnsSlots <- struct{}{}:
		defer func() { <-n.dnsSlots }()
	case <-n.ctx.Done():
		return false
	}
	answer := n.answer(query)
	answer.Truncate(dns.MaxMsgSize)
	return conn.WriteMsg(answer) == nil
}

// answer returns the answer to a query: always one, in the worst case that it
// failed.
func (n *Network) answer(query *dns.Msg) *dns.Msg {
	n.counters.questions.Add(1)
	answer := new(dns.Msg)
	answer.SetReply(query)
	answer.RecursionAvailable = true
	if option := query.IsEdns0(); option != nil {
		answer.SetEdns0(maxUDPAnswer, option.Do())
	}
	if answer.Rcode = checkQuery(query); answer.Rcode != dns.RcodeSuccess {
		return answer
	}
	question := query.Question[0]
	name := plainName(question.Name)
	if d := n.decide(n.ctx, Request{Protocol: DNS, Name: name}); !d.Allowed() {
		answer.Rcode = dns.RcodeNameError
		explain(answer, dns.ExtendedErrorCodeBlocked, d.Reason)
		return answer
	}
	if hidden(question.Qtype) {
		return answer
	}
	if n.asksForRefused(name) {
		answer.Rcode = dns.RcodeNameError
		return answer
	}
	option := query.IsEdns0()
	found, err := n.resolvers.ask(n.ctx, question, option != nil && option.Do())
	if err != nil {
		n.log.Debug("name not resolved", "name", name, "error", err)
		answer.Rcode = dns.RcodeServerFailure
		explain(answer, dns.ExtendedErrorCodeNetworkError, "the host's name servers did not answer")
		return answer
	}
	answer.Rcode = found.Rcode
	answer.AuthenticatedData = found.AuthenticatedData
	answer.Ns = authority(found.Ns)
	answer.Answer = n.filter(n.ctx, name, found.Answer, answer)
	return answer
}

func checkQuery(query *dns.Msg) int {
	switch {
	case query.Opcode != dns.OpcodeQuery:
		return dns.RcodeNotImplemented
	case len(query.Question) != 1:
		return dns.RcodeFormatError
	case query.Question[0].Qclass != dns.ClassINET:
		return dns.RcodeRefused
	}
	switch query.Question[0].Qtype {
	case dns.TypeAXFR, dns.TypeIXFR, dns.TypeANY:
		return dns.RcodeNotImplemented
	}
	return dns.RcodeSuccess
}

// hidden are record types answered as if there were none: IPv6 addresses,
// because there is no IPv6 inside, and service bindings, which carry addresses
// as hints and keys that would hide the name of a TLS connection.
func hidden(recordType uint16) bool {
	return recordType == dns.TypeAAAA || recordType == dns.TypeHTTPS || recordType == dns.TypeSVCB
}

// filter leaves out the records a sandbox should not see, among them addresses
// the policy refuses: a public name must not lead a browser inside to a private
// address. It remembers what the other addresses were asked as.
func (n *Network) filter(ctx context.Context, name string, records []dns.RR, answer *dns.Msg) []dns.RR {
	var kept []dns.RR
	for _, record := range records {
		if hidden(record.Header().Rrtype) {
			continue
		}
		if a, ok := record.(*dns.A); ok {
			addr, _ := netip.AddrFromSlice(a.A.To4())
			d := n.decide(ctx, Request{Protocol: DNSAnswer, Destination: netip.AddrPortFrom(addr, 0), Name: name})
			if !d.Allowed() {
				explain(answer, dns.ExtendedErrorCodeFiltered, d.Reason)
				continue
			}
			n.names.add(addr, name)
		}
		kept = append(kept, record)
	}
	return kept
}

// asksForRefused reports whether name is the reverse name of an address the
// policy refuses, or of any IPv6 address: the host's name servers may know names
// of private networks that are none of the sandbox's business (RFC 6303).
func (n *Network) asksForRefused(name string) bool {
	if strings.HasSuffix(name, ".ip6.arpa") {
		return true
	}
	reversed, ok := strings.CutSuffix(name, ".in-addr.arpa")
	if !ok {
		return false
	}
	labels := strings.Split(reversed, ".")
	slices.Reverse(labels)
	addr, err := netip.ParseAddr(strings.Join(labels, "."))
	if err != nil {
		return true // a zone, or nothing
	}
	return !n.decide(n.ctx, Request{Protocol: DNSAnswer, Destination: netip.AddrPortFrom(addr, 0), Name: name}).Allowed()
}

// authority keeps the records that belong in that section of an answer: no
// address may come in by it.
func authority(records []dns.RR) []dns.RR {
	var kept []dns.RR
	for _, record := range records {
		switch record.Header().Rrtype {
		case dns.TypeSOA, dns.TypeNS, dns.TypeDS, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeRRSIG:
			kept = append(kept, record)
		}
	}
	return kept
}

// explain adds a reason to an answer (RFC 8914) if the asking side can read it.
func explain(answer *dns.Msg, code uint16, reason string) {
	if option := answer.IsEdns0(); option != nil && len(option.Option) == 0 {
		option.Option = append(option.Option, &dns.EDNS0_EDE{InfoCode: code, ExtraText: reason})
	}
}

func plainName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
