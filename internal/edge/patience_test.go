package edge

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// stuck is a sandbox in one state for ever.
type stuck struct {
	sandbox.Sandboxes
	state sandbox.State
	wake  func(ctx context.Context) error
}

func (s stuck) Get(id string) (sandbox.Info, error) {
	return sandbox.Info{ID: id, State: s.state}, nil
}

func (s stuck) Wake(ctx context.Context, _ string) error { return s.wake(ctx) }

func TestPatienceEnds(t *testing.T) {
	busy := func(context.Context) error { return sandbox.ErrBusy }
	hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, s := range map[string]stuck{
		"pausing":    {state: sandbox.Pausing},
		"resuming":   {state: sandbox.Resuming},
		"busy":       {state: sandbox.Paused, wake: busy},
		"wake hangs": {state: sandbox.Paused, wake: hangs},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				err := newWaker(s).wait(t.Context(), "iaaa", true)
				require.ErrorIs(t, err, sandbox.ErrBusy)
				require.Equal(t, wakePatience, time.Since(begin))
				f := refusalFor(err, target{id: "iaaa"})
				require.Equal(t, http.StatusConflict, f.Code)
				require.Positive(t, f.retryAfter)
			})
		})
	}
}

func TestWakeIsTriedAgainWhileTheSandboxIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		k := newWaker(stuck{state: sandbox.Paused, wake: func(context.Context) error {
			if tries++; tries < 5 {
				return sandbox.ErrBusy
			}
			return nil
		}})
		require.NoError(t, k.wait(t.Context(), "iaaa", true))
		require.Equal(t, 5, tries)
		require.Empty(t, k.underWay)
	})
}

func TestWhoLeavesWaitsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		err := newWaker(stuck{state: sandbox.Pausing}).wait(ctx, "iaaa", true)
		require.True(t, errors.Is(err, context.DeadlineExceeded))
		time.Sleep(wakePatience)
	})
}

func TestLoadIsBoundedForEachAndForAll(t *testing.T) {
	l := newLoad()
	for range maxRequestsPerSandbox {
		require.Nil(t, l.enter("iaaa"))
	}
	require.Equal(t, http.StatusTooManyRequests, l.enter("iaaa").Code)
	for i := range maxRequests - maxRequestsPerSandbox {
		require.Nil(t, l.enter("i"+strconv.Itoa(i)))
	}
	require.Equal(t, http.StatusServiceUnavailable, l.enter("ibbb").Code)
	l.leave("iaaa")
	require.Nil(t, l.enter("ibbb"))
	l.leave("ibbb")
	for range maxRequestsPerSandbox - 1 {
		l.leave("iaaa")
	}
	for i := range maxRequests - maxRequestsPerSandbox {
		l.leave("i" + strconv.Itoa(i))
	}
	require.Empty(t, l.bySandbox)
	require.Zero(t, l.total)
}
