package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/audit"
)

func TestTheLastRecordsThatFit(t *testing.T) {
	dir := folder(t)
	fill(t, dir, 40, audit.Options{SegmentSize: tamperedSize})
	for _, tt := range []struct {
		last int
		f    audit.Filter
		want int
	}{
		{last: 5, want: 5},
		{last: 35, want: 35}, // of several segments
		{last: 1000, want: 41},
		{last: 0, want: 0},
		{last: 5, f: audit.Filter{Kinds: []audit.Kind{audit.Server}}, want: 1},
		{last: 5, f: audit.Filter{Sandbox: "sb", Actor: "key:k", Key: "k"}, want: 5},
		{last: 5, f: audit.Filter{Sandbox: "other"}, want: 0},
		{last: 5, f: audit.Filter{Decision: "deny"}, want: 0},
		{last: 5, f: audit.Filter{Since: time.Now().Add(time.Hour)}, want: 0},
		{last: 5, f: audit.Filter{Until: time.Now().Add(-time.Hour)}, want: 0},
		{last: 100, f: audit.Filter{Since: time.Now().Add(-time.Hour)}, want: 41},
	} {
		var got []uint64
		require.NoError(t, audit.Tail(t.Context(), dir, tt.f, tt.last, false, func(r audit.Record, line []byte) error {
			var again audit.Record
			require.NoError(t, json.Unmarshal(line, &again))
			require.Equal(t, r.Hash, again.Hash)
			got = append(got, r.Seq)
			return nil
		}))
		require.Len(t, got, tt.want, "%+v", tt)
		for i := 1; i < len(got); i++ {
			require.Equal(t, got[i-1]+1, got[i])
		}
	}
}

func TestFollowingSeesEveryRecordOnce(t *testing.T) {
	dir := folder(t)
	l := open(t, dir, audit.Options{SegmentSize: tamperedSize})
	l.Append(audit.Record{Kind: audit.Exec, What: "before"})
	arrived(t, dir, 2)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	seen := make(chan string, 1000)
	done := make(chan error)
	go func() {
		done <- audit.Tail(ctx, dir, audit.Filter{Kinds: []audit.Kind{audit.Exec}}, 10, true, func(r audit.Record, _ []byte) error {
			seen <- r.What
			return nil
		})
	}()
	require.Equal(t, "before", <-seen)
	const n = 60 // several segments
	for i := range n {
		l.Append(audit.Record{Kind: audit.Exec, What: fmt.Sprint(i)})
		if i%20 == 0 {
			arrived(t, dir, i+3)
		}
	}
	for i := range n {
		require.Equal(t, fmt.Sprint(i), <-seen)
	}
	stop()
	require.NoError(t, <-done)
}

func TestThereMustBeALog(t *testing.T) {
	dir := folder(t)
	each := func(audit.Record, []byte) error { return nil }
	require.ErrorIs(t, audit.Tail(t.Context(), dir, audit.Filter{}, 1, true, each), audit.ErrNoLog)
	require.ErrorIs(t, audit.Read(t.Context(), dir, audit.Filter{}, each), audit.ErrNoLog)
	_, err := audit.Verify(dir, make(audit.Key, 32), audit.VerifyOptions{})
	require.ErrorIs(t, err, audit.ErrNoLog)
}

func TestAFloodIsFoldedAndOnlyTheFloodersRecords(t *testing.T) {
	dir := folder(t)
	l := open(t, dir, audit.Options{})
	const n = 5000
	for i := range n {
		l.Append(audit.Record{Kind: audit.Network, Actor: "sandbox:loud", SandboxID: "loud", What: "connect", Decision: "deny", Detail: audit.Detail(map[string]int{"port": i % 10})})
		if i < 500 {
			l.Append(audit.Record{Kind: audit.Network, Actor: "sandbox:calm", SandboxID: "calm", What: "connect", Decision: "deny", ID: fmt.Sprint(i)})
			l.Append(audit.Record{Kind: audit.Exec, Actor: "key:k", SandboxID: "loud", What: "command", ID: fmt.Sprint(i)})
		}
	}
	for i := range n {
		l.Append(audit.Record{Kind: audit.Network, Actor: "sandbox:wild", SandboxID: "wild", What: "connect", Decision: "allow", DetailOf: map[string]int{"port": i}})
	}
	require.NoError(t, l.Close())
	require.Empty(t, verify(t, dir, audit.VerifyOptions{}).Problems)

	total := func(sandbox string) (lines, counted, leftOut int) {
		for _, r := range records(t, dir, audit.Filter{Sandbox: sandbox}) {
			if r.Kind == audit.Server {
				var d struct{ Records map[string]int }
				require.NoError(t, json.Unmarshal(r.Detail, &d))
				leftOut += d.Records["network connect allow"] + d.Records["network connect deny"]
				continue
			}
			lines++
			counted += max(1, r.Count)
		}
		return lines, counted, leftOut
	}
	lines, counted, leftOut := total("loud")
	require.Equal(t, n+500, counted, "everything is counted")
	require.Less(t, lines, 2000)
	require.Zero(t, leftOut)
	_, counted, leftOut = total("calm")
	require.Equal(t, 500, counted)
	require.Zero(t, leftOut)
	lines, counted, leftOut = total("wild")
	require.Less(t, lines, 1500)
	require.Equal(t, n, counted+leftOut, "what is too much is counted")
	require.NotZero(t, leftOut)
}

// A row is what code inside can do as often as it likes, without anybody minding: the
// connection that it then makes has a record of its own.
func TestAFloodHidesNoConnectionThatWasAllowed(t *testing.T) {
	for name, flood := range map[string]audit.Record{
		"of datagrams that are refused":      {Kind: audit.Network, What: "send", Decision: "deny"},
		"of connections that are refused":    {Kind: audit.Network, What: "connect", Decision: "deny"},
		"of names that may be asked for":     {Kind: audit.Network, What: "look up", Decision: "allow"},
		"of programs that are started":       {Kind: audit.Exec, What: "process"},
		"of requests that read some service": {Kind: audit.Network, What: "request", Decision: "allow"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t)
			l := open(t, dir, audit.Options{})
			flood.Actor, flood.SandboxID = "sandbox:s", "s"
			for i := range 5000 {
				flood.DetailOf = map[string]int{"number": i}
				l.Append(flood)
			}
			l.Append(audit.Record{Kind: audit.Network, Actor: "sandbox:s", SandboxID: "s", What: "connect", Decision: "allow", Rule: "upload"})
			require.NoError(t, l.Close())
			var rules []string
			for _, r := range records(t, dir, audit.Filter{Sandbox: "s"}) {
				if r.What == "connect" && r.Decision == "allow" {
					rules = append(rules, r.Rule)
				}
			}
			require.Equal(t, []string{"upload"}, rules)
		})
	}
}

func TestARecordIsInTheFileWithoutAnotherAfterIt(t *testing.T) {
	dir := folder(t)
	l := open(t, dir, audit.Options{})
	for i := range 3 {
		l.Append(audit.Record{Kind: audit.Exec, Actor: "owner", What: fmt.Sprint(i)})
		arrived(t, dir, 2+i)
	}
}

func TestAKilledWriterLeavesALogThatIsWhole(t *testing.T) {
	if dir := os.Getenv("AUDIT_TEST_WRITE"); dir != "" {
		writeUntilKilled(dir)
	}
	dir := folder(t)
	fill(t, dir, 1, audit.Options{})
	for round := range 5 {
		child := exec.Command(os.Args[0], "-test.run", t.Name())
		child.Env = append(os.Environ(), "AUDIT_TEST_WRITE="+dir)
		require.NoError(t, child.Start())
		arrived(t, dir, len(records(t, dir, audit.Filter{}))+300+round*117)
		require.NoError(t, child.Process.Kill())
		require.Error(t, child.Wait())
		require.Empty(t, verify(t, dir, audit.VerifyOptions{}).Problems)
	}
	fill(t, dir, 3, audit.Options{})
	require.Empty(t, verify(t, dir, audit.VerifyOptions{}).Problems)
}

func writeUntilKilled(dir string) {
	l, err := audit.Open(dir, audit.Options{SegmentSize: 64 << 10})
	if err != nil {
		panic(err)
	}
	for i := 0; ; i++ {
		l.Append(audit.Record{Kind: audit.Exec, Actor: "owner", What: fmt.Sprint(i)})
	}
}

func TestWhatIsAppendedAfterTheEndIsToldOf(t *testing.T) {
	dir := folder(t)
	l := open(t, dir, audit.Options{})
	require.NoError(t, l.Close())
	l.Append(audit.Record{Kind: audit.Exec, What: "late"}) // must neither block nor panic
	require.NoError(t, l.Close())
	require.Len(t, records(t, dir, audit.Filter{}), 1)
}

// BenchmarkAppend is what a record costs who makes it.
func BenchmarkAppend(b *testing.B) {
	l, err := audit.Open(audit.Dir(b.TempDir()), audit.Options{})
	require.NoError(b, err)
	r := benchRecord()
	b.ReportAllocs()
	began := time.Now()
	for b.Loop() {
		l.Append(r)
	}
	n := b.N
	require.NoError(b, l.Close())
	b.ReportMetric(float64(n)/time.Since(began).Seconds(), "records/s")
}

// BenchmarkAppendPlain is what BenchmarkAppend is beside: the same record as a line of a file,
// with no hash and no writer of its own.
func BenchmarkAppendPlain(b *testing.B) {
	file, err := os.Create(filepath.Join(b.TempDir(), "lines"))
	require.NoError(b, err)
	defer file.Close()
	lines := json.NewEncoder(file)
	r := benchRecord()
	b.ReportAllocs()
	for b.Loop() {
		r.Time = time.Now()
		require.NoError(b, lines.Encode(r))
	}
}

func benchRecord() audit.Record {
	return audit.Record{
		Kind: audit.Network, Actor: "key:k", SandboxID: "sandboxsandboxsandbox", What: "connect", Decision: "allow", Rule: "default",
		DetailOf: map[string]any{"host": "example.com", "port": 443, "protocol": "tcp"},
	}
}
