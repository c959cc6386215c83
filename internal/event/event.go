// Package event keeps what happens to sandboxes and tells webhooks of it. It
// owns the recording of events, the rules for webhooks, and the delivery: what is
// tried when, how often and where to. How an event looks on the wire is a
// dialect's business; it comes in as a [Format].
package event

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// What is kept of each key's events, and of each webhook's deliveries once they
// have ended. What waits for delivery goes with its event, so the queue has the
// same bounds.
const (
	Keep           = 7 * 24 * time.Hour
	KeepEvents     = 10_000
	KeepBytes      = 64 << 20
	KeepDeliveries = 1000
)

const (
	recordTimeout = 10 * time.Second
	pruneEvery    = time.Hour
	// pruneAfter is how much may be added before the bounds are seen to again: events,
	// and bytes of their metadata.
	pruneAfterEvents, pruneAfterBytes = 1000, 16 << 20
)

// Recorder writes down what happens to sandboxes. Safe for concurrent use.
type Recorder struct {
	store store.Store
	log   *slog.Logger
	// queued tells the deliverer of this process, if there is one, that there is
	// something to deliver.
	queued chan struct{}

	events, bytes atomic.Int64 // added since the last pruning
	full          chan struct{}
	cancel        context.CancelFunc
	pruning       sync.WaitGroup
}

// NewRecorder begins to keep the bounds of what is recorded, until Close.
func NewRecorder(s store.Store, log *slog.Logger) *Recorder {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Recorder{store: s, log: log, queued: make(chan struct{}, 1), full: make(chan struct{}, 1), cancel: cancel}
	r.pruning.Go(func() { r.prune(ctx) })
	return r
}

// Record stores an event and what has to be delivered of it, in one write of well
// under a millisecond. When it returns nothing of it can be lost any more but by a
// loss of power. An event that cannot be written, because the disk is full,
// is logged and lost; so is one whose process dies between the change it tells of
// and this call.
func (r *Recorder) Record(e sandbox.Event) {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	record := recordOf(e)
	queued, err := r.store.AddEvent(ctx, record)
	if err != nil {
		r.log.Error("an event was lost", "kind", e.Kind, "sandbox", e.Info.ID, "error", err)
		return
	}
	if queued > 0 {
		notify(r.queued)
	}
	size := len(record.Data)
	for k, v := range record.Metadata {
		size += len(k) + len(v)
	}
	if r.events.Add(1) >= pruneAfterEvents || r.bytes.Add(int64(size)) >= pruneAfterBytes {
		notify(r.full)
	}
}

// Close ends the pruning. Record may still be called.
func (r *Recorder) Close() {
	r.cancel()
	r.pruning.Wait()
}

// recordOf leaves out what nobody who reads events needs, the tokens first of all.
func recordOf(e sandbox.Event) store.Event {
	return store.Event{
		ID:          uuid.NewString(),
		Kind:        string(e.Kind),
		At:          e.Time,
		KeyID:       e.Info.KeyID,
		SandboxID:   e.Info.ID,
		TemplateID:  e.Info.TemplateID,
		BuildID:     e.Info.BuildID,
		ExecutionID: e.Info.ExecutionID,
		Metadata:    e.Info.Metadata,
		StartedAt:   e.Info.StartedAt,
		EndAt:       e.Info.EndAt,
		CPUs:        e.Info.CPUs,
		MemoryBytes: e.Info.MemoryBytes,
		Detail:      e.Detail,
		Data:        e.Data,
	}
}

// prune keeps the bounds, now and then.
func (r *Recorder) prune(ctx context.Context) {
	for {
		r.events.Store(0)
		r.bytes.Store(0)
		now := time.Now()
		limits := store.EventLimits{Now: now, Since: now.Add(-Keep), Most: KeepEvents, Bytes: KeepBytes}
		if _, err := r.store.PruneEvents(ctx, limits); err != nil && ctx.Err() == nil {
			r.log.Error("old events were not removed", "error", err)
		}
		if _, err := r.store.PruneDeliveries(ctx, now.Add(-Keep), KeepDeliveries); err != nil && ctx.Err() == nil {
			r.log.Error("old deliveries were not removed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.full:
		case <-time.After(pruneEvery):
		}
	}
}

// notify leaves a token in a channel of capacity 1.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
