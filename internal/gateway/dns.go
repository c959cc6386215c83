package gateway

import (
	"net"
	"time"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
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
	if !n.questions.Allow() {
		n.counters.overLimit.Add(1)
		return
	}
	query, ok := parseQuery(question)
	if !ok {
		return
	}
	if silent(query) { // programs ask for AAAA beside A: that waits for nothing
		n.answerTo(conn, from, query)
		return
	}
	select {
	case n.dnsSlots <- struct{}{}:
	default:
		n.counters.overLimit.Add(1)
		return
	}
	if !n.begin() {
		<-n.dnsSlots
		return
	}
	go func() {
		defer n.working.Done()
		defer func() { <-n.dnsSlots }()
		n.answerTo(conn, from, query)
	}()
}

func (n *Network) answerTo(conn *gonet.UDPConn, from net.Addr, query *dns.Msg) {
	defer n.guard("DNS question")
	answer := n.answer(query)
	answer.Truncate(udpAnswerSize(query))
	if packed, err := answer.Pack(); err == nil {
		_, _ = conn.WriteTo(packed, from) // lost like any datagram
	}
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

// serveQuestions answers questions on one TCP connection, one at a time.
func (a *arrival) serveQuestions() {
	a.fixedSize = minBuffer
	if a.accept() != nil {
		return
	}
	conn := dns.Conn{Conn: a.inside}
	for {
		_ = a.inside.SetDeadline(time.Now().Add(dnsTCPIdle))
		message, err := conn.ReadMsgHeader(nil)
		if err != nil {
			return
		}
		query, ok := parseQuery(message)
		if !ok || !a.n.answerNow(&conn, query) {
			return
		}
	}
}

func (n *Network) answerNow(conn *dns.Conn, query *dns.Msg) bool {
	if n.questions.Wait(n.ctx) != nil {
		return false
	}
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
