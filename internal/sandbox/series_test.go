package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/engine"
)

// gauge is an instance that uses what a test says.
type gauge struct {
	engine.Instance
	stats engine.Stats
	err   error
}

func (g *gauge) Stats(context.Context) (engine.Stats, error) { return g.stats, g.err }

var limits = Metric{CPUs: 2, MemoryTotalBytes: 512 << 20, DiskTotalBytes: 1 << 30}

func openSeries(t *testing.T, file string) *series {
	s := &series{}
	require.NoError(t, s.open(file, limits))
	return s
}

// fill adds points at each sampleEvery from a time.
func fill(s *series, from time.Time, count int) {
	for i := range count {
		s.add(point{At: uint32(from.Add(time.Duration(i) * sampleEvery).Unix()), Memory: uint32(i)})
	}
}

var epoch = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)

func TestSeriesMeasures(t *testing.T) {
	s := openSeries(t, filepath.Join(t.TempDir(), "metrics"))
	i := &gauge{stats: engine.Stats{CPUTime: time.Hour, MemoryBytes: 100 << 20, CacheBytes: 7 << 20, DiskBytes: 2 << 30}}
	require.Zero(t, s.sample(t.Context(), i, epoch, false), "the first look has nothing to compare with")
	require.Empty(t, s.window(time.Time{}, time.Time{}))
	i.stats.CPUTime += time.Hour // more than two processors can
	require.Equal(t, time.Hour, s.sample(t.Context(), i, epoch.Add(time.Second), false), "the first point is not waited for")
	require.Zero(t, s.sample(t.Context(), i, epoch.Add(2*time.Second), false), "the second is")
	s.sample(t.Context(), i, epoch.Add(5*time.Second), true)

	got := s.window(time.Time{}, time.Time{})
	require.Equal(t, []Metric{
		{Time: epoch.Add(time.Second), CPUs: 2, CPUPercent: 100, MemoryBytes: 100 << 20, MemoryCacheBytes: 7 << 20,
			MemoryTotalBytes: 512 << 20, DiskBytes: 1 << 30, DiskTotalBytes: 1 << 30},
		{Time: epoch.Add(5 * time.Second), CPUs: 2, MemoryBytes: 100 << 20, MemoryCacheBytes: 7 << 20,
			MemoryTotalBytes: 512 << 20, DiskBytes: 1 << 30, DiskTotalBytes: 1 << 30},
	}, got)

	i.err = errors.New("it is ending")
	require.Zero(t, s.sample(t.Context(), i, epoch.Add(10*time.Second), true))
	next := &gauge{stats: engine.Stats{CPUTime: time.Millisecond}}
	s.sample(t.Context(), next, epoch.Add(15*time.Second), true)
	s.sample(t.Context(), next, epoch.Add(20*time.Second), true)
	require.Len(t, s.window(time.Time{}, time.Time{}), 3, "a new run begins anew, after the points of the old")
}

// slowly is an instance that is slow to say what it uses at a time, and quick at others.
type slowly struct {
	engine.Instance
	at   time.Time
	take time.Duration
}

func (i slowly) Stats(context.Context) (engine.Stats, error) {
	if time.Now().Equal(i.at) {
		time.Sleep(i.take)
	}
	return engine.Stats{}, nil
}

// TestNoPointIsLeftOut: a second at which points are due may pass while those before are
// taken; then the next look takes them.
func TestNoPointIsLeftOut(t *testing.T) {
	for _, take := range []time.Duration{0, 5 * time.Second, 8500 * time.Millisecond} {
		t.Run(take.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				began := time.Now()
				instance := slowly{at: began.Add(10 * time.Second), take: take}
				one := &sandbox{id: "one", doomed: ctx, info: Info{State: Running}, run: &run{instance: instance}}
				m := &Manager{ctx: ctx, live: map[string]*sandbox{one.id: one}}
				m.work.Go(m.sample)
				time.Sleep(31 * time.Second)
				stop()
				m.work.Wait()

				var seconds []float64
				for _, point := range one.metrics.window(time.Time{}, time.Time{}) {
					seconds = append(seconds, point.Time.Sub(began).Seconds())
				}
				require.Equal(t, []float64{2, 5, 10, 15, 20, 25, 30}, seconds)
			})
		})
	}
}

func TestSeriesWindows(t *testing.T) {
	s := &series{}
	fill(s, epoch, 10)
	at := func(n int) time.Time { return epoch.Add(time.Duration(n) * sampleEvery) }
	for _, c := range []struct {
		from, to time.Time
		first, n int64
	}{
		{time.Time{}, time.Time{}, 0, 10},
		{at(3), time.Time{}, 3, 7},
		{time.Time{}, at(3), 0, 4},
		{at(3), at(3), 3, 1},
		{at(3).Add(time.Second), at(6).Add(-time.Second), 4, 2},
		{at(10), time.Time{}, 0, 0},
		{time.Time{}, at(-1), 0, 0},
		{at(6), at(3), 0, 0},
	} {
		got := s.window(c.from, c.to)
		require.Len(t, got, int(c.n), "from %s to %s", c.from, c.to)
		if c.n > 0 {
			require.Equal(t, c.first<<10, got[0].MemoryBytes)
		}
	}
}

func TestSeriesIsBoundedInMemoryAndOnDisk(t *testing.T) {
	file := filepath.Join(t.TempDir(), "metrics")
	s := openSeries(t, file)
	for i := range 5 * keptPoints / 1000 {
		fill(s, epoch.Add(time.Duration(1000*i)*sampleEvery), 1000)
		require.NoError(t, s.save())
	}
	require.LessOrEqual(t, cap(s.points), 3*keptPoints/2)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.LessOrEqual(t, info.Size(), int64(pointBytes*(2*keptPoints+1000+1)))
	got := s.window(time.Time{}, time.Time{})
	require.Len(t, got, keptPoints)
	require.NoError(t, s.close())
	require.Equal(t, got, openSeries(t, file).window(time.Time{}, time.Time{}))
}

func TestSeriesGoesOnAfterARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "metrics")
	first := openSeries(t, file)
	fill(first, epoch, 20)
	require.NoError(t, first.save())
	fill(first, epoch.Add(20*sampleEvery), 3)
	require.NoError(t, first.save())
	// It is killed while it writes.
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.Write(make([]byte, pointBytes+7))
	require.NoError(t, err)
	require.NoError(t, f.Close())

	second := openSeries(t, file)
	want := first.window(time.Time{}, time.Time{})
	require.Equal(t, want, second.window(time.Time{}, time.Time{}))
	fill(second, epoch.Add(100*sampleEvery), 1)
	require.NoError(t, second.close())
	fill(second, epoch.Add(101*sampleEvery), 1)
	require.NoError(t, second.save(), "after it was closed nothing is written")
	require.Len(t, openSeries(t, file).window(time.Time{}, time.Time{}), 24)

	require.NoError(t, os.WriteFile(file, []byte("something else"), 0o600))
	third := openSeries(t, file)
	require.Empty(t, third.window(time.Time{}, time.Time{}))
	fill(third, epoch, 2)
	require.NoError(t, third.close())
	require.Len(t, openSeries(t, file).window(time.Time{}, time.Time{}), 2)
}

func TestSeriesStaysInOrderWhenTheClockIsSetBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "metrics")
	s := openSeries(t, file)
	fill(s, epoch, 10)
	require.NoError(t, s.save())
	fill(s, epoch.Add(5*sampleEvery), 1)
	require.NoError(t, s.close())
	got := s.window(time.Time{}, time.Time{})
	require.Len(t, got, 6, "later points are of a time that did not come")
	require.Equal(t, got, openSeries(t, file).window(time.Time{}, time.Time{}))
}
