package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/audit"
)

// open opens a log that the test closes.
func open(t *testing.T, dir string, o audit.Options) *audit.Log {
	t.Helper()
	l, err := audit.Open(dir, o)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// folder is the audit folder of a new data folder.
func folder(t *testing.T) string { return audit.Dir(t.TempDir()) }

func keyOf(t *testing.T, dir string) audit.Key {
	t.Helper()
	key, err := audit.ReadKey(audit.KeyFile(filepath.Dir(dir)))
	require.NoError(t, err)
	return key
}

// fill appends records "do 1" to "do n" and closes the log.
func fill(t *testing.T, dir string, n int, o audit.Options) {
	t.Helper()
	l, err := audit.Open(dir, o)
	require.NoError(t, err)
	for i := range n {
		l.Append(audit.Record{Kind: audit.Exec, Actor: "key:k", SandboxID: "sb", What: fmt.Sprintf("do %d", i+1)})
	}
	require.NoError(t, l.Close())
}

func records(t *testing.T, dir string, f audit.Filter) []audit.Record {
	t.Helper()
	var all []audit.Record
	require.NoError(t, audit.Read(context.Background(), dir, f, func(r audit.Record, _ []byte) error {
		all = append(all, r)
		return nil
	}))
	return all
}

func verify(t *testing.T, dir string, o audit.VerifyOptions) audit.Report {
	t.Helper()
	report, err := audit.Verify(dir, keyOf(t, dir), o)
	require.NoError(t, err)
	return report
}

func TestALogIsWhatWasAppended(t *testing.T) {
	dir := folder(t)
	l := open(t, dir, audit.Options{})
	l.Append(audit.Record{
		Kind: audit.Network, Actor: "sandbox:sb", SandboxID: "sb", KeyID: "k", What: "connect", Decision: "deny",
		Rule: "no-uploads", Reason: "line one\nline <two>", ID: "req_1", DetailOf: map[string]any{"host": "example.com", "port": 443},
	})
	require.NoError(t, l.Close())

	all := records(t, dir, audit.Filter{})
	require.Len(t, all, 2)
	require.Equal(t, "begin audit log", all[0].What)
	r := all[1]
	require.EqualValues(t, 2, r.Seq)
	require.Equal(t, all[0].Hash, r.Previous)
	require.False(t, r.Time.IsZero())
	require.Equal(t, "line one\nline <two>", r.Reason)
	require.JSONEq(t, `{"host":"example.com","port":443}`, string(r.Detail))

	report := verify(t, dir, audit.VerifyOptions{})
	require.Empty(t, report.Problems)
	require.Empty(t, report.Notes)
	require.Equal(t, audit.Head{Seq: 2, Hash: r.Hash}, report.Head)
}

func TestManyWritersShareOneChain(t *testing.T) {
	dir := folder(t)
	const writers, each = 4, 500
	var all sync.WaitGroup
	for w := range writers {
		l := open(t, dir, audit.Options{SegmentSize: 64 << 10}) // as a process of its own
		all.Go(func() {
			for i := range each {
				l.Append(audit.Record{Kind: audit.Exec, Actor: "owner", What: fmt.Sprint(w), ID: fmt.Sprint(i)})
			}
			require.NoError(t, l.Close())
		})
	}
	all.Wait()
	report := verify(t, dir, audit.VerifyOptions{})
	require.Empty(t, report.Problems)
	require.Equal(t, writers*each+1, report.Records)
	next := map[string]int{}
	for _, r := range records(t, dir, audit.Filter{Kinds: []audit.Kind{audit.Exec}}) {
		require.Equal(t, fmt.Sprint(next[r.What]), r.ID, "the records of one writer stay in order")
		next[r.What]++
	}
	parts, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	require.NoError(t, err)
	require.Greater(t, len(parts), 2)
}

func TestWhatIsTooLongIsCut(t *testing.T) {
	dir := folder(t)
	l := open(t, dir, audit.Options{})
	long := make([]byte, 1<<20)
	for i := range long {
		long[i] = '\n'
	}
	l.Append(audit.Record{
		Kind: audit.Exec, Actor: "key:" + string(long), What: string(long), Reason: string(long) + "\xff", ID: string(long),
		Detail: audit.Detail(map[string]string{"command": string(long)}),
	})
	l.Append(audit.Record{Kind: audit.Exec, What: "bad", Detail: json.RawMessage("{\n")})
	l.Append(audit.Record{Kind: audit.Exec, What: "wide", Detail: json.RawMessage("{\n \"a\": \"\xff\" }")})
	l.Append(audit.Record{Kind: audit.Exec, What: "made", DetailOf: map[string]string{"command": string(long)}})
	l.Append(audit.Record{Kind: audit.Exec, What: "no value", DetailOf: map[string]any{"it": l.Close}})
	require.NoError(t, l.Close())
	require.Empty(t, verify(t, dir, audit.VerifyOptions{}).Problems)
	all := records(t, dir, audit.Filter{Kinds: []audit.Kind{audit.Exec}})
	require.Len(t, all, 5)
	require.Contains(t, all[0].What, "(cut)")
	require.LessOrEqual(t, len(all[0].Detail), audit.MaxDetail)
	require.Contains(t, string(all[0].Detail), `"cut":2097`)
	require.JSONEq(t, `{"invalid":"{\n"}`, string(all[1].Detail))
	require.Equal(t, "{\"a\":\"\uFFFD\"}", string(all[2].Detail))
	require.Contains(t, string(all[3].Detail), `"cut":2097`)
	require.Contains(t, string(all[4].Detail), "could not be encoded")
}

func TestALogWithoutItsKeyIsNotGoneOnWith(t *testing.T) {
	dir := folder(t)
	fill(t, dir, 3, audit.Options{})
	require.NoError(t, os.Remove(audit.KeyFile(filepath.Dir(dir))))
	_, err := audit.Open(dir, audit.Options{})
	require.ErrorContains(t, err, "put the key back")
}
