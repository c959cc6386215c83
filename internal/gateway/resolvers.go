package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	dnsPort = 53
	// upstreamTimeout is for one attempt at one resolver, upstreamTotal for all
	// of them: a little less than the 5 s after which resolvers inside ask again.
	upstreamTimeout = 2 * time.Second
	upstreamTotal   = 4500 * time.Millisecond
	upstreamRounds  = 2
	// upstreamSize is the UDP answer we take, the size without fragments that
	// DNS Flag Day 2020 agreed on; longer ones come by TCP.
	upstreamSize = 1232

	resolvConf    = "/etc/resolv.conf"
	resolvConfAge = 2 * time.Second // how often a change is looked for, at most
	maxResolvers  = 3               // as in resolv.conf(5)
)

// resolvers are the name servers asked, either given or those of the host.
type resolvers struct {
	fixed bool

	mu      sync.Mutex
	servers []netip.AddrPort
	checked time.Time
	version fs.FileInfo // of resolvConf
}

func newResolvers(given []netip.AddrPort) *resolvers {
	return &resolvers{fixed: len(given) > 0, servers: given}
}

// ask sends a question to one server after the other until one answers.
func (r *resolvers) ask(ctx context.Context, question dns.Question, dnssec bool) (*dns.Msg, error) {
	servers, err := r.current()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, upstreamTotal)
	defer cancel()
	query := new(dns.Msg)
	query.SetQuestion(question.Name, question.Qtype)
	query.SetEdns0(upstreamSize, dnssec)
	var last error
	for range upstreamRounds {
		for _, server := range servers {
			answer, err := askServer(ctx, server, query)
			if err == nil {
				return answer, nil
			}
			last = err
			if ctx.Err() != nil {
				return nil, last
			}
		}
	}
	return nil, last
}

func askServer(ctx context.Context, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	answer, err := exchange(ctx, "udp", server, query)
	if err == nil && answer.Truncated {
		answer, err = exchange(ctx, "tcp", server, query)
	}
	if err != nil {
		return nil, fmt.Errorf("ask name server %s: %w", server, err)
	}
	if answer.Rcode == dns.RcodeServerFailure || answer.Rcode == dns.RcodeRefused {
		return nil, fmt.Errorf("name server %s: %s", server, dns.RcodeToString[answer.Rcode])
	}
	return answer, nil
}

func exchange(ctx context.Context, network string, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	client := dns.Client{Net: network, Timeout: upstreamTimeout, UDPSize: upstreamSize}
	answer, _, err := client.ExchangeContext(ctx, query, server.String())
	if err != nil {
		return nil, err
	}
	if !answersQuestion(answer, query.Question[0]) {
		return nil, errors.New("the answer is to another question")
	}
	return answer, nil
}

func answersQuestion(answer *dns.Msg, question dns.Question) bool {
	if !answer.Response || len(answer.Question) != 1 {
		return false
	}
	got := answer.Question[0]
	return got.Qtype == question.Qtype && got.Qclass == question.Qclass && strings.EqualFold(got.Name, question.Name)
}

// current returns the servers to ask, read again when the file changed. While
// the file cannot be read those known before are used.
func (r *resolvers) current() ([]netip.AddrPort, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.fixed && time.Since(r.checked) > resolvConfAge {
		r.reread()
	}
	if len(r.servers) == 0 {
		return nil, fmt.Errorf("no name server in %s: add one or configure resolvers", resolvConf)
	}
	return r.servers, nil
}

func (r *resolvers) reread() {
	r.checked = time.Now()
	version, err := os.Stat(resolvConf)
	if err != nil || sameVersion(version, r.version) {
		return
	}
	config, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return
	}
	var servers []netip.AddrPort
	for _, text := range config.Servers[:min(len(config.Servers), maxResolvers)] {
		if addr, err := netip.ParseAddr(text); err == nil {
			servers = append(servers, netip.AddrPortFrom(addr, dnsPort))
		}
	}
	r.servers, r.version = servers, version
}

func sameVersion(a, b fs.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
