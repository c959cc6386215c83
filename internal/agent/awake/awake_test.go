package awake_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/awake"
)

// run runs a clock in a bubble of fake time; pause makes the engine's clock jump.
func run(t *testing.T, test func(clock *awake.Clock, pause func(time.Duration))) {
	synctest.Test(t, func(t *testing.T) {
		var paused atomic.Int64
		clock := awake.New(func() time.Time { return time.Now().Add(time.Duration(paused.Load())) })
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { clock.Run(ctx) })
		test(clock, func(d time.Duration) { paused.Add(int64(d)) })
		stop()
		running.Wait()
	})
}

func TestTimeAwakeIsCounted(t *testing.T) {
	run(t, func(clock *awake.Clock, _ func(time.Duration)) {
		before := clock.Now()
		time.Sleep(time.Hour)
		require.Equal(t, time.Hour, clock.Now()-before)
	})
}

func TestPauseIsNotCounted(t *testing.T) {
	run(t, func(clock *awake.Clock, pause func(time.Duration)) {
		before := clock.Now()
		for range 3 {
			pause(time.Hour)
			time.Sleep(10 * time.Second)
		}
		require.InDelta(t, 30*time.Second, clock.Now()-before, float64(3*2*time.Second))
	})
}

func TestTimersWaitForTimeAwake(t *testing.T) {
	run(t, func(clock *awake.Clock, pause func(time.Duration)) {
		called := make(chan struct{}, 2)
		call := func() { called <- struct{}{} }
		clock.AfterFunc(time.Minute, call)
		clock.AfterFunc(time.Minute, call).Stop()
		time.Sleep(30 * time.Second)
		pause(time.Hour)
		time.Sleep(25 * time.Second)
		require.Empty(t, called)
		time.Sleep(6 * time.Second)
		require.Len(t, called, 1)
	})
}
