package gateway

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

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
	name, err := HostName(question.Name)
	if err != nil {
		answer.Rcode = dns.RcodeNameError
		explain(answer, dns.ExtendedErrorCodeBlocked, err.Error())
		return answer
	}
	if n.answerOurs(name, question, answer) {
		return answer
	}
	switch d := n.decide(n.ctx, Request{Protocol: DNS, Name: name, Silent: silent(query)}); {
	case d.Allowed():
		n.answerByServers(name, query, answer)
	case d.Verdict == Later, d.Verdict == Deny && d.Readable:
		explain(answer, dns.ExtendedErrorCodeForgedAnswer, d.Reason)
		answerAddress(answer, question, n.standIns.address(name))
	default:
		answer.Rcode = dns.RcodeNameError
		explain(answer, dns.ExtendedErrorCodeBlocked, d.Reason)
	}
	return answer
}

// standInTTL is short because a name may have real addresses in a moment, seconds.
const standInTTL = 2

// answerAddress answers a question for addresses with one, and any other with
// nothing: a name without such records, and not none, or programs would believe
// the one answer that says so (musl does).
func answerAddress(answer *dns.Msg, question dns.Question, addr netip.Addr) {
	if question.Qtype == dns.TypeA {
		header := dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: standInTTL}
		answer.Answer = []dns.RR{&dns.A{Hdr: header, A: addr.AsSlice()}}
	}
}

// answerOurs answers what no name server is asked about: the gateway's own name,
// and the names of addresses that stand for one.
func (n *Network) answerOurs(name string, question dns.Question, answer *dns.Msg) bool {
	if name == InsideName {
		if n.inside == nil {
			return false
		}
		answerAddress(answer, question, gatewayAddr)
		return true
	}
	addr, ok := reversedAddress(name)
	if !ok || !standInNet.Contains(addr) {
		return false
	}
	meant := n.standIns.name(addr)
	if meant == "" {
		answer.Rcode = dns.RcodeNameError
	} else if question.Qtype == dns.TypePTR {
		header := dns.RR_Header{Name: question.Name, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: standInTTL}
		answer.Answer = []dns.RR{&dns.PTR{Hdr: header, Ptr: dns.Fqdn(meant)}}
	}
	return true
}

// answerByServers asks the name servers.
func (n *Network) answerByServers(name string, query, answer *dns.Msg) {
	question := query.Question[0]
	if hidden(question.Qtype) {
		return
	}
	if n.asksForRefused(name) {
		answer.Rcode = dns.RcodeNameError
		return
	}
	// As judged: the case of letters would carry data out.
	question.Name = dns.Fqdn(name)
	option := query.IsEdns0()
	found, err := n.ask(n.ctx, question, option != nil && option.Do())
	if err != nil {
		n.log.Debug("name not resolved", "name", name, "error", err)
		answer.Rcode = dns.RcodeServerFailure
		explain(answer, dns.ExtendedErrorCodeNetworkError, "the host's name servers did not answer")
		return
	}
	answer.Rcode = found.Rcode
	answer.AuthenticatedData = found.AuthenticatedData
	answer.Ns = authority(found.Ns)
	answer.Answer = n.filter(n.ctx, name, found.Answer, answer)
}

// dnsQuestion asks for the addresses of a name.
func dnsQuestion(name string) dns.Question {
	return dns.Question{Name: dns.Fqdn(name), Qtype: dns.TypeA, Qclass: dns.ClassINET}
}

// addressesIn returns the addresses of an answer.
func addressesIn(records []dns.RR) []netip.Addr {
	var found []netip.Addr
	for _, record := range records {
		if a, ok := record.(*dns.A); ok {
			addr, _ := netip.AddrFromSlice(a.A.To4())
			found = append(found, addr)
		}
	}
	return found
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

// silent tells whether a query is for hidden records alone: then no name server is asked.
func silent(query *dns.Msg) bool {
	return len(query.Question) == 1 && hidden(query.Question[0].Qtype)
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
	if name != reverseZone && !strings.HasSuffix(name, "."+reverseZone) {
		return false
	}
	addr, ok := reversedAddress(name)
	if !ok {
		return true // a zone, or nothing
	}
	return !n.decide(n.ctx, Request{Protocol: DNSAnswer, Destination: netip.AddrPortFrom(addr, 0), Name: name}).Allowed()
}

const reverseZone = "in-addr.arpa"

// reversedAddress returns the address whose reverse name it is.
func reversedAddress(name string) (netip.Addr, bool) {
	reversed, ok := strings.CutSuffix(name, "."+reverseZone)
	if !ok {
		return netip.Addr{}, false
	}
	labels := strings.Split(reversed, ".")
	slices.Reverse(labels)
	addr, err := netip.ParseAddr(strings.Join(labels, "."))
	return addr, err == nil
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
