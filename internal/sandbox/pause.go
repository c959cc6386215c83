package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store"
)

var errNotYet = errors.New("not yet")

// Pause implements Sandboxes.
func (m *Manager) Pause(ctx context.Context, id string, diskOnly bool) error { return errNotYet }

// Resume implements Sandboxes.
func (m *Manager) Resume(ctx context.Context, id string, req ResumeRequest) (Info, bool, error) {
	return Info{}, false, errNotYet
}

// Wake implements Sandboxes.
func (m *Manager) Wake(ctx context.Context, id string) error { return errNotYet }

// Fork implements Sandboxes.
func (m *Manager) Fork(ctx context.Context, id string, req ForkRequest) ([]Fork, error) {
	return nil, errNotYet
}

// Snapshot implements Sandboxes.
func (m *Manager) Snapshot(ctx context.Context, id string, req SnapshotRequest) (store.Template, error) {
	return store.Template{}, errNotYet
}

// Metrics implements Sandboxes.
func (m *Manager) Metrics(id string, from, to time.Time) ([]Metric, error) { return nil, errNotYet }
