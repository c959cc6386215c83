// Package gateway is the network of a sandbox, in user space: a network
// namespace of its own with one TAP device, and a TCP/IP stack in this process
// on the other end of that device. Every byte into or out of the sandbox goes
// through the stack; connections out are judged by a [Policy], then dialled
// from the host.
//
// All sandboxes have the same addresses (see package hostapi), IPv4 only: of
// IPv6 there is ::1 in the namespace, and names have no AAAA records inside.
// There is no bridge, no NAT and no firewall rule on the host, and nothing is
// forwarded that is not TCP, UDP or DNS.
//
// The package owns the namespace, the device, the stack and the connections of
// one sandbox. It knows nothing of sandboxes' lives, of engines or of storage,
// and it changes nothing in the host's own network namespace.
//
// What comes from a sandbox is hostile. Every count and size here has a limit
// per sandbox (see [Limits]); what exceeds it is dropped or reset, inside. A
// panic while such input is handled is caught, in all goroutines but the stack's
// own, which handle TCP segments and timers.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// ErrClosed: the network was closed.
var ErrClosed = errors.New("network is closed")

// Config says how a network is made.
type Config struct {
	// Dir is the sandbox's own folder; it must exist. The namespace is
	// bind-mounted at Dir/netns.
	Dir string
	// Resolvers answer names. Nil is the host's, for this network alone. Whoever made them
	// closes them.
	Resolvers *Resolvers
	// Policy judges connections out and names. Nil is a new [Public].
	Policy Policy
	// Interceptor carries connections that the policy wants to see into. Without one,
	// they are refused.
	Interceptor Interceptor
	// Inside serves HTTP to programs inside, at http://tombolo.internal/ (port 80 of the
	// gateway's address). Nil: nothing is there.
	Inside http.Handler
	// Proxy is what TCP connections out are made through; nil is none. See SetProxy.
	Proxy *Proxy
	// OnDecision is told of every judgement, in order, from one goroutine at a
	// time. It may be slow: what it cannot keep up with is dropped and counted
	// in [Stats.EventsDropped].
	OnDecision func(Event)
	// Limits bound what one sandbox may use; zero fields take defaults.
	Limits Limits
	// Log gets what goes wrong. Nil discards.
	Log *slog.Logger
}

// Network is the network of one sandbox. All methods are safe for concurrent
// use.
type Network struct {
	dir       string
	log       *slog.Logger
	limits    Limits
	resolvers *Resolvers
	closeOwn  func() // resolvers that are this network's alone
	answers   *answerCache
	policy    atomic.Pointer[policyBox]
	events    *events
	names     *nameCache
	standIns  *standIns
	accounts  *accounts
	buffers   *bufferBudget
	arrivals  *rate.Limiter // of TCP connections out
	newFlows  *rate.Limiter
	questions *rate.Limiter // for names, of programs and of our own
	ledger    *ledger
	stale     stale
	changes   atomic.Uint64 // of what policies say; see era

	bandwidthOut, bandwidthIn atomic.Pointer[rate.Limiter] // nil: none
	connections               atomic.Int64                 // most that may be open

	proxy        atomic.Pointer[Proxy]
	proxyTrouble rate.Sometimes
	public       *Public // judges proxies
	interception Interception
	inside       *insideServer

	namespace *namespace
	link      *link
	stack     *stack.Stack
	flows     *udpFlows
	dnsSlots  chan struct{}
	ctx       context.Context // ends with the network
	cancel    context.CancelFunc
	counters  counters

	mu      sync.Mutex
	closed  bool
	open    map[closer]struct{}
	allowed map[closer]judged // those of open that a policy allowed
	leaving []leaving         // the one closed first is the first
	working sync.WaitGroup    // every goroutine that is not the stack's
	// stopTimer stops the end of what is stale.
	stopTimer func()
	end       func(ending) error // once
}

// ending is how a network ends for this process.
type ending int

const (
	closing   ending = iota // nothing stays
	detaching               // the namespace stays, for a process that adopts it
)

// policyBox lets an atomic pointer hold an interface.
type policyBox struct{ Policy }

// closer is something of a network that lives until the network does, at most.
type closer interface{ abort() }

// New makes the namespace, its device and the stack. ctx bounds the making
// only. On error nothing is left behind.
func New(ctx context.Context, cfg Config) (*Network, error) {
	return start(ctx, cfg, createNamespace)
}

// Adopt takes over the network that a daemon which is gone made in cfg.Dir. A
// sandbox running in it keeps its network; connections that were open are lost,
// and reset inside; those to the agent only after some seconds, within which the
// host should tell it (see hostapi.Init). The error is fs.ErrNotExist when there
// is no network to adopt.
func Adopt(ctx context.Context, cfg Config) (*Network, error) {
	return start(ctx, cfg, openNamespace)
}

func start(ctx context.Context, cfg Config, namespaceIn func(dir string) (*namespace, error)) (*Network, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if cfg.Proxy != nil {
		if err := cfg.Proxy.Check(); err != nil {
			return nil, err
		}
	}
	ns, err := namespaceIn(cfg.Dir)
	if err != nil {
		return nil, err
	}
	n := newNetwork(cfg, ns)
	var lost []stack.TransportEndpointID
	if n.ledger, lost, err = openLedger(cfg.Dir); err != nil {
		n.log.Warn("open connections are not noted; after a crash idle ones stay open inside", "dir", cfg.Dir, "error", err)
	}
	lost = n.stale.keepAgents(lost)
	if err := n.startStack(); err != nil {
		return nil, errors.Join(fmt.Errorf("network in %s: %w", cfg.Dir, err), n.Close())
	}
	if n.inside != nil {
		n.inside.start()
	}
	n.endInside(lost)
	n.stopTimer = n.endLater(lost)
	return n, nil
}

func newNetwork(cfg Config, ns *namespace) *Network {
	if cfg.Policy == nil {
		cfg.Policy = NewPublic()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	limits := cfg.Limits.withDefaults()
	n := &Network{
		dir:       cfg.Dir,
		log:       cfg.Log,
		limits:    limits,
		resolvers: cfg.Resolvers,
		closeOwn:  func() {},
		answers:   newAnswerCache(),
		events:    &events{notify: cfg.OnDecision},
		names:     newNameCache(limits.Names),
		accounts:  newAccounts(),
		buffers:   newBufferBudget(limits.BufferBytes),
		arrivals:  rate.NewLimiter(rate.Limit(limits.NewConnections), 2*limits.NewConnections),
		newFlows:  rate.NewLimiter(rate.Limit(limits.NewFlows), 2*limits.NewFlows),
		questions: rate.NewLimiter(rate.Limit(limits.Questions), 2*limits.Questions),
		inside:    newInsideServer(cfg.Inside),
		public:    NewPublic(),

		proxyTrouble: rate.Sometimes{Interval: proxyTroubleEvery},

		ledger:    &ledger{},
		namespace: ns,
		dnsSlots:  make(chan struct{}, limits.DNSInFlight),
		open:      map[closer]struct{}{},
		allowed:   map[closer]judged{},
		stopTimer: func() {},
	}
	if n.resolvers == nil {
		n.resolvers = NewResolvers()
		n.closeOwn = n.resolvers.Close
	}
	n.SetLimits(limits)
	n.ctx, n.cancel = context.WithCancel(context.Background())
	var once sync.Once
	var result, err error
	n.end = func(how ending) error {
		once.Do(func() { result = n.tearDown(how) })
		return result
	}
	n.SetPolicy(cfg.Policy)
	n.proxy.Store(cfg.Proxy)
	if n.standIns, err = openStandIns(cfg.Dir); err != nil {
		n.log.Warn("names that were looked up before are forgotten; programs look them up again", "dir", cfg.Dir, "error", err)
	}
	if cfg.Interceptor != nil {
		n.interception = cfg.Interceptor.Intercept(warden{n})
	}
	return n
}

// NamespacePath is the file to start the sandbox's engine in.
func (n *Network) NamespacePath() string { return n.namespace.path }

// SetPolicy makes p judge from now on. Connections that are open stay, see
// Recheck.
func (n *Network) SetPolicy(p Policy) { n.policy.Store(&policyBox{p}) }

// SetLimits changes Connections, for those to come, and BandwidthOut and BandwidthIn.
// The other limits stay.
func (n *Network) SetLimits(l Limits) {
	n.connections.Store(int64(l.withDefaults().Connections))
	n.bandwidthOut.Store(newBandwidth(l.BandwidthOut))
	n.bandwidthIn.Store(newBandwidth(l.BandwidthIn))
}

// Reset gives the device its address, route and neighbour again, which runsc
// takes off when it starts a sandbox. Call it when no sandbox runs in the
// namespace and before the next one starts.
func (n *Network) Reset() error { return n.namespace.configure() }

// Close ends every connection, those outside with a reset, and removes the stack,
// the device, the mount and the namespace. Frames that a held network kept back
// are dropped. A sandbox that still runs in it keeps a dead network. Close
// again, or after Detach, returns the first result.
func (n *Network) Close() error { return n.end(closing) }

// Detach is Close for a network that somebody is to adopt: a sandbox in it runs
// on, what it sends meanwhile is lost, and it hears of no connection's end.
func (n *Network) Detach() error { return n.end(detaching) }

func (n *Network) tearDown(how ending) error {
	var errs []error
	if how == detaching { // before the connections end, which are to stay in it
		errs = append(errs, n.ledger.close())
	}
	n.stopTimer()
	if n.inside != nil {
		n.inside.stop()
	}
	n.mu.Lock()
	n.closed = true
	open := n.open
	n.open, n.leaving = nil, nil // the stack aborts those leaving
	n.mu.Unlock()

	n.cancel()
	if n.link != nil {
		n.link.gate.destroy(how == detaching)
	}
	for c := range open {
		c.abort()
	}
	if n.interception != nil {
		n.interception.Close()
	}
	errs = append(errs, n.standIns.close())
	if n.stack != nil {
		n.stack.Close()
	}
	if how == detaching {
		errs = append(errs, n.namespace.closeFiles())
	} else {
		errs = append(errs, n.namespace.remove(), n.ledger.close(), removeLedger(n.dir))
	}
	if n.stack != nil {
		n.link.Wait() // the reader needs a lock that stack.Wait holds while it waits for it
		n.stack.Wait()
	}
	n.working.Wait()
	n.closeOwn()
	n.events.wait()
	return errors.Join(errs...)
}

// track registers c to be aborted with the network. It reports false, and c
// must be closed by the caller, when the network is closed.
func (n *Network) track(c closer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.open[c] = struct{}{}
	return true
}

func (n *Network) untrack(c closer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.open, c)
}

// Of closed connections that still have data for the sandbox, maxLeaving may stay as long
// as they like, and leavingAtMost for leavingTime: a burst of them is no sandbox that takes
// nothing.
const (
	maxLeaving    = 64
	leavingAtMost = 1024
	leavingTime   = 10 * time.Second
)

// leaving is a connection that was closed, with data the sandbox has not taken.
type leaving struct {
	*insideConn
	since time.Time
}

// leave lets a closed connection deliver what it has; beyond the limit the one
// closed first is reset.
func (n *Network) leave(c *insideConn) {
	n.mu.Lock()
	var oldest *insideConn
	n.leaving = slices.DeleteFunc(n.leaving, func(l leaving) bool { return !l.hasData() })
	n.leaving = append(n.leaving, leaving{c, time.Now()})
	if over := len(n.leaving); over > leavingAtMost || over > maxLeaving && time.Since(n.leaving[0].since) > leavingTime {
		oldest, n.leaving = n.leaving[0].insideConn, n.leaving[1:]
	}
	n.mu.Unlock()
	if oldest != nil {
		oldest.endpoint.Abort()
	}
}

// begin admits a goroutine that Close waits for; the caller calls
// n.working.Done at its end. It reports false when the network is closed.
func (n *Network) begin() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.working.Add(1)
	return true
}

// guard keeps a panic in the handling of hostile input from ending the daemon,
// and with it every sandbox. Defer it in each goroutine.
func (n *Network) guard(what string) {
	if p := recover(); p != nil {
		n.counters.panics.Add(1)
		n.log.Error("recovered from a panic in the gateway, please report it", "in", what, "panic", p, "stack", stackTrace())
	}
}
