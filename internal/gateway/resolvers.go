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
	"golang.org/x/time/rate"
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

// What all networks with the same Resolvers may ask together: clouds drop what is more than
// some 1000 datagrams a second of a machine, and each socket is an entry in the tables of
// firewalls on the way. More waits for its turn. The limit of a network (Limits.Questions)
// comes before it.
const (
	upstreamRate  = 800 // a second
	upstreamBurst = 200 // at once
	maxAsking     = 256 // that wait for an answer
)

// Resolvers are the name servers asked, either given or those of the host. One is for all
// networks of a process. Safe for concurrent use.
type Resolvers struct {
	fixed   bool
	rate    *rate.Limiter
	asking  chan struct{}
	sockets sockets

	mu      sync.Mutex
	servers []netip.AddrPort
	checked time.Time
	version fs.FileInfo // of resolvConf
}

// NewResolvers asks the given servers; none takes the host's /etc/resolv.conf and follows
// its changes.
func NewResolvers(given ...netip.AddrPort) *Resolvers {
	return &Resolvers{
		fixed: len(given) > 0, servers: given,
		rate: rate.NewLimiter(upstreamRate, upstreamBurst), asking: make(chan struct{}, maxAsking),
	}
}

// Close closes the sockets that are kept. Asked again, it opens others.
func (r *Resolvers) Close() { r.sockets.close() }

// ask sends a question to one server after the other until one answers.
func (r *Resolvers) ask(ctx context.Context, question dns.Question, dnssec bool) (*dns.Msg, error) {
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
			answer, err := r.askServer(ctx, server, query)
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

func (r *Resolvers) askServer(ctx context.Context, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	answer, err := r.exchange(ctx, "udp", server, query)
	if err == nil && answer.Truncated {
		answer, err = r.exchange(ctx, "tcp", server, query)
	}
	if err != nil {
		return nil, fmt.Errorf("ask name server %s: %w", server, err)
	}
	if answer.Rcode == dns.RcodeServerFailure || answer.Rcode == dns.RcodeRefused {
		return nil, fmt.Errorf("name server %s: %s", server, dns.RcodeToString[answer.Rcode])
	}
	return answer, nil
}

// exchange waits for its turn, asks one server and waits for its answer.
func (r *Resolvers) exchange(ctx context.Context, network string, server netip.AddrPort, query *dns.Msg) (answer *dns.Msg, err error) {
	if err := r.rate.Wait(ctx); err != nil {
		return nil, fmt.Errorf("too many questions for names: %w", err)
	}
	select {
	case r.asking <- struct{}{}:
		defer func() { <-r.asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, upstreamTimeout)
	defer cancel()
	if network == "udp" {
		answer, err = r.sockets.exchange(ctx, server, query)
	} else {
		client := dns.Client{Net: network, Timeout: upstreamTimeout}
		answer, _, err = client.ExchangeContext(ctx, query, server.String())
	}
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
func (r *Resolvers) current() ([]netip.AddrPort, error) {
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

func (r *Resolvers) reread() {
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
