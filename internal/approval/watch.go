package approval

import (
	"context"
	"slices"
	"time"
)

// maxUnseen is how many holds may have changed that a watcher has not taken.
const maxUnseen = 4096

// Filter selects holds; zero values select all.
type Filter struct {
	SandboxID string
	KeyID     string  // of the sandbox's owner
	States    []State // empty: in any
	Before    string  // the id of one: only older ones
	Most      int     // of List; 0: 100
}

// The most that List returns where a filter says nothing, and in any case.
const (
	defaultList = 100
	maxList     = 1000
)

func (f Filter) selects(h Hold) bool {
	return (f.SandboxID == "" || f.SandboxID == h.Subject.SandboxID) &&
		(f.KeyID == "" || f.KeyID == h.Subject.KeyID) &&
		(len(f.States) == 0 || slices.Contains(f.States, h.State))
}

// List returns holds, newest first.
func (d *Desk) List(ctx context.Context, f Filter) ([]Hold, error) {
	records, err := d.config.Store.Holds(ctx, f.record())
	if err != nil {
		return nil, err
	}
	holds := []Hold{}
	for _, r := range records {
		h, err := fromRecord(r)
		if err != nil {
			return nil, err
		}
		holds = append(holds, d.live(h))
	}
	return holds, nil
}

// Get finds a hold.
func (d *Desk) Get(ctx context.Context, id string) (Hold, error) {
	h, err := d.stored(ctx, id)
	if err != nil {
		return Hold{}, err
	}
	return d.live(h), nil
}

// live adds what is known here of one that waits.
func (d *Desk) live(h Hold) Hold {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.pending[h.ID]; p != nil && h.State == Pending {
		return p.hold
	}
	return h
}

// watcher is who is told of changes.
type watcher struct {
	filter Filter
	unseen map[string]Hold
	order  []string // of unseen
	wake   chan struct{}
	lost   bool // it is too slow
}

// Watch returns the pending holds that a filter selects and then each hold that it
// selects when it changes. Of several changes that the reader has not taken it gets the
// last. The channel is closed when ctx ends, the desk is closed, or the reader is far
// behind; it may watch again.
func (d *Desk) Watch(ctx context.Context, f Filter) <-chan Hold {
	w := &watcher{filter: f, unseen: map[string]Hold{}, wake: make(chan struct{}, 1)}
	to := make(chan Hold)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		close(to)
		return to
	}
	waiting := make([]Hold, 0, len(d.pending))
	for _, p := range d.pending {
		waiting = append(waiting, p.hold)
	}
	slices.SortFunc(waiting, func(a, b Hold) int { return a.CreatedAt.Compare(b.CreatedAt) })
	for _, h := range waiting {
		w.add(h)
	}
	d.watchers[w] = struct{}{}
	d.working.Go(func() {
		defer close(to)
		d.serve(ctx, w, to)
	})
	return to
}

// serve hands a watcher what it is told.
func (d *Desk) serve(ctx context.Context, w *watcher, to chan<- Hold) {
	defer func() {
		d.mu.Lock()
		delete(d.watchers, w)
		d.mu.Unlock()
	}()
	for {
		h, some, lost := d.next(w)
		switch {
		case lost:
			return
		case some:
			select {
			case to <- h:
			case <-ctx.Done():
				return
			case <-d.done:
				return
			}
		default:
			select {
			case <-w.wake:
			case <-ctx.Done():
				return
			case <-d.done:
				return
			}
		}
	}
}

func (d *Desk) next(w *watcher) (h Hold, some, lost bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w.lost || len(w.order) == 0 {
		return Hold{}, false, w.lost
	}
	id := w.order[0]
	w.order = w.order[1:]
	h = w.unseen[id]
	delete(w.unseen, id)
	return h, true, false
}

// add notes a hold for the reader. mu of the desk is held.
func (w *watcher) add(h Hold) {
	if !w.filter.selects(h) {
		return
	}
	if _, known := w.unseen[h.ID]; !known {
		w.order = append(w.order, h.ID)
	}
	w.unseen[h.ID] = h
	w.lost = w.lost || len(w.order) > maxUnseen
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// tell tells watchers of a hold. mu is held.
func (d *Desk) tell(h Hold) {
	for w := range d.watchers {
		w.add(h)
	}
}

// tellSoon tells them once for all that happens within tellEvery: a program may try
// again thousands of times a second. mu is held.
func (d *Desk) tellSoon(p *pending) {
	if p.telling || len(d.watchers) == 0 {
		return
	}
	p.telling = true
	time.AfterFunc(tellEvery, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		p.telling = false
		if p.hold.State == Pending {
			d.tell(p.hold)
		}
	})
}
