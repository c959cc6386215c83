package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite/query"
)

// AddVolume implements store.Volumes.
func (s *Store) AddVolume(ctx context.Context, v store.Volume, most int) error {
	err := s.write(ctx, func(q *query.Queries) error {
		others, err := q.VolumesOfKey(ctx, v.KeyID)
		if err != nil {
			return err
		}
		for _, other := range others {
			if other.Name == v.Name {
				return store.ErrExists
			}
		}
		if most > 0 && len(others) >= most {
			return store.ErrFull
		}
		return q.AddVolume(ctx, query.AddVolumeParams{
			ID: v.ID, Name: v.Name, KeyID: v.KeyID, Token: v.Token, Size: v.SizeBytes, CreatedAt: micros(v.CreatedAt),
		})
	})
	if err != nil {
		return fmt.Errorf("add volume %q: %w", v.Name, err)
	}
	return nil
}

// Volume implements store.Volumes.
func (s *Store) Volume(ctx context.Context, keyID, idOrName string) (store.Volume, error) {
	row, err := s.read.VolumeByID(ctx, idOrName)
	if errors.Is(err, sql.ErrNoRows) || err == nil && row.KeyID != keyID {
		row, err = s.read.VolumeByName(ctx, query.VolumeByNameParams{KeyID: keyID, Name: idOrName})
	}
	if err != nil {
		return store.Volume{}, fmt.Errorf("find volume %q: %w", idOrName, storeError(err))
	}
	return volume(row), nil
}

// VolumeByID implements store.Volumes.
func (s *Store) VolumeByID(ctx context.Context, id string) (store.Volume, error) {
	row, err := s.read.VolumeByID(ctx, id)
	if err != nil {
		return store.Volume{}, fmt.Errorf("find volume %q: %w", id, storeError(err))
	}
	return volume(row), nil
}

// Volumes implements store.Volumes.
func (s *Store) Volumes(ctx context.Context, keyID string) ([]store.Volume, error) {
	var rows []query.Volume
	var err error
	if keyID == "" {
		rows, err = s.read.AllVolumes(ctx)
	} else {
		rows, err = s.read.VolumesOfKey(ctx, keyID)
	}
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	all := make([]store.Volume, len(rows))
	for i, row := range rows {
		all[i] = volume(row)
	}
	return all, nil
}

// DeleteVolume implements store.Volumes.
func (s *Store) DeleteVolume(ctx context.Context, id string) error {
	err := s.write(ctx, func(q *query.Queries) error {
		n, err := q.DeleteVolume(ctx, id)
		if err == nil && n == 0 {
			err = store.ErrNotFound
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("delete volume %q: %w", id, err)
	}
	return nil
}

func volume(row query.Volume) store.Volume {
	return store.Volume{
		ID: row.ID, Name: row.Name, KeyID: row.KeyID, Token: row.Token,
		SizeBytes: row.Size, CreatedAt: fromMicros(row.CreatedAt),
	}
}
