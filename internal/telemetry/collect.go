package telemetry

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Core is what is looked up when somebody collects.
type Core interface {
	List(sandbox.Filter) []sandbox.Info
	Usage() sandbox.Usage
}

// Watch has the numbers of the core told with the others. Call it once.
func (t *Telemetry) Watch(core Core) {
	if t != nil {
		t.registry.MustRegister(coreCollector{core})
	}
}

// Gauge has a number told that somebody else knows, under a name without the
// prefix of the product.
func (t *Telemetry) Gauge(name, help string, value func() float64) {
	if t != nil {
		t.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, value))
	}
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

var (
	sandboxesDesc = desc("sandboxes", "Sandboxes there are, by state.", "state")
	cpuDesc       = desc("sandboxes_cpu_seconds_total", "Processor time that sandboxes used, their engines included.")
	memoryDesc    = desc("sandboxes_memory_bytes", "Memory of all sandboxes: of the processes inside, of their engines, and page cache.", "kind")
	diskDesc      = desc("sandboxes_disk_bytes", "Disk that running sandboxes have written and not freed.")
)

// states are always told, so that a state nobody is in is 0 and not missing.
var states = []sandbox.State{sandbox.Starting, sandbox.Running, sandbox.Pausing, sandbox.Paused, sandbox.Resuming, sandbox.Ending}

type coreCollector struct{ core Core }

func (coreCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sandboxesDesc, cpuDesc, memoryDesc, diskDesc} {
		to <- d
	}
}

func (c coreCollector) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	counts := map[sandbox.State]int64{}
	for _, info := range c.core.List(sandbox.Filter{}) {
		counts[info.State]++
	}
	for _, state := range states {
		gauge(sandboxesDesc, counts[state], string(state))
	}
	used := c.core.Usage()
	to <- prometheus.MustNewConstMetric(cpuDesc, prometheus.CounterValue, used.CPUTime.Seconds())
	gauge(memoryDesc, used.MemoryBytes, "inside")
	gauge(memoryDesc, used.EngineBytes, "engine")
	gauge(memoryDesc, used.CacheBytes, "cache")
	gauge(diskDesc, used.DiskBytes)
}

// networks sums up the gateways of all sandboxes, closed ones included, so that
// totals never fall.
type networks struct {
	mu   sync.Mutex
	open map[*network]struct{}
	past gateway.Stats
}

func newNetworks() *networks { return &networks{open: map[*network]struct{}{}} }

// Network is a gateway, as far as it is counted.
type Network interface {
	sandbox.Network
	Stats() gateway.Stats
}

// network is a gateway that is counted until it is closed.
type network struct {
	Network
	of *networks
}

// Network has a gateway counted with the others.
func (t *Telemetry) Network(n Network) sandbox.Network {
	if t == nil {
		return n
	}
	counted := &network{n, t.networks}
	t.networks.mu.Lock()
	defer t.networks.mu.Unlock()
	t.networks.open[counted] = struct{}{}
	return counted
}

func (n *network) Close() error {
	err := n.Network.Close()
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	if _, open := n.of.open[n]; open {
		delete(n.of.open, n)
		n.of.past = sum(n.of.past, n.Stats())
		n.of.past.OpenConnections, n.of.past.UDPFlows = 0, 0
	}
	return err
}

func (n *networks) total() gateway.Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	total := n.past
	for open := range n.open {
		total = sum(total, open.Stats())
	}
	return total
}

func sum(a, b gateway.Stats) gateway.Stats {
	a.BytesOut += b.BytesOut
	a.BytesIn += b.BytesIn
	a.FramesRefused += b.FramesRefused
	a.ConnectionsOut += b.ConnectionsOut
	a.ConnectionsIn += b.ConnectionsIn
	a.OpenConnections += b.OpenConnections
	a.UDPFlows += b.UDPFlows
	a.Questions += b.Questions
	a.Denied += b.Denied
	a.OverLimit += b.OverLimit
	a.EventsDropped += b.EventsDropped
	a.Panics += b.Panics
	return a
}

var (
	bytesDesc       = desc("gateway_bytes_total", "Bytes in frames from (out) and to (in) sandboxes.", "direction")
	connectionsDesc = desc("gateway_connections_total", "TCP connections opened to the outside (out) and into sandboxes (in).", "direction")
	openDesc        = desc("gateway_open_connections", "TCP connections to the outside that are open.")
	flowsDesc       = desc("gateway_udp_flows", "UDP flows to the outside that are open.")
	questionsDesc   = desc("gateway_dns_questions_total", "Names that sandboxes asked for.")
	refusalsDesc    = desc("gateway_refusals_total", "What was refused: by policy, over a limit, frames that are malformed or not carried.", "reason")
	droppedDesc     = desc("gateway_decisions_untold_total", "Decisions that were not told because there were too many.")
	panicsDesc      = desc("gateway_panics_total", "Failures of the gateway that it survived; each is a bug.")
)

// Describe implements prometheus.Collector.
func (n *networks) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{bytesDesc, connectionsDesc, openDesc, flowsDesc, questionsDesc, refusalsDesc, droppedDesc, panicsDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (n *networks) Collect(to chan<- prometheus.Metric) {
	total := n.total()
	counter := func(d *prometheus.Desc, value uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	counter(bytesDesc, total.BytesOut, "out")
	counter(bytesDesc, total.BytesIn, "in")
	counter(connectionsDesc, total.ConnectionsOut, "out")
	counter(connectionsDesc, total.ConnectionsIn, "in")
	counter(questionsDesc, total.Questions)
	counter(refusalsDesc, total.Denied, "policy")
	counter(refusalsDesc, total.OverLimit, "limit")
	counter(refusalsDesc, total.FramesRefused, "frame")
	counter(droppedDesc, total.EventsDropped)
	counter(panicsDesc, total.Panics)
	to <- prometheus.MustNewConstMetric(openDesc, prometheus.GaugeValue, float64(total.OpenConnections))
	to <- prometheus.MustNewConstMetric(flowsDesc, prometheus.GaugeValue, float64(total.UDPFlows))
}
