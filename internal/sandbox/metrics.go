package sandbox

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/engine"
)

const (
	// sampleEvery is from one point to the next (E2B's).
	sampleEvery = 5 * time.Second
	// keptPoints is how many points are kept of one sandbox: those of a day. They
	// take 20 bytes each, so 340 KiB, and a quarter more before old ones go.
	keptPoints = int(24 * time.Hour / sampleEvery)
	// savePoints is how many points are written to disk at once, those of a minute:
	// a daemon that is killed loses no more.
	savePoints = 12
)

// Metrics implements Sandboxes.
func (m *Manager) Metrics(id string, from, to time.Time) ([]Metric, error) {
	s, err := m.find(id)
	if err != nil {
		return nil, err
	}
	return s.metrics.window(from, to), nil
}

// Usage is what all sandboxes of a manager use.
type Usage struct {
	CPUTime     time.Duration // since the manager was made
	MemoryBytes int64         // of the processes inside
	EngineBytes int64         // memory of the engine itself
	CacheBytes  int64         // page cache
	DiskBytes   int64
}

// Usage sums up what was measured last.
func (m *Manager) Usage() Usage {
	total := Usage{CPUTime: time.Duration(m.cpuTime.Load())}
	for _, s := range m.all() {
		s.metrics.addTo(&total)
	}
	return total
}

// sample measures every sandbox until the manager closes: each at the seconds
// that sampleEvery divides, and once a second after it started, so that nobody
// waits for the first point. Such a second that passes while there is no time to
// measure has its points by the next look.
func (m *Manager) sample() {
	last := time.Now().Truncate(sampleEvery)
	for {
		next := time.Now().Truncate(time.Second).Add(time.Second)
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(time.Until(next)):
		}
		at, aligned := next, next.Truncate(sampleEvery)
		due := !aligned.Equal(last)
		if due {
			at, last = aligned, aligned
		}
		for _, s := range m.all() {
			m.sampleOne(s, at, due)
			if due {
				s.log.save()
			}
		}
	}
}

func (m *Manager) sampleOne(s *sandbox, now time.Time, due bool) {
	run, err := s.running()
	if err != nil {
		s.metrics.rest()
		return
	}
	m.cpuTime.Add(int64(s.metrics.sample(m.ctx, run.instance, now, due)))
}

// openHistory takes over the metrics and the log that an earlier process left in
// the sandbox's folder, and keeps them there from now on. A sandbox without a past
// is better than none, so trouble is only logged.
func (m *Manager) openHistory(s *sandbox) {
	dir, info := m.sandboxDir(s.id), s.snapshotInfo()
	limits := Metric{CPUs: info.CPUs, MemoryTotalBytes: info.MemoryBytes, DiskTotalBytes: info.DiskBytes}
	if err := errors.Join(s.metrics.open(filepath.Join(dir, "metrics"), limits), s.log.open(filepath.Join(dir, "log"))); err != nil {
		m.config.Log.Error("past metrics or log cannot be read", "sandbox", s.id, "error", err)
	}
}

// closeHistory saves metrics and log; nothing is written to the folder after it.
// Calling it again does nothing.
func (m *Manager) closeHistory(s *sandbox) {
	if err := errors.Join(s.metrics.close(), s.log.close()); err != nil {
		m.config.Log.Error("metrics or log could not be saved", "sandbox", s.id, "error", err)
	}
}

// point is a Metric as it is kept, in memory and on disk.
type point struct {
	At                  uint32 // Unix seconds
	CPU                 uint32 // thousandths of a percent
	Memory, Cache, Disk uint32 // KiB
}

const pointBytes = 20

// metricsHeader begins the file of points, in the place of one.
var metricsHeader = [pointBytes]byte([]byte("tombolo metrics 1\n\x00\x00"))

// series are the points of one sandbox, oldest first, over all its runs.
type series struct {
	mu       sync.Mutex
	limits   Metric // the totals
	points   []point
	saved    int             // of points, those in the file
	file     string          // empty while nothing is saved
	inFile   int             // points in the file, header not counted
	instance engine.Instance // of the run that was measured last; nil between runs
	before   usedCPU         // of the instance, when it was looked at last
	begun    bool            // the instance has a point
	now      engine.Stats    // of the instance
}

// usedCPU is the processor time that an instance had used at a time.
type usedCPU struct {
	at   time.Time
	time time.Duration
}

// sample takes a point when it is due or the run of the instance has none yet,
// and tells the processor time used since it was last looked at. The first look
// at a run only tells from where that counts.
func (s *series) sample(ctx context.Context, instance engine.Instance, now time.Time, due bool) (spent time.Duration) {
	s.mu.Lock()
	begun := s.begun && s.instance == instance
	s.mu.Unlock()
	if begun && !due {
		return 0
	}
	stats, err := instance.Stats(ctx)
	if err != nil {
		return 0 // it is ending
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, first := s.before, s.instance != instance
	s.instance, s.before, s.now = instance, usedCPU{time.Now(), stats.CPUTime}, stats
	if first {
		s.begun = false
		return 0
	}
	s.begun = true
	spent = max(0, stats.CPUTime-before.time)
	s.add(point{
		At:     uint32(now.Unix()),
		CPU:    cpuShare(spent, s.before.at.Sub(before.at), s.limits.CPUs),
		Memory: kib(min(stats.MemoryBytes, s.limits.MemoryTotalBytes)),
		Cache:  kib(stats.CacheBytes),
		Disk:   kib(min(stats.DiskBytes, s.limits.DiskTotalBytes)),
	})
	if len(s.points)-s.saved >= savePoints {
		_ = s.save() // tried again with the next point
	}
	return spent
}

// rest says that there is no run any more.
func (s *series) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.instance != nil {
		s.instance, s.now, s.begun = nil, engine.Stats{}, false
		_ = s.save() // tried again when it is closed
	}
}

func cpuShare(spent, elapsed time.Duration, cpus int) uint32 {
	available := float64(elapsed) * float64(max(cpus, 1))
	if available <= 0 {
		return 0
	}
	return uint32(math.Round(min(float64(spent)/available, 1) * 100_000))
}

func kib(bytes int64) uint32 { return uint32(min(max(bytes, 0)>>10, math.MaxUint32)) }

// add appends a point. One that is not later than those before, because the
// clock was set back, takes their place.
func (s *series) add(p point) {
	for len(s.points) > 0 && s.points[len(s.points)-1].At >= p.At {
		s.points = s.points[:len(s.points)-1]
	}
	if len(s.points) >= keptPoints*5/4 {
		old := len(s.points) - keptPoints + 1
		s.points = s.points[:copy(s.points, s.points[old:])]
		s.saved -= old
	}
	s.saved = max(0, min(s.saved, len(s.points)))
	s.points = append(s.points, p)
}

// window returns the points from one time to another; zero times are no bounds.
func (s *series) window(from, to time.Time) []Metric {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, end := max(0, len(s.points)-keptPoints), len(s.points)
	if !from.IsZero() {
		first = max(first, sort.Search(end, func(i int) bool { return !s.points[i].time().Before(from) }))
	}
	if !to.IsZero() {
		end = sort.Search(end, func(i int) bool { return s.points[i].time().After(to) })
	}
	found := make([]Metric, 0, max(0, end-first))
	for i := first; i < end; i++ {
		found = append(found, s.points[i].metric(s.limits))
	}
	return found
}

func (p point) time() time.Time { return time.Unix(int64(p.At), 0).UTC() }

func (p point) metric(limits Metric) Metric {
	limits.Time = p.time()
	limits.CPUPercent = float64(p.CPU) / 1000
	limits.MemoryBytes = int64(p.Memory) << 10
	limits.MemoryCacheBytes = int64(p.Cache) << 10
	limits.DiskBytes = int64(p.Disk) << 10
	return limits
}

func (s *series) addTo(total *Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	total.MemoryBytes += s.now.MemoryBytes
	total.EngineBytes += s.now.EngineBytes
	total.CacheBytes += s.now.CacheBytes
	total.DiskBytes += s.now.DiskBytes
}

// open reads the points of a file and adds to it from now on. The file may end
// in the middle of a point when its writer was killed.
func (s *series) open(file string, limits Metric) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == file {
		return nil
	}
	raw, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.file, s.inFile, s.limits = file, 0, limits
	if len(raw) < pointBytes || [pointBytes]byte(raw) != metricsHeader {
		return nil // none of ours, or none: the first save makes it new
	}
	for raw = raw[pointBytes:]; len(raw) >= pointBytes; raw = raw[pointBytes:] {
		s.inFile++
		p := decodePoint(raw)
		if p.At > 0 { // power was lost before the disk had it
			s.add(p)
		}
	}
	s.saved = len(s.points)
	return nil
}

// close saves what is not saved yet and ends the measuring.
func (s *series) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.save()
	s.instance, s.file, s.now = nil, "", engine.Stats{}
	return err
}

// save appends the new points to the file, or writes it anew when it is missing
// or has grown to twice of what is kept. What cannot be saved stays in memory
// for the next time.
func (s *series) save() error {
	if s.file == "" || s.saved == len(s.points) {
		return nil
	}
	if s.inFile == 0 || s.inFile >= 2*keptPoints {
		raw := encodePoints(metricsHeader[:], s.points)
		if err := replaceFile(s.file, raw); err != nil {
			return err
		}
		s.inFile, s.saved = len(s.points), len(s.points)
		return nil
	}
	f, err := os.OpenFile(s.file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	fresh := s.points[s.saved:]
	// At a place, so that a half-written point is written over.
	_, err = f.WriteAt(encodePoints(nil, fresh), int64(1+s.inFile)*pointBytes)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	s.inFile += len(fresh)
	s.saved = len(s.points)
	return nil
}

func encodePoints(to []byte, points []point) []byte {
	for _, p := range points {
		for _, field := range [...]uint32{p.At, p.CPU, p.Memory, p.Cache, p.Disk} {
			to = binary.LittleEndian.AppendUint32(to, field)
		}
	}
	return to
}

func decodePoint(raw []byte) point {
	field := func(i int) uint32 { return binary.LittleEndian.Uint32(raw[4*i:]) }
	return point{At: field(0), CPU: field(1), Memory: field(2), Cache: field(3), Disk: field(4)}
}

// replaceFile writes a file whole or not at all.
func replaceFile(name string, content []byte) error {
	temporary := name + ".new"
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return os.Rename(temporary, name)
}
