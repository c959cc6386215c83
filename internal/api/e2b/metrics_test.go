package e2b_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

type point struct {
	Timestamp  time.Time
	CPUUsedPct float64
	DiskUsed   int64
}

// A day has 17,280 points.
func TestLongMetricsAreThinned(t *testing.T) {
	for points, want := range map[int]int{1440: 1440, 1441: 721, 17280: 1440} {
		w := newWorld(t)
		w.core.points = points
		var got []point
		require.NoError(t, json.Unmarshal(w.do("alice", "GET", "/sandboxes/i0001/metrics", "").Body.Bytes(), &got))
		require.Len(t, got, want)
		last := got[len(got)-1]
		require.Equal(t, start.Add(time.Duration(points-1)*5*time.Second), last.Timestamp, "up to the last one")
		require.Equal(t, int64(points-1)<<20, last.DiskUsed, "the most of its time")
		if points == 17280 {
			require.InDelta(t, 12.3456*(0+11)/2, got[0].CPUUsedPct, 0.01, "the mean of its time")
		}
	}
}

func TestTheLatestPointIsOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.core.add(sandbox.Info{ID: "inow", KeyID: "key-of-alice", StartedAt: time.Now()})
		ask := func() map[string]point {
			var got struct{ Sandboxes map[string]point }
			answer := w.do("alice", "GET", "/sandboxes/metrics?sandbox_ids=inow,i0005", "")
			require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &got))
			return got.Sandboxes
		}
		require.Equal(t, int64(2<<20), ask()["inow"].DiskUsed)
		require.Equal(t, int64(2<<20), ask()["i0005"].DiskUsed, "that before the pause")
		time.Sleep(2 * time.Minute)
		require.NotContains(t, ask(), "inow", "an old one is not the latest")
	})
}
