package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// kind is what has to be equal for a sandbox to be started in a shell.
type kind struct {
	engine, image, stamp, agent string
	cpus                        int
	memory, disk                int64
	volumes                     bool
}

func kindOf(s *sandbox) kind {
	return kind{
		engine: s.from.Engine, image: s.template.Image, stamp: s.from.Image, agent: s.from.Agent,
		cpus: s.info.CPUs, memory: s.info.MemoryBytes, disk: s.info.DiskBytes,
		volumes: s.from.Volumes,
	}
}

// shell is a network and an engine that waits to be told what to restore, in a
// folder of its own beside those of the sandboxes: half of the time a start
// takes, spent before anybody waits for it. It holds some 30 MiB of memory.
type shell struct {
	run   *run
	owner *atomic.Pointer[sandbox] // the sandbox that was started in it
	timer *time.Timer              // ends it when nobody wants it
}

const (
	// shellsMost bounds the shells of all kinds.
	shellsMost = 8
	// shellLife is how long a shell waits for a sandbox.
	shellLife = 15 * time.Minute
	// shellPause is for how long no sandbox must have been starting before a shell is
	// made: it must not take the time it is to save.
	shellPause    = 100 * time.Millisecond
	shellPatience = 20 * time.Second
)

// pool holds shells. A kind gets some when a sandbox of it was started.
type pool struct {
	m *Manager

	mu     sync.Mutex
	shells map[kind][]*shell
	count  int // of shells, those being made included
	making map[kind]bool
	closed bool
}

func newPool(m *Manager) *pool {
	return &pool{m: m, shells: map[kind][]*shell{}, making: map[kind]bool{}}
}

// take gives s a shell of a kind; nil when there is none.
func (p *pool) take(k kind, s *sandbox) *shell {
	p.mu.Lock()
	defer p.mu.Unlock()
	ready := p.shells[k]
	if len(ready) == 0 {
		return nil
	}
	sh := ready[len(ready)-1]
	p.forget(k, sh)
	sh.timer.Stop()
	sh.owner.Store(s)
	return sh
}

// mark is a file in the folder of a shell that no sandbox has: for people and
// programs that look for what sandboxes leave.
func (p *pool) mark(sh *shell) string { return filepath.Join(p.m.sandboxDir(sh.run.id), "shell") }

// forget takes a shell out; false when it was not in any more. p.mu is held.
func (p *pool) forget(k kind, sh *shell) bool {
	i := slices.Index(p.shells[k], sh)
	if i < 0 {
		return false
	}
	p.shells[k] = slices.Delete(p.shells[k], i, i+1)
	if len(p.shells[k]) == 0 {
		delete(p.shells, k)
	}
	p.count--
	return true
}

// want has shells of a kind made, when there is time. It is called by work that
// the manager waits for.
func (p *pool) want(k kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	enough := len(p.shells[k]) >= p.m.config.Pool || p.count >= shellsMost
	if p.closed || enough || p.making[k] || k.engine != p.m.config.Engine.Version() {
		return
	}
	p.making[k] = true
	p.count++
	p.m.work.Go(func() { p.fill(k) })
}

// fill makes shells until there are enough.
func (p *pool) fill(k kind) {
	sh, err := p.make(k)
	if err != nil && p.m.ctx.Err() == nil {
		p.m.config.Log.Warn("nothing could be prepared for the next sandbox", "error", err)
	}
	p.mu.Lock()
	delete(p.making, k)
	if err != nil {
		p.count--
	} else {
		p.shells[k] = append(p.shells[k], sh)
		sh.timer = time.AfterFunc(shellLife, func() { p.expire(k, sh) })
	}
	p.mu.Unlock()
	if err == nil {
		p.want(k)
	}
}

func (p *pool) make(k kind) (_ *shell, err error) {
	m := p.m
	if err := p.waitForQuiet(); err != nil {
		return nil, err
	}
	defer m.giveTurn()
	ctx, cancel := context.WithTimeout(m.ctx, shellPatience)
	defer cancel()
	sh := &shell{run: newRun(newID()), owner: &atomic.Pointer[sandbox]{}}
	if sh.run.lock, err = m.claim(sh.run.id); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.remove(sh))
		}
	}()
	if err := os.WriteFile(p.mark(sh), nil, 0o600); err != nil {
		return nil, err
	}
	err = m.openNetwork(ctx, sh.run, NetworkConfig{Owner: func() *Owner {
		if s := sh.owner.Load(); s != nil {
			return s.owner.Load()
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(m.engineDir(sh.run.id), 0o700); err != nil {
		return nil, err
	}
	if k.volumes {
		if err := m.openVolumes(sh.run); err != nil {
			return nil, err
		}
	}
	return sh, m.config.Engine.Prepare(ctx, m.specOf(k, sh.run))
}

// waitForQuiet takes a turn when nobody else has one.
func (p *pool) waitForQuiet() error {
	for {
		select {
		case <-p.m.ctx.Done():
			return p.m.ctx.Err()
		case <-time.After(shellPause):
		}
		if len(p.m.starting) == 0 {
			return p.m.takeTurn(p.m.ctx)
		}
	}
}

// expire removes a shell that nobody took.
func (p *pool) expire(k kind, sh *shell) {
	p.mu.Lock()
	ours := p.forget(k, sh)
	p.mu.Unlock()
	if ours {
		p.discard(sh)
	}
}

// close removes all shells; no more are made.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	all := p.shells
	p.shells, p.count = map[kind][]*shell{}, 0
	p.mu.Unlock()
	var wait sync.WaitGroup
	for _, ready := range all {
		for _, sh := range ready {
			sh.timer.Stop()
			wait.Go(func() { p.discard(sh) })
		}
	}
	wait.Wait()
}

func (p *pool) discard(sh *shell) {
	if err := p.remove(sh); err != nil {
		p.m.config.Log.Error("a shell left something behind; the next start of a server removes it", "error", err)
	}
}

// remove ends a shell and removes all of it.
func (p *pool) remove(sh *shell) error {
	ctx := context.WithoutCancel(p.m.ctx)
	sh.run.leave()
	errs := []error{p.m.config.Engine.Sweep(ctx, sh.run.id, p.m.engineDir(sh.run.id))}
	if sh.run.network != nil {
		sh.run.agent.close()
		errs = append(errs, sh.run.network.Close())
	}
	errs = append(errs, p.m.closeVolumes(sh.run.id))
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, sh.run.lock.Close())
	}
	return p.m.removeRun(sh.run, "")
}
