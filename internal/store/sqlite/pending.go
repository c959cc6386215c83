package sqlite

import "context"

// PendingDeliveries counts what waits to be sent to webhooks.
func (s *Store) PendingDeliveries(ctx context.Context) (count int, err error) {
	err = s.readDB.QueryRowContext(ctx, "SELECT count(*) FROM deliveries WHERE state = 'pending'").Scan(&count)
	return count, err
}
