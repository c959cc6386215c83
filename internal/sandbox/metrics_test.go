package sandbox_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

// awaitPoint waits for a point that is as wanted.
func awaitPoint(t *testing.T, w *sandboxtest.World, id, what string, wanted func(sandbox.Metric) bool) sandbox.Metric {
	t.Helper()
	var last []sandbox.Metric
	require.Eventually(t, func() bool {
		var err error
		last, err = w.Manager.Metrics(id, time.Time{}, time.Time{})
		require.NoError(t, err)
		return len(last) > 0 && wanted(last[len(last)-1])
	}, patience, 50*time.Millisecond, "%s; last of %v", what, &last)
	return last[len(last)-1]
}

func TestMetricsShowWhatASandboxUses(t *testing.T) {
	w := sandboxtest.New(t)
	info, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: 5 * time.Minute})
	require.NoError(t, err)
	began := time.Now()
	first := awaitPoint(t, w, info.ID, "a first point", func(sandbox.Metric) bool { return true })
	require.Less(t, time.Since(began), 4*time.Second, "the first point should not be waited for long")
	require.Equal(t, 1, first.CPUs)
	require.EqualValues(t, 256<<20, first.MemoryTotalBytes)
	require.EqualValues(t, 64<<20, first.DiskTotalBytes)
	require.Less(t, first.MemoryBytes, int64(40<<20), "the engine's memory is not the sandbox's")
	require.Less(t, first.DiskBytes, int64(4<<20))
	awaitPoint(t, w, info.ID, "an idle sandbox uses little", func(m sandbox.Metric) bool { return m.CPUPercent < 10 })

	w.Start(t, info, "hold", "100").Expect("holding")
	w.Run(t, info, "fill", "/home/user/file")
	busy := w.Start(t, info, "burn")
	busy.Expect("burning")
	used := awaitPoint(t, w, info.ID, "the busy sandbox shows", func(m sandbox.Metric) bool { return m.CPUPercent > 25 })
	require.LessOrEqual(t, used.CPUPercent, 100.0)
	require.Greater(t, used.MemoryBytes, first.MemoryBytes+90<<20)
	require.Less(t, used.MemoryBytes, first.MemoryBytes+140<<20)
	require.Greater(t, used.DiskBytes, int64(40<<20))
	require.LessOrEqual(t, used.DiskBytes, int64(64<<20))
	require.Greater(t, used.MemoryCacheBytes, int64(40<<20), "what was written is cached")
	inside := agentMetrics(t, w, info)
	require.InDelta(t, inside.MemUsed, used.MemoryBytes, 24<<20, "the agent and the host should agree")
	require.InDelta(t, inside.DiskUsed, used.DiskBytes, 1<<20, "the agent and the host should agree")
	require.GreaterOrEqual(t, w.Manager.Usage().MemoryBytes, int64(90<<20))
	require.Positive(t, w.Manager.Usage().CPUTime)
	busy.Kill()

	two := func(m sandbox.Metric) bool { return m.Time.Unix()%5 == 0 && m.Time.After(used.Time) }
	aligned := awaitPoint(t, w, info.ID, "points are aligned", two)
	points, err := w.Manager.Metrics(info.ID, used.Time, aligned.Time)
	require.NoError(t, err)
	require.Equal(t, used, points[0])
	require.Equal(t, aligned, points[len(points)-1])
	points, err = w.Manager.Metrics(info.ID, aligned.Time.Add(time.Hour), time.Time{})
	require.NoError(t, err)
	require.Empty(t, points)

	require.NoError(t, w.Manager.Kill(t.Context(), info.ID, "the test is over"))
	_, err = w.Manager.Metrics(info.ID, time.Time{}, time.Time{})
	require.ErrorIs(t, err, sandbox.ErrNotFound)
	require.Zero(t, w.Manager.Usage().MemoryBytes)
}

type agentUsage struct {
	MemUsed  int64 `json:"mem_used"`
	DiskUsed int64 `json:"disk_used"`
}

// agentMetrics is what the agent itself measures.
func agentMetrics(t *testing.T, w *sandboxtest.World, info sandbox.Info) (u agentUsage) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return w.Manager.Dial(ctx, info.ID, hostapi.AgentPort)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent/metrics", nil)
	require.NoError(t, err)
	request.Header.Set("X-Access-Token", info.AccessToken)
	response, err := transport.RoundTrip(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.NoError(t, json.NewDecoder(response.Body).Decode(&u))
	return u
}

// history is what is kept of a sandbox.
func history(t *testing.T, w *sandboxtest.World, id string) ([]sandbox.Metric, []sandbox.LogLine) {
	t.Helper()
	points, err := w.Manager.Metrics(id, time.Time{}, time.Time{})
	require.NoError(t, err)
	lines, err := w.Manager.Logs(id)
	require.NoError(t, err)
	return points, lines
}

func TestHistoryIsKeptOverPausesAndServers(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	w := reopen(t, dir)
	info, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: 5 * time.Minute})
	require.NoError(t, err)
	w.Run(t, info, "echo", "secret of the line")
	awaitPoint(t, w, info.ID, "a first point", func(sandbox.Metric) bool { return true })
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	points, lines := history(t, w, info.ID)
	require.NotEmpty(t, points)
	require.NotEmpty(t, lines)

	leave(t, w)
	w = reopen(t, dir)
	same, sameLines := history(t, w, info.ID)
	require.Equal(t, points, same, "of a paused sandbox, by the next server")
	require.Equal(t, lines, sameLines)

	info = resume(t, w, info.ID)
	last := points[len(points)-1].Time
	awaitPoint(t, w, info.ID, "it is measured again", func(m sandbox.Metric) bool { return m.Time.After(last) })
	w.Run(t, info, "echo")
	points, lines = history(t, w, info.ID)
	leave(t, w)
	w = reopen(t, dir)
	more, moreLines := history(t, w, info.ID)
	require.Equal(t, points, more[:len(points)], "of a running sandbox, by the next server")
	require.Equal(t, lines, moreLines[:len(lines)])
	awaitPoint(t, w, info.ID, "the next server measures on", func(m sandbox.Metric) bool {
		return m.Time.After(points[len(points)-1].Time)
	})
	w.Run(t, info, "echo") // the agent's output is read on
	require.Eventually(t, func() bool {
		_, now := history(t, w, info.ID)
		return slices.ContainsFunc(now[len(lines):], func(l sandbox.LogLine) bool { return l.Source == "process" })
	}, patience, tick)
}

func TestLogTellsOfProcesses(t *testing.T) {
	w := sandboxtest.New(t)
	info := w.Create(t, sandboxtest.Warm)
	end := w.Start(t, info, "exit", "3").Wait()
	require.EqualValues(t, 3, end.GetExitCode())
	var found []string
	require.Eventually(t, func() bool {
		_, lines := history(t, w, info.ID)
		found = nil
		for _, line := range lines {
			if line.Source == "process" {
				require.Equal(t, "info", line.Level)
				found = append(found, line.Text)
			}
		}
		return len(found) >= 2
	}, patience, tick)
	require.Contains(t, strings.Join(found, "\n"), `user=user command="/bin/probe exit 3"`)
	require.Contains(t, found[len(found)-1], `status="exit status 3"`)
}
