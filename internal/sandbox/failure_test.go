package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// The real parts, with a hook before or after a step.

type hookedEngine struct {
	engine.Engine
	restored func(engine.Instance) (engine.Instance, error)
}

func (e hookedEngine) Restore(ctx context.Context, spec engine.Spec, from string) (engine.Instance, error) {
	instance, err := e.Engine.Restore(ctx, spec, from)
	if err != nil {
		return nil, err
	}
	return e.restored(instance)
}

func afterRestore(fn func(engine.Instance) (engine.Instance, error)) sandboxtest.Option {
	return func(c *sandbox.Config) { c.Engine = hookedEngine{c.Engine, fn} }
}

type hookedStore struct {
	store.Store
	put func(store.Sandbox) error
}

func (s hookedStore) PutSandbox(ctx context.Context, record store.Sandbox) error {
	if err := s.put(record); err != nil {
		return err
	}
	return s.Store.PutSandbox(ctx, record)
}

func beforePut(fn func(store.Sandbox) error) sandboxtest.Option {
	return func(c *sandbox.Config) { c.Store = hookedStore{c.Store, fn} }
}

func TestFailedCreateLeavesNothingAndSaysWhy(t *testing.T) {
	broken := errors.New("broken for the test")
	for _, test := range []struct {
		name     string
		template string
		option   sandboxtest.Option
		want     string // in the error and in the record
	}{
		{"the network is not made", sandboxtest.Warm, func(c *sandbox.Config) {
			c.Network = func(context.Context, sandbox.NetworkConfig) (sandbox.Network, error) { return nil, broken }
		}, "broken for the test"},
		{"the network breaks when it is made", sandboxtest.Warm, func(c *sandbox.Config) {
			real := c.Network
			c.Network = func(ctx context.Context, n sandbox.NetworkConfig) (sandbox.Network, error) {
				network, err := real(ctx, n)
				if err == nil {
					err = network.Close()
				}
				return network, err
			}
		}, "netns"},
		{"the image is damaged", sandboxtest.Cold, func(c *sandbox.Config) {
			image := filepath.Join(c.DataDir, "images", "probe.erofs")
			if err := errors.Join(os.Remove(image), os.WriteFile(image, []byte("no image"), 0o644)); err != nil {
				panic(err)
			}
		}, "run"},
		{"the snapshot is gone", sandboxtest.Warm, func(c *sandbox.Config) {
			if err := os.RemoveAll(filepath.Join(c.DataDir, "snapshots")); err != nil {
				panic(err)
			}
		}, "restore"},
		{"the agent exits", sandboxtest.Cold, sandboxtest.BrokenAgent("exits"), "ended"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var gone []string
			w := sandboxtest.New(t, test.option, func(c *sandbox.Config) { c.OnGone = func(id string) { gone = append(gone, id) } })
			began := time.Now()
			_, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: test.template, Timeout: time.Minute})
			require.ErrorContains(t, err, test.want)
			require.Less(t, time.Since(began), 20*time.Second, "it took long to notice")
			requireFailed(t, w, test.want)
			require.Len(t, gone, 1, "no event says that it ended, so this does")
		})
	}
}

func TestAWorkshopThatIsClosedIsGone(t *testing.T) {
	var gone []string
	events := 0
	w := sandboxtest.New(t, func(c *sandbox.Config) {
		c.OnGone = func(id string) { gone = append(gone, id) }
		c.OnEvent = func(sandbox.Event) { events++ }
	})
	template, err := w.Store.Template(t.Context(), sandboxtest.Cold)
	require.NoError(t, err)
	shop, err := w.Manager.OpenWorkshop(t.Context(), sandbox.WorkshopRequest{Template: template})
	require.NoError(t, err)
	require.Empty(t, gone)
	require.NoError(t, shop.Close(t.Context()))
	require.Len(t, gone, 1)
	require.Zero(t, events)
}

// requireFailed says that the only sandbox of a world never ran, why, and that
// nothing of it is there.
func requireFailed(t *testing.T, w *sandboxtest.World, why string) {
	t.Helper()
	require.Empty(t, w.Leftovers())
	require.Empty(t, w.Manager.List(sandbox.Filter{}))
	records, err := w.Store.Sandboxes(t.Context(), true)
	require.NoError(t, err)
	require.Len(t, records, 1)
	require.Equal(t, "failed", records[0].State)
	require.Contains(t, records[0].Reason, why)
	require.NotZero(t, records[0].EndedAt)
	_, err = w.Manager.Get(records[0].ID)
	require.ErrorIs(t, err, sandbox.ErrNotFound)
}

func TestAgentThatNeverAnswers(t *testing.T) {
	w := sandboxtest.New(t, sandboxtest.BrokenAgent("mute"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := w.Manager.Create(ctx, sandbox.CreateRequest{Template: sandboxtest.Cold, Timeout: time.Minute})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	requireFailed(t, w, "agent")
}

func TestStoreThatFails(t *testing.T) {
	full := errors.New("database or disk is full")
	var refuse atomic.Value
	refuse.Store("")
	w := sandboxtest.New(t, beforePut(func(record store.Sandbox) error {
		if record.State == refuse.Load() {
			return full
		}
		return nil
	}))
	for _, state := range []sandbox.State{sandbox.Starting, sandbox.Running} {
		refuse.Store(string(state))
		_, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: time.Minute})
		require.ErrorIs(t, err, full, "while %s", state)
		require.Empty(t, w.Leftovers(), "while %s", state)
		require.Empty(t, w.Manager.List(sandbox.Filter{}), "while %s", state)
	}
	refuse.Store(string(sandbox.Ended))
	info := w.Create(t, sandboxtest.Warm)
	require.ErrorIs(t, w.Manager.Kill(t.Context(), info.ID, "killed"), full)
	require.Empty(t, w.Leftovers(), "a kill whose record cannot be written still kills")
	_, err := w.Manager.Get(info.ID)
	require.ErrorContains(t, err, "killed")
}

// Whenever the caller hangs up, what was made for it goes.
func TestCallerThatHangsUp(t *testing.T) {
	var hangUp context.CancelFunc
	t.Run("before the network is there", func(t *testing.T) {
		w := sandboxtest.New(t, func(c *sandbox.Config) {
			real := c.Network
			c.Network = func(ctx context.Context, n sandbox.NetworkConfig) (sandbox.Network, error) {
				hangUp()
				return real(ctx, n)
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		hangUp = cancel
		_, err := w.Manager.Create(ctx, sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: time.Minute})
		require.ErrorIs(t, err, context.Canceled)
		requireFailed(t, w, "cancel")
	})
	t.Run("when the engine has restored", func(t *testing.T) {
		w := sandboxtest.New(t, afterRestore(func(i engine.Instance) (engine.Instance, error) {
			hangUp()
			return i, nil
		}))
		ctx, cancel := context.WithCancel(t.Context())
		hangUp = cancel
		_, err := w.Manager.Create(ctx, sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: time.Minute})
		require.ErrorIs(t, err, context.Canceled)
		requireFailed(t, w, "cancel")
	})
	t.Run("at any time", func(t *testing.T) {
		w := sandboxtest.New(t)
		for _, after := range []time.Duration{0, 5, 20, 60, 100} {
			ctx, cancel := context.WithTimeout(t.Context(), after*time.Millisecond)
			_, err := w.Manager.Create(ctx, sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: time.Minute})
			cancel()
			if err == nil {
				continue // this machine is fast
			}
			require.ErrorIs(t, err, context.DeadlineExceeded, "after %d ms", after)
			require.Empty(t, w.Leftovers(), "after %d ms", after)
		}
	})
}

// A create under way when the manager closes is undone, and its caller is told.
func TestCloseInTheMiddleOfACreate(t *testing.T) {
	restored, goOn := make(chan struct{}), make(chan struct{})
	w := sandboxtest.New(t, afterRestore(func(i engine.Instance) (engine.Instance, error) {
		close(restored)
		<-goOn
		return i, nil
	}))
	created := make(chan error, 1)
	go func() {
		_, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: time.Minute})
		created <- err
	}()
	receive(t, restored)
	closed := make(chan error, 1)
	go func() { closed <- w.Manager.Close(t.Context()) }()
	require.Eventually(t, func() bool {
		_, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: time.Minute})
		return err != nil
	}, patience, tick, "a manager that closes takes no more")
	close(goOn)
	require.Error(t, receive(t, created))
	require.NoError(t, receive(t, closed))
	require.Empty(t, w.Leftovers())
}
