package audit_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/audit"
)

// The log that is tampered with has records 1 to 41 in several segments: the
// beginning, and "do 1" to "do 40".
const (
	tamperedRecords = 41
	tamperedSize    = 4 << 10
)

// edit changes the lines of the whole log, as they lie one after the other; the
// files get as many lines as they had, the last one the rest.
func edit(t *testing.T, dir string, change func(lines []string) []string) {
	t.Helper()
	paths := parts(t, dir)
	var all []string
	var counts []int
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		lines := strings.SplitAfter(strings.TrimSuffix(string(raw), "\n"), "\n")
		lines[len(lines)-1] += "\n"
		all, counts = append(all, lines...), append(counts, len(lines))
	}
	all = change(all)
	for i, path := range paths {
		n := min(counts[i], len(all))
		if i == len(paths)-1 {
			n = len(all)
		}
		require.NoError(t, os.WriteFile(path, []byte(strings.Join(all[:n], "")), 0o600))
		all = all[n:]
	}
}

func parts(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	return paths
}

// lineOf is the index of a record in the lines.
func lineOf(seq int) int { return seq - 1 }

func TestTamperingIsFound(t *testing.T) {
	replace := func(seq int, from, to string) func(lines []string) []string {
		return func(lines []string) []string {
			changed := strings.Replace(lines[lineOf(seq)], from, to, 1)
			if changed == lines[lineOf(seq)] {
				panic("nothing was changed")
			}
			lines[lineOf(seq)] = changed
			return lines
		}
	}
	for name, c := range map[string]struct {
		tamper func(t *testing.T, dir string)
		lines  func(lines []string) []string
		says   string // one of the problems
	}{
		"a word is changed":       {lines: replace(9, "do 8", "do 9"), says: "record 9 was changed after it was written"},
		"a space is added":        {lines: replace(9, `"kind"`, ` "kind"`), says: "record 9 was changed after it was written"},
		"a number is changed":     {lines: replace(9, `"seq":9,`, `"seq":900,`), says: "record 900 was changed after it was written"},
		"a time is changed":       {lines: replace(9, `"time":"2`, `"time":"1`), says: "record 9 was changed"},
		"a hash is changed":       {lines: replace(9, `"hash":"`, `"hash":"0`), says: "record 9 was changed"},
		"the last is changed":     {lines: replace(tamperedRecords, "do 40", "do 41"), says: "record 41 was changed"},
		"the first is changed":    {lines: replace(1, "begin", "began"), says: "record 1 was changed"},
		"a member is added twice": {lines: replace(9, `"kind":"exec",`, `"kind":"exec","kind":"file",`), says: "record 9 was changed"},
		"a line is made garbage":  {lines: func(l []string) []string { l[lineOf(9)] = "\x00\xff\n"; return l }, says: "a record before 10 was changed into what is no record"},
		"two in a row are changed": {
			lines: func(l []string) []string { return replace(9, "do 8", "x")(replace(10, "do 9", "x")(l)) },
			says:  "record 10 was changed",
		},
		"one is removed":       {lines: func(l []string) []string { return slices.Delete(l, lineOf(9), lineOf(10)) }, says: "record 9 is missing before record 10"},
		"some are removed":     {lines: func(l []string) []string { return slices.Delete(l, lineOf(9), lineOf(19)) }, says: "records 9 to 18 are missing before record 19"},
		"the first is removed": {lines: func(l []string) []string { return l[1:] }, says: "record 1 is missing at the beginning"},
		"the last is removed":  {lines: func(l []string) []string { return l[:len(l)-1] }, says: "record 41 is missing at the end"},
		"the last ten are":     {lines: func(l []string) []string { return l[:len(l)-10] }, says: "records 32 to 41 are missing at the end"},
		"one is changed, and the one before removed": {
			lines: func(l []string) []string { return slices.Delete(replace(10, "do 9", "x")(l), lineOf(9), lineOf(10)) },
			says:  "records 9 to 10 are missing before record 11",
		},
		"one is added":             {lines: func(l []string) []string { return slices.Insert(l, lineOf(9), forged(9)) }, says: "what says it is record 9 was added"},
		"one is added at the end":  {lines: func(l []string) []string { return append(l, forged(tamperedRecords+1)) }, says: "what says it is record 42 was added"},
		"one is added at the head": {lines: func(l []string) []string { return slices.Insert(l, 0, forged(0)) }, says: "was changed into what is no record"},
		"one is there twice":       {lines: func(l []string) []string { return slices.Insert(l, lineOf(9), l[lineOf(9)]) }, says: "record 9 is here twice"},
		"an old one comes again":   {lines: func(l []string) []string { return slices.Insert(l, lineOf(20), l[lineOf(9)]) }, says: "record 9 is out of its place, after record 19"},
		"two are swapped": {
			lines: func(l []string) []string { l[lineOf(9)], l[lineOf(10)] = l[lineOf(10)], l[lineOf(9)]; return l },
			says:  "record 9 is out of its place, after record 10",
		},
		"the order is reversed": {lines: func(l []string) []string { slices.Reverse(l); return l }, says: "record 1 is out of its place"},
		"everything is replaced": {
			lines: func(l []string) []string {
				for i := range l {
					l[i] = forged(i + 1)
				}
				return l
			},
			says: "none of the 41 lines was written with this key",
		},
		"the last line is cut": {
			tamper: func(t *testing.T, dir string) { shorten(t, parts(t, dir), 10) },
			says:   "record 41 is missing at the end",
		},
		"the last segment is removed": {
			tamper: func(t *testing.T, dir string) { remove(t, last(parts(t, dir))) },
			says:   "missing at the end: record 41 was the last on the disk",
		},
		"the last segment is emptied": {
			tamper: func(t *testing.T, dir string) { require.NoError(t, os.Truncate(last(parts(t, dir)), 0)) },
			says:   "missing at the end",
		},
		"the first segment is removed": {
			tamper: func(t *testing.T, dir string) { remove(t, parts(t, dir)[0]) },
			says:   "missing at the beginning, and no record says that they were pruned",
		},
		"a segment in the middle is removed": {
			tamper: func(t *testing.T, dir string) { remove(t, parts(t, dir)[1]) },
			says:   "are missing before record",
		},
		"a segment in the middle ends early": {
			tamper: func(t *testing.T, dir string) { shorten(t, parts(t, dir)[:2], 10) },
			says:   "the last line is not whole, and later records are in another file",
		},
		"two segments are swapped": {
			tamper: func(t *testing.T, dir string) {
				p := parts(t, dir)
				require.NoError(t, os.Rename(p[0], p[0]+".x"))
				require.NoError(t, os.Rename(p[1], p[0]))
				require.NoError(t, os.Rename(p[0]+".x", p[1]))
			},
			says: "the file has the name of record 1 and begins with record",
		},
		"all segments are removed": {
			tamper: func(t *testing.T, dir string) {
				for _, p := range parts(t, dir) {
					remove(t, p)
				}
			},
			says: "records 1 to 41 are missing at the end",
		},
		"the head is removed": {
			tamper: func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "head")) },
			says:   "the file head is missing",
		},
		"the head is set back with the log": {
			tamper: func(t *testing.T, dir string) {
				edit(t, dir, func(l []string) []string { return l[:len(l)-1] })
				head, err := os.ReadFile(filepath.Join(dir, "head"))
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(dir, "head"), bytes.Replace(head, []byte(`"seq":41`), []byte(`"seq":40`), 1), 0o600))
			},
			says: "the file head was changed",
		},
		"a change is hidden by starting the server again": {
			tamper: func(t *testing.T, dir string) {
				edit(t, dir, replace(tamperedRecords, "do 40", "do 41"))
				fill(t, dir, 3, audit.Options{})
			},
			says: "the last 1 lines were changed or added",
		},
		"a removal is hidden by starting the server again": {
			tamper: func(t *testing.T, dir string) {
				edit(t, dir, func(l []string) []string { return l[:len(l)-3] })
				fill(t, dir, 3, audit.Options{})
			},
			says: "records 39 to 41 are missing before record 42",
		},
		"the head and the end are removed, and the server started again": {
			tamper: func(t *testing.T, dir string) {
				edit(t, dir, func(l []string) []string { return l[:len(l)-3] })
				remove(t, filepath.Join(dir, "head"))
				fill(t, dir, 3, audit.Options{})
			},
			says: "record 39 says that at",
		},
		"what is long and no line is added, and the server started again": {
			tamper: func(t *testing.T, dir string) {
				f, err := os.OpenFile(last(parts(t, dir)), os.O_WRONLY|os.O_APPEND, 0)
				require.NoError(t, err)
				_, err = f.WriteString(strings.Repeat("x", 1<<20))
				require.NoError(t, err)
				require.NoError(t, f.Close())
				fill(t, dir, 3, audit.Options{})
			},
			says: "this is no record",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t)
			fill(t, dir, tamperedRecords-1, audit.Options{SegmentSize: tamperedSize})
			require.Empty(t, verify(t, dir, audit.VerifyOptions{}).Problems)
			require.Greater(t, len(parts(t, dir)), 2)
			if c.lines != nil {
				edit(t, dir, c.lines)
			} else {
				c.tamper(t, dir)
			}
			var said []string
			for _, p := range verify(t, dir, audit.VerifyOptions{}).Problems {
				said = append(said, p.String())
			}
			require.Contains(t, strings.Join(said, "\n"), c.says)
		})
	}
}

func last(paths []string) string { return paths[len(paths)-1] }

func remove(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.Remove(path))
}

// shorten cuts bytes off the last of some files.
func shorten(t *testing.T, paths []string, bytes int64) {
	t.Helper()
	info, err := os.Stat(last(paths))
	require.NoError(t, err)
	require.NoError(t, os.Truncate(last(paths), info.Size()-bytes))
}

// forged is a line as somebody writes it who knows all but the key.
func forged(seq int) string {
	if seq == 0 {
		return "{}\n"
	}
	return fmt.Sprintf(`{"seq":%d,"time":"2026-01-02T03:04:05Z","kind":"exec","actor":"owner","what":"nothing","previous":"%064d","hash":"%064d"}`+"\n", seq, 1, 2)
}

func TestAnotherKeyIsTold(t *testing.T) {
	dir, other := folder(t), folder(t)
	fill(t, dir, 3, audit.Options{})
	fill(t, other, 3, audit.Options{})
	_, err := audit.Verify(dir, keyOf(t, other), audit.VerifyOptions{})
	var wrong *audit.WrongKeyError
	require.ErrorAs(t, err, &wrong)

	// Nobody can move to another key by bringing a head of it.
	head, err := os.ReadFile(filepath.Join(other, "head"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "head"), head, 0o600))
	report, err := audit.Verify(dir, keyOf(t, other), audit.VerifyOptions{})
	require.NoError(t, err)
	require.Contains(t, report.Problems[0].Text, "none of the 4 lines was written with this key")
	_, err = audit.Open(dir, audit.Options{})
	require.ErrorAs(t, err, &wrong)
}

// A chain that is made anew by who has the key is right in itself; only what was
// noted elsewhere tells.
func TestANotedHeadTellsOfAChainMadeAnew(t *testing.T) {
	dir := folder(t)
	fill(t, dir, 20, audit.Options{})
	noted := verify(t, dir, audit.VerifyOptions{}).Head
	fill(t, dir, 5, audit.Options{})
	require.Empty(t, verify(t, dir, audit.VerifyOptions{Heads: []audit.Head{noted}}).Problems)

	require.NoError(t, os.RemoveAll(dir))
	fill(t, dir, 10, audit.Options{})
	report := verify(t, dir, audit.VerifyOptions{Heads: []audit.Head{noted}})
	require.Contains(t, report.Problems[0].Text, "the log ends with record 11, and record 21 was noted")
	fill(t, dir, 30, audit.Options{})
	report = verify(t, dir, audit.VerifyOptions{Heads: []audit.Head{noted}})
	require.Contains(t, report.Problems[0].Text, "the log was written anew")
}

func TestACheckCanBeginLater(t *testing.T) {
	dir := folder(t)
	fill(t, dir, 40, audit.Options{SegmentSize: tamperedSize})
	report := verify(t, dir, audit.VerifyOptions{From: 30})
	require.Empty(t, report.Problems)
	require.LessOrEqual(t, report.First, uint64(30))
	require.Greater(t, report.First, uint64(1))
	require.EqualValues(t, 41, report.Last)
}

// A crash leaves the beginning of a line whose record was never on the disk.
func TestACrashInALineIsRepaired(t *testing.T) {
	dir := folder(t)
	fill(t, dir, 10, audit.Options{})
	f, err := os.OpenFile(last(parts(t, dir)), os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"seq":12,"time":"20`)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	report := verify(t, dir, audit.VerifyOptions{})
	require.Empty(t, report.Problems)
	require.Contains(t, report.Notes[0].Text, "the last line is not whole (20 bytes)")

	fill(t, dir, 3, audit.Options{})
	report = verify(t, dir, audit.VerifyOptions{})
	require.Empty(t, report.Problems)
	require.Contains(t, report.Notes[0].Text, "record 12 of ")
	require.Contains(t, report.Notes[0].Text, "repair audit log")
	require.Equal(t, 15, report.Records)
}

// What was cut off cannot be removed under the guise of a crash.
func TestARepairDoesNotHideARemoval(t *testing.T) {
	dir := folder(t)
	fill(t, dir, 10, audit.Options{})
	shorten(t, parts(t, dir), 10)
	fill(t, dir, 3, audit.Options{})
	report := verify(t, dir, audit.VerifyOptions{})
	require.NotEmpty(t, report.Problems)
	require.Contains(t, report.Problems[0].Text, "record 11 is missing before record 12")
}

func TestDamageUnderARunningServerIsFound(t *testing.T) {
	for name, tamper := range map[string]func(t *testing.T, path string){
		"cut":     func(t *testing.T, path string) { shorten(t, []string{path}, 300) },
		"emptied": func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 0)) },
		"removed": remove,
		"replaced by a copy of the same length": func(t *testing.T, path string) {
			raw, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path+".x", bytes.Replace(raw, []byte("do 2"), []byte("do 3"), 1), 0o600))
			require.NoError(t, os.Rename(path+".x", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t)
			l := open(t, dir, audit.Options{})
			for i := range 5 {
				l.Append(audit.Record{Kind: audit.Exec, What: fmt.Sprintf("do %d", i)})
			}
			arrived(t, dir, 6)
			tamper(t, last(parts(t, dir)))
			l.Append(audit.Record{Kind: audit.Exec, What: "after"})
			require.NoError(t, l.Close())
			require.NotEmpty(t, verify(t, dir, audit.VerifyOptions{}).Problems)
		})
	}
}

// arrived waits until so many records are in the files.
func arrived(t *testing.T, dir string, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return len(records(t, dir, audit.Filter{})) >= n }, 10*time.Second, 5*time.Millisecond)
}

func TestWhatIsPrunedIsVouchedFor(t *testing.T) {
	dir := folder(t)
	small := audit.Options{SegmentSize: tamperedSize}
	fill(t, dir, 60, small)
	before := len(parts(t, dir))
	require.Greater(t, before, 3)

	small.Keep = audit.Keep{Bytes: 2 * tamperedSize}
	fill(t, dir, 1, small)
	require.Less(t, len(parts(t, dir)), before)
	report := verify(t, dir, audit.VerifyOptions{})
	require.Empty(t, report.Problems)
	require.Greater(t, report.First, uint64(1))
	require.Contains(t, report.Notes[0].Text, "prune audit log: more than 8192 bytes")

	// Removing one more, which nobody vouches for, is found.
	remove(t, parts(t, dir)[0])
	require.Contains(t, verify(t, dir, audit.VerifyOptions{}).Problems[0].Text, "no record says that they were pruned")
}

func TestOldSegmentsArePruned(t *testing.T) {
	dir := folder(t)
	small := audit.Options{SegmentSize: tamperedSize}
	fill(t, dir, 40, small)
	small.Keep = audit.Keep{Age: time.Hour}
	fill(t, dir, 1, small)
	require.EqualValues(t, 1, verify(t, dir, audit.VerifyOptions{}).First, "nothing is an hour old")
	small.Keep = audit.Keep{Age: time.Nanosecond}
	fill(t, dir, 1, small)
	report := verify(t, dir, audit.VerifyOptions{})
	require.Empty(t, report.Problems)
	require.Greater(t, report.First, uint64(1))
}
