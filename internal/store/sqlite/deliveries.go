package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite/query"
)

// DueDeliveries implements store.Deliveries.
func (s *Store) DueDeliveries(ctx context.Context, now time.Time, perWebhook, orderedTries int) (due []store.DueDelivery, next time.Time, err error) {
	// What is pruned or deleted between these statements is left out.
	rows, err := s.read.WebhooksDue(ctx, micros(now))
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("find due deliveries: %w", err)
	}
	for _, row := range rows {
		of, err := s.dueOf(ctx, row, now, perWebhook, orderedTries)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("find due deliveries of webhook %s: %w", row.ID, err)
		}
		due = append(due, of...)
	}
	at, err := s.read.NextDelivery(ctx, micros(now))
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("find the next delivery: %w", err)
	}
	return due, fromMicros(at), nil
}

func (s *Store) dueOf(ctx context.Context, hook query.Webhook, now time.Time, most, orderedTries int) ([]store.DueDelivery, error) {
	w, err := webhook(hook)
	if err != nil {
		return nil, err
	}
	rows, err := s.read.DueDeliveries(ctx, query.DueDeliveriesParams{
		WebhookID: w.ID, Now: micros(now), OrderedTries: int64(orderedTries), Most: int64(most),
	})
	if err != nil {
		return nil, err
	}
	var due []store.DueDelivery
	for _, row := range rows {
		of, err := s.read.EventBySeq(ctx, row.EventSeq)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, err
		}
		e, err := event(of)
		if err != nil {
			return nil, err
		}
		d, err := delivery(row)
		if err != nil {
			return nil, err
		}
		due = append(due, store.DueDelivery{Delivery: d, Event: e, Webhook: w})
	}
	return due, nil
}

// UpdateDelivery implements store.Deliveries.
func (s *Store) UpdateDelivery(ctx context.Context, id string, change func(*store.Delivery, *store.Webhook)) error {
	err := s.write(ctx, func(q *query.Queries) error {
		row, err := q.Delivery(ctx, id)
		if err != nil {
			return err
		}
		d, err := delivery(row)
		if err != nil {
			return err
		}
		hook, err := q.Webhook(ctx, d.WebhookID)
		if err != nil {
			return err
		}
		w, err := webhook(hook)
		if err != nil {
			return err
		}
		change(&d, &w)
		if _, err := putWebhook(ctx, q, hook.ID, w); err != nil {
			return err
		}
		return putDelivery(ctx, q, id, d)
	})
	if err != nil {
		return fmt.Errorf("change delivery %q: %w", id, err)
	}
	return nil
}

func putDelivery(ctx context.Context, q *query.Queries, id string, d store.Delivery) error {
	for i := range d.Attempts {
		d.Attempts[i].At = normal(d.Attempts[i].At)
	}
	attempts, err := json.Marshal(d.Attempts)
	if err != nil {
		return err
	}
	return q.UpdateDelivery(ctx, query.UpdateDeliveryParams{
		ID:       id,
		State:    string(d.State),
		Reason:   d.Reason,
		NextAt:   micros(d.NextAt),
		EndedAt:  micros(d.EndedAt),
		Tries:    int64(len(d.Attempts)),
		Attempts: string(attempts),
	})
}

// Deliveries implements store.Deliveries.
func (s *Store) Deliveries(ctx context.Context, f store.DeliveryFilter) ([]store.Delivery, error) {
	states, err := jsonList(f.States)
	if err != nil {
		return nil, err
	}
	kinds, err := jsonList(f.Kinds)
	if err != nil {
		return nil, err
	}
	rows, err := s.read.Deliveries(ctx, query.DeliveriesParams{
		WebhookID: f.WebhookID, States: states, Kinds: kinds, Before: f.Before, Most: int64(f.Most),
	})
	if err != nil {
		return nil, fmt.Errorf("list deliveries of webhook %q: %w", f.WebhookID, err)
	}
	all := make([]store.Delivery, len(rows))
	for i, row := range rows {
		if all[i], err = delivery(row); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// PruneDeliveries implements store.Deliveries.
func (s *Store) PruneDeliveries(ctx context.Context, endedBefore time.Time, most int) (int, error) {
	rows, err := s.read.AllWebhooks(ctx)
	if err != nil {
		return 0, fmt.Errorf("prune deliveries: %w", err)
	}
	var deleted int
	for _, w := range rows {
		n, err := s.pruneDeliveriesOf(ctx, w.ID, endedBefore, most)
		deleted += n
		if err != nil {
			return deleted, fmt.Errorf("prune deliveries of webhook %s: %w", w.ID, err)
		}
	}
	return deleted, nil
}

func (s *Store) pruneDeliveriesOf(ctx context.Context, webhookID string, endedBefore time.Time, most int) (deleted int, err error) {
	last, err := s.read.DeliveryBeyond(ctx, query.DeliveryBeyondParams{WebhookID: webhookID, Skip: int64(most)})
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, err
	}
	for {
		var n int64
		err := s.write(ctx, func(q *query.Queries) (err error) {
			n, err = q.PruneDeliveries(ctx, query.PruneDeliveriesParams{
				WebhookID: webhookID, Last: last, Before: micros(endedBefore), Most: pruneChunk,
			})
			return err
		})
		if err != nil || n == 0 {
			return deleted, err
		}
		deleted += int(n)
	}
}

func delivery(row query.Delivery) (store.Delivery, error) {
	attempts, err := decode[[]store.Attempt](row.Attempts)
	if err != nil {
		return store.Delivery{}, err
	}
	return store.Delivery{
		Seq:       row.Seq,
		ID:        row.ID,
		WebhookID: row.WebhookID,
		EventID:   row.EventID,
		EventKind: row.Kind,
		SandboxID: row.SandboxID,
		State:     store.DeliveryState(row.State),
		Reason:    row.Reason,
		CreatedAt: fromMicros(row.CreatedAt),
		NextAt:    fromMicros(row.NextAt),
		EndedAt:   fromMicros(row.EndedAt),
		Attempts:  attempts,
	}, nil
}
