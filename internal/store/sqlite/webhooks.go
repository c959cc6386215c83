package sqlite

import (
	"context"
	"fmt"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite/query"
)

// AddWebhook implements store.Webhooks.
func (s *Store) AddWebhook(ctx context.Context, w store.Webhook, most int) error {
	kinds, err := jsonList(w.Kinds)
	if err != nil {
		return err
	}
	err = s.write(ctx, func(q *query.Queries) error {
		others, err := q.WebhooksOfKey(ctx, w.KeyID)
		if err != nil {
			return err
		}
		if len(others) >= most {
			return store.ErrFull
		}
		return q.AddWebhook(ctx, query.AddWebhookParams{
			ID:             w.ID,
			KeyID:          w.KeyID,
			Name:           w.Name,
			Url:            w.URL,
			Secret:         w.Secret,
			Kinds:          kinds,
			Enabled:        flag(w.Enabled),
			DisabledReason: w.DisabledReason,
			CreatedAt:      micros(w.CreatedAt),
			Failures:       int64(w.Failures),
			FailingSince:   micros(w.FailingSince),
		})
	})
	if err != nil {
		return fmt.Errorf("add webhook %s: %w", w.ID, err)
	}
	return nil
}

// Webhook implements store.Webhooks.
func (s *Store) Webhook(ctx context.Context, id string) (store.Webhook, error) {
	row, err := s.read.Webhook(ctx, id)
	if err != nil {
		return store.Webhook{}, fmt.Errorf("find webhook %q: %w", id, storeError(err))
	}
	return webhook(row)
}

// Webhooks implements store.Webhooks.
func (s *Store) Webhooks(ctx context.Context, keyID string) ([]store.Webhook, error) {
	var rows []query.Webhook
	var err error
	if keyID == "" {
		rows, err = s.read.AllWebhooks(ctx)
	} else {
		rows, err = s.read.WebhooksOfKey(ctx, keyID)
	}
	if err != nil {
		return nil, fmt.Errorf("list webhooks: %w", err)
	}
	return webhooks(rows)
}

// UpdateWebhook implements store.Webhooks.
func (s *Store) UpdateWebhook(ctx context.Context, id string, change func(*store.Webhook) error) (changed store.Webhook, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		row, err := q.Webhook(ctx, id)
		if err != nil {
			return err
		}
		w, err := webhook(row)
		if err != nil {
			return err
		}
		if err := change(&w); err != nil {
			return err
		}
		changed, err = putWebhook(ctx, q, id, w)
		return err
	})
	if err != nil {
		return store.Webhook{}, fmt.Errorf("change webhook %q: %w", id, err)
	}
	return changed, nil
}

// putWebhook stores w in place of the webhook id and returns it as stored.
func putWebhook(ctx context.Context, q *query.Queries, id string, w store.Webhook) (store.Webhook, error) {
	kinds, err := jsonList(w.Kinds)
	if err != nil {
		return store.Webhook{}, err
	}
	err = q.UpdateWebhook(ctx, query.UpdateWebhookParams{
		ID:             id,
		Name:           w.Name,
		Url:            w.URL,
		Secret:         w.Secret,
		Kinds:          kinds,
		Enabled:        flag(w.Enabled),
		DisabledReason: w.DisabledReason,
		Failures:       int64(w.Failures),
		FailingSince:   micros(w.FailingSince),
	})
	if err != nil {
		return store.Webhook{}, err
	}
	row, err := q.Webhook(ctx, id)
	if err != nil {
		return store.Webhook{}, err
	}
	return webhook(row)
}

// DeleteWebhook implements store.Webhooks.
func (s *Store) DeleteWebhook(ctx context.Context, id string) error {
	err := s.write(ctx, func(q *query.Queries) error { return deleteWebhook(ctx, q, id) })
	if err != nil {
		return fmt.Errorf("delete webhook %q: %w", id, err)
	}
	return nil
}

func deleteWebhook(ctx context.Context, q *query.Queries, id string) error {
	n, err := q.DeleteWebhook(ctx, id)
	if err == nil && n == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return err
	}
	return q.DeleteDeliveriesOf(ctx, id)
}

func webhooks(rows []query.Webhook) ([]store.Webhook, error) {
	all := make([]store.Webhook, len(rows))
	for i, row := range rows {
		var err error
		if all[i], err = webhook(row); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func webhook(row query.Webhook) (store.Webhook, error) {
	kinds, err := decode[[]string](row.Kinds)
	if err != nil {
		return store.Webhook{}, err
	}
	return store.Webhook{
		ID:             row.ID,
		KeyID:          row.KeyID,
		Name:           row.Name,
		URL:            row.Url,
		Kinds:          kinds,
		Enabled:        row.Enabled != 0,
		CreatedAt:      fromMicros(row.CreatedAt),
		Secret:         row.Secret,
		DisabledReason: row.DisabledReason,
		Failures:       int(row.Failures),
		FailingSince:   fromMicros(row.FailingSince),
	}, nil
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
