package agent

import (
	"bufio"
	"bytes"
	"math"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/identity"
)

// usage is the answer of /metrics; the names are E2B's. Memory and disk are
// bytes but for the MiB fields.
type usage struct {
	TS          int64   `json:"ts"` // Unix seconds
	CPUCount    int     `json:"cpu_count"`
	CPUUsedPct  float64 `json:"cpu_used_pct"` // of all CPUs together, since the last call
	MemTotal    uint64  `json:"mem_total"`
	MemUsed     uint64  `json:"mem_used"`
	MemCache    uint64  `json:"mem_cache"`
	MemTotalMiB uint64  `json:"mem_total_mib"`
	MemUsedMiB  uint64  `json:"mem_used_mib"`
	DiskUsed    uint64  `json:"disk_used"`
	DiskTotal   uint64  `json:"disk_total"`
}

// meter measures the sandbox from inside.
type meter struct {
	who *identity.State

	mu   sync.Mutex
	at   time.Time
	busy time.Duration
}

func newMeter(who *identity.State) *meter {
	return &meter{who: who, at: time.Now(), busy: busyTime()}
}

func (m *meter) ServeHTTP(w http.ResponseWriter, _ *http.Request) { writeJSON(w, m.measure()) }

func (m *meter) measure() usage {
	u := usage{TS: time.Now().Unix(), CPUCount: runtime.NumCPU()}
	u.CPUUsedPct = m.cpu(u.CPUCount)
	total, available, cached := memory()
	used := total - min(available, total)
	if limit := uint64(max(m.who.MemoryLimit(), 0)); limit > 0 && limit < total {
		total = limit
	}
	u.MemTotal, u.MemUsed, u.MemCache = total, min(used, total), cached
	u.MemTotalMiB, u.MemUsedMiB = u.MemTotal>>20, u.MemUsed>>20
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err == nil {
		u.DiskTotal = fs.Blocks * uint64(fs.Bsize)
		u.DiskUsed = u.DiskTotal - min(fs.Bfree*uint64(fs.Bsize), u.DiskTotal)
	}
	return u
}

func (m *meter) cpu(cpus int) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, busy := time.Now(), busyTime()
	elapsed := now.Sub(m.at) * time.Duration(cpus)
	spent := max(busy-m.busy, 0)
	m.at, m.busy = now, busy
	if elapsed <= 0 {
		return 0
	}
	return min(math.Round(float64(spent)/float64(elapsed)*10000)/100, 100)
}

// tick is the unit of the times in /proc, USER_HZ.
const tick = time.Second / 100

// busyTime is the CPU time that was used since the start: by /proc/stat, or
// where that tells nothing (gVisor) by adding up all processes and the children
// they have waited for.
func busyTime() time.Duration {
	if busy := systemTime(); busy > 0 {
		return busy
	}
	names, err := readNames("/proc")
	if err != nil {
		return 0
	}
	var ticks uint64
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		line, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		// Fields 14 to 17 are utime, stime, cutime, cstime; the third follows
		// the name.
		f := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:])
		for i := 11; i <= 14 && i < len(f); i++ {
			ticks += number(f[i])
		}
	}
	return time.Duration(ticks) * tick
}

func readNames(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// systemTime reads the line "cpu user nice system idle iowait irq softirq steal".
func systemTime() time.Duration {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return 0
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		return 0
	}
	var ticks uint64
	for i, field := range strings.Fields(line) {
		if i >= 1 && i <= 7 && i != 4 && i != 5 {
			ticks += number([]byte(field))
		}
	}
	return time.Duration(ticks) * tick
}

// memory reads /proc/meminfo, bytes.
func memory() (total, available, cached uint64) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, 0
	}
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib := number(f[1]) << 10
		switch string(f[0]) {
		case "MemTotal:":
			total = kib
		case "MemAvailable:":
			available = kib
		case "Cached:":
			cached = kib
		}
	}
	return total, available, cached
}

func number(digits []byte) uint64 {
	n, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
