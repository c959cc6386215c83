package sandbox

import (
	"fmt"
	"strconv"
	"time"

	"golang.org/x/time/rate"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// admit checks the key's quota and enters new sandboxes as starting, all or none,
// in one step, so that no two creates share the last place. On success the caller
// owes m.work a Done for each.
func (m *Manager) admit(q Quota, sandboxes ...*sandbox) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil {
		return ErrStopping
	}
	if err := m.checkQuotaLocked(q, sandboxes...); err != nil {
		return err
	}
	for _, s := range sandboxes {
		m.live[s.id] = s
	}
	m.work.Add(len(sandboxes))
	return nil
}

// withdraw takes back the admission of a sandbox of which nothing was made.
func (m *Manager) withdraw(s *sandbox) {
	m.mu.Lock()
	delete(m.live, s.id)
	m.mu.Unlock()
	m.work.Done()
}

// readmit checks the quota for a paused sandbox and makes it resuming, in one step.
// On success the caller owes m.work a Done.
func (m *Manager) readmit(q Quota, s *sandbox) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil {
		return ErrStopping
	}
	if err := m.checkQuotaLocked(q, s); err != nil {
		return err
	}
	if err := s.setState(Resuming); err != nil {
		return err
	}
	m.work.Add(1)
	return nil
}

// QuotaOf is what a key is held to.
func QuotaOf(k store.Key) Quota {
	return Quota{
		Sandboxes:   k.MaxSandboxes,
		CreateRate:  k.MaxCreateRate,
		CPUs:        k.MaxCPUs,
		MemoryBytes: k.MaxMemory,
		DiskBytes:   k.MaxDisk,
		Snapshots:   k.MaxSnapshots,
		Timeout:     k.MaxTimeout,
	}
}

// Holds returns a *LimitError when a sandbox of a template is more than the quota by
// itself.
func (q Quota) Holds(t store.Template) error {
	var u usage
	u.count(t.CPUs, t.MemoryBytes, t.DiskBytes)
	return u.within(q)
}

// Reserve counts a template that is being built as a running sandbox of its key, until
// release is called. *LimitError when the quota has no room for one more.
func (m *Manager) Reserve(q Quota, t store.Template) (release func(), err error) {
	s := newSandbox(CreateRequest{KeyID: t.KeyID}, t)
	q.CreateRate = 0
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.checkQuotaLocked(q, s); err != nil {
		return nil, err
	}
	m.reserved[s] = true
	return func() {
		m.mu.Lock()
		delete(m.reserved, s)
		m.mu.Unlock()
	}, nil
}

func (q Quota) bound(timeout time.Duration) time.Duration {
	if q.Timeout > 0 {
		return min(timeout, q.Timeout)
	}
	return timeout
}

// usage is what a key has, in the words of Quota.
type usage struct {
	sandboxes, cpus int
	memory, disk    int64
}

func (u *usage) add(s *sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.info.State {
	case Ending, Ended, Failed:
		return
	case Paused:
		if s.saved != nil {
			u.disk += s.saved.Bytes
		}
		return
	}
	u.count(s.info.CPUs, s.info.MemoryBytes, s.info.DiskBytes)
}

func (u *usage) count(cpus int, memory, disk int64) {
	u.sandboxes++
	u.cpus += cpus
	u.memory += memory
	u.disk += disk
}

// within returns a *LimitError when it is more than a quota.
func (u *usage) within(q Quota) error {
	switch {
	case q.Sandboxes > 0 && u.sandboxes > q.Sandboxes:
		return &LimitError{What: "sandboxes at once", Limit: strconv.Itoa(q.Sandboxes), Flag: "max-sandboxes"}
	case q.CPUs > 0 && u.cpus > q.CPUs:
		return &LimitError{What: "processors at once", Limit: strconv.Itoa(q.CPUs), Flag: "max-cpus"}
	case q.MemoryBytes > 0 && u.memory > q.MemoryBytes:
		return &LimitError{What: "of memory at once", Limit: mebibytes(q.MemoryBytes), Flag: "max-memory"}
	case q.DiskBytes > 0 && u.disk > q.DiskBytes:
		return &LimitError{What: "of disk", Limit: mebibytes(q.DiskBytes), Flag: "max-disk"}
	}
	return nil
}

// checkQuotaLocked tells whether the key may have these sandboxes running besides
// what it has. They have one owner. m.mu is held.
func (m *Manager) checkQuotaLocked(q Quota, more ...*sandbox) error {
	if q == (Quota{}) {
		return nil
	}
	key := more[0].keyID
	var u usage
	for _, s := range m.live {
		if s.keyID == key && s != more[0] {
			u.add(s)
		}
	}
	for s := range m.reserved {
		if s.keyID == key {
			u.add(s)
		}
	}
	for _, s := range more {
		u.count(s.info.CPUs, s.info.MemoryBytes, s.info.DiskBytes)
	}
	if err := u.within(q); err != nil {
		return err
	}
	return m.checkRateLocked(q, key, len(more))
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

// checkRateLocked takes n tokens of the key's rate. A key that rested may make as
// many at once as it may make in a second, one at least.
func (m *Manager) checkRateLocked(q Quota, key string, n int) error {
	if q.CreateRate <= 0 {
		return nil
	}
	now := time.Now()
	burst := max(1, int(q.CreateRate))
	limiter := m.rates[key]
	if limiter == nil {
		limiter = rate.NewLimiter(rate.Limit(q.CreateRate), burst)
		m.rates[key] = limiter
	}
	if limiter.Limit() != rate.Limit(q.CreateRate) {
		limiter.SetLimitAt(now, rate.Limit(q.CreateRate))
		limiter.SetBurstAt(now, burst)
	}
	// More than a burst at once is taken as a debt, so that a fork of many is
	// possible at all.
	taken := limiter.ReserveN(now, min(n, burst))
	if wait := taken.DelayFrom(now); wait > 0 {
		taken.CancelAt(now)
		return &LimitError{
			What: "sandboxes started a second", Limit: strconv.FormatFloat(q.CreateRate, 'g', -1, 64),
			Flag: "max-create-rate", RetryAfter: wait,
		}
	}
	for left := n - burst; left > 0; left -= burst {
		limiter.ReserveN(now, min(left, burst))
	}
	return nil
}
