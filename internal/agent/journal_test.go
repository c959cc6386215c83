package agent_test

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

// journal is what the agent tells of processes.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func TestJournalTellsOfProcesses(t *testing.T) {
	s := start(t)
	run := s.run(shell("exit 3 # " + strings.Repeat("long ", 1000)))
	require.EqualValues(t, 3, run.end.GetExitCode())
	pid := " pid=" + strconv.Itoa(int(run.pid)) + " "
	require.Eventually(t, func() bool { return strings.Contains(s.journal.String(), "process ended") }, 10*time.Second, time.Millisecond)
	lines := strings.Split(strings.TrimSpace(s.journal.String()), "\n")
	require.Len(t, lines, 2)
	require.Contains(t, lines[0], `msg="process started" source=process`+pid+`user=root command="/bin/sh -c exit 3 # long`)
	require.Contains(t, lines[1], `msg="process ended" source=process`+pid+`status="exit status 3" after=`)
	for _, line := range lines {
		require.Less(t, len(line), 400, "a long command makes a long line")
	}
}

func TestAnswersInATraceTellTheirTime(t *testing.T) {
	s := start(t)
	res, _ := s.do(http.MethodGet, "/health", nil, nil)
	require.Empty(t, res.Header.Get(hostapi.TimingHeader), "nobody asked")
	trace := http.Header{hostapi.TraceHeader: {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
	for _, path := range []string{"/health", "/envs", "/nothing"} {
		res, _ := s.do(http.MethodGet, path, trace, nil)
		require.Regexp(t, `^agent;dur=\d+\.\d{3}$`, res.Header.Get(hostapi.TimingHeader), path)
	}
}
