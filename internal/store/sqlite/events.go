package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite/query"
)

// pruneChunk is how many rows one transaction deletes: the writer is one, and
// those who record what happens wait for it.
const pruneChunk = 500

// AddEvent implements store.Events.
func (s *Store) AddEvent(ctx context.Context, e store.Event) (queued int, err error) {
	e.At, e.StartedAt, e.EndAt = normal(e.At), normal(e.StartedAt), normal(e.EndAt)
	record, err := json.Marshal(e)
	if err != nil {
		return 0, fmt.Errorf("encode the event %s: %w", e.ID, err)
	}
	err = s.write(ctx, func(q *query.Queries) error {
		e.Seq, err = q.AddEvent(ctx, query.AddEventParams{
			At:        micros(e.At),
			KeyID:     e.KeyID,
			SandboxID: e.SandboxID,
			Kind:      e.Kind,
			Record:    string(record),
		})
		if err != nil {
			return err
		}
		queued, err = queue(ctx, q, e)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("write the event %s of sandbox %s: %w", e.Kind, e.SandboxID, err)
	}
	return queued, nil
}

// queue adds a delivery for each webhook that wants the event.
func queue(ctx context.Context, q *query.Queries, e store.Event) (queued int, err error) {
	rows, err := q.WebhooksOfKey(ctx, e.KeyID)
	if err != nil {
		return 0, err
	}
	if e.KeyID != "" {
		ofAll, err := q.WebhooksOfKey(ctx, "")
		if err != nil {
			return 0, err
		}
		rows = append(rows, ofAll...)
	}
	for _, row := range rows {
		w, err := webhook(row)
		if err != nil {
			return 0, err
		}
		if !w.Wants(e.Kind) {
			continue
		}
		err = q.AddDelivery(ctx, query.AddDeliveryParams{
			ID:        uuid.NewString(),
			WebhookID: w.ID,
			EventSeq:  e.Seq,
			EventID:   e.ID,
			Kind:      e.Kind,
			SandboxID: e.SandboxID,
			State:     string(store.Pending),
			CreatedAt: micros(e.At),
			NextAt:    micros(e.At),
			Attempts:  "[]",
		})
		if err != nil {
			return 0, err
		}
		queued++
	}
	return queued, nil
}

// Events implements store.Events.
func (s *Store) Events(ctx context.Context, f store.EventFilter) ([]store.Event, error) {
	kinds, err := jsonList(f.Kinds)
	if err != nil {
		return nil, err
	}
	var rows []query.Event
	if f.NewestFirst {
		rows, err = s.read.EventsNewestFirst(ctx, query.EventsNewestFirstParams{
			KeyID: f.KeyID, SandboxID: f.SandboxID, Kinds: kinds, Most: int64(f.Most), Skip: int64(f.Skip),
		})
	} else {
		rows, err = s.read.Events(ctx, query.EventsParams{
			KeyID: f.KeyID, SandboxID: f.SandboxID, Kinds: kinds, Most: int64(f.Most), Skip: int64(f.Skip),
		})
	}
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	events := make([]store.Event, len(rows))
	for i, row := range rows {
		if events[i], err = event(row); err != nil {
			return nil, err
		}
	}
	return events, nil
}

// PruneEvents implements store.Events.
func (s *Store) PruneEvents(ctx context.Context, limits store.EventLimits) (int, error) {
	keys, err := s.read.KeysWithEvents(ctx)
	if err != nil {
		return 0, fmt.Errorf("prune events: %w", err)
	}
	var deleted int
	for _, k := range keys {
		n, err := s.pruneEventsOf(ctx, k, limits)
		deleted += n
		if err != nil {
			return deleted, fmt.Errorf("prune events: %w", err)
		}
	}
	return deleted, nil
}

func (s *Store) pruneEventsOf(ctx context.Context, keyID string, limits store.EventLimits) (deleted int, err error) {
	last, err := s.lastSurplus(ctx, keyID, limits)
	if err != nil || last == 0 {
		return 0, err
	}
	for {
		var n int64
		err := s.write(ctx, func(q *query.Queries) error {
			var err error
			if n, err = q.PruneEvents(ctx, query.PruneEventsParams{KeyID: keyID, Last: last, Most: pruneChunk}); err != nil || n == 0 {
				return err
			}
			return q.DropDeliveriesWithoutEvent(ctx, query.DropDeliveriesWithoutEventParams{
				Reason: "the event it waited with is no longer kept", Now: micros(limits.Now),
			})
		})
		if err != nil || n == 0 {
			return deleted, err
		}
		deleted += int(n)
	}
}

// lastSurplus is the newest event of a key that is beyond a limit, or 0.
func (s *Store) lastSurplus(ctx context.Context, keyID string, limits store.EventLimits) (int64, error) {
	last, err := s.read.EventBefore(ctx, query.EventBeforeParams{KeyID: keyID, At: micros(limits.Since)})
	if err != nil {
		return 0, err
	}
	beyond, err := s.read.EventBeyond(ctx, query.EventBeyondParams{KeyID: keyID, Skip: int64(limits.Most)})
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, err
	}
	last = max(last, beyond)
	sizes, err := s.read.EventSizes(ctx, keyID)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, e := range sizes {
		if sum += e.Size; sum > limits.Bytes {
			return max(last, e.Seq), nil
		}
	}
	return last, nil
}

func event(row query.Event) (store.Event, error) {
	e, err := decode[store.Event](row.Record)
	e.Seq = row.Seq
	return e, err
}

func jsonList[T ~string](list []T) (string, error) {
	if list == nil {
		list = []T{} // not null
	}
	b, err := json.Marshal(list)
	return string(b), err
}
