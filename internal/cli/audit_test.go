package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/engine"
)

func TestAuditCommands(t *testing.T) {
	dir := t.TempDir()
	run := func(code int, args ...string) string {
		t.Helper()
		got := tombolo(t, dir, "", append([]string{"audit"}, args...)...)
		require.Equal(t, code, got.code, got.stdout+got.stderr)
		return got.stdout + got.stderr
	}
	require.Contains(t, run(1, "tail"), "there is no audit log")
	require.Contains(t, run(1, "verify"), "audit.key")

	log, err := audit.Open(audit.Dir(dir), audit.Options{})
	require.NoError(t, err)
	recordProcesses(log)("sb", "k", engine.Process{PID: 7, Parent: 1, By: "bash", Binary: "/bin/ls", Args: []string{"ls", "a\x1b[31mb", strings.Repeat("x", 10_000)}, Missed: 3})
	log.Append(audit.Record{Kind: audit.Network, Actor: "sandbox:sb", SandboxID: "sb", What: "connect", Decision: "deny", Rule: "no", Reason: "because\nof that"})
	require.NoError(t, log.Close())

	tail := run(0, "tail")
	require.Equal(t, 4, strings.Count(tail, "\n"), "a line for each record: %s", tail)
	require.NotContains(t, tail, "\x1b")
	require.Contains(t, tail, "missed=3")
	require.Contains(t, tail, "binary=/bin/ls")
	require.Contains(t, tail, `rule=no  "because\nof that"`)
	require.Equal(t, 1, strings.Count(run(0, "tail", "--kind", "network", "--sandbox", "sb", "--since", "1h"), "\n"))
	require.Empty(t, run(0, "tail", "--sandbox", "other"))
	var r audit.Record
	require.NoError(t, json.Unmarshal([]byte(run(0, "tail", "-n", "1", "--json")), &r))
	require.Equal(t, "deny", r.Decision)

	require.Contains(t, run(0, "verify"), "the log is whole")
	var report audit.Report
	require.NoError(t, json.Unmarshal([]byte(run(0, "verify", "--json")), &report))
	head := "4:" + report.Head.Hash
	require.Contains(t, run(0, "verify", "--head", head), "head: "+head)
	require.Contains(t, run(1, "verify", "--head", "4:"+strings.Repeat("0", 64)), "PROBLEM")

	out := filepath.Join(t.TempDir(), "out.jsonl")
	run(0, "export", "--format", "ocsf", "--until", time.Now().Add(time.Hour).Format(time.RFC3339), "-o", out)
	text, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, 4, strings.Count(string(text), `"class_uid"`))
	require.Equal(t, 4, strings.Count(run(0, "export"), `"hash"`))

	for _, args := range []string{"tail --kind no", "tail --since yesterday", "tail --decision maybe", "tail -n -1", "verify --head 4", "export --format xml", "tail more"} {
		run(1, strings.Fields(args)...)
	}

	segments, err := filepath.Glob(filepath.Join(audit.Dir(dir), "*.jsonl"))
	require.NoError(t, err)
	text, err = os.ReadFile(segments[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(segments[0], []byte(strings.Replace(string(text), "/bin/ls", "/bin/cp", 1)), 0o600))
	require.Contains(t, run(1, "verify"), "record 3 was changed after it was written")
}

func TestAuditKeep(t *testing.T) {
	for text, want := range map[string]audit.Keep{
		"":           {},
		"all":        {},
		"90d,10GiB":  {Age: 90 * 24 * time.Hour, Bytes: 10 << 30},
		"512MiB":     {Bytes: 512 << 20},
		"36h":        {Age: 36 * time.Hour},
		"10GiB,7d":   {Age: 7 * 24 * time.Hour, Bytes: 10 << 30},
		"1d,2d":      {Age: -1},
		"1GiB,2GiB":  {Age: -1},
		"0d":         {Age: -1},
		"1MiB":       {Age: -1},
		"5":          {Age: -1},
		"all,10GiB":  {Age: -1},
		"90000000d":  {Age: -1},
		"90d, 10GiB": {Age: 90 * 24 * time.Hour, Bytes: 10 << 30},
	} {
		keep, err := parseKeep(text)
		if want.Age < 0 {
			require.ErrorContains(t, err, "--audit-keep", text)
			continue
		}
		require.NoError(t, err, text)
		require.Equal(t, want, keep, text)
	}
}
