package build

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

func TestLinesOfAStepBecomeEntries(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	j, err := newJournal(path, nil)
	require.NoError(t, err)
	last := &tail{}
	out := &lines{journal: j, level: LevelInfo, step: "1", prefix: "> ", tail: last}
	fmt.Fprint(out, "one\r\ntw")
	fmt.Fprint(out, "o\n\n10%\r50%\r100%\n"+strings.Repeat("x", 3*messageBytes)+"\nno end \xff")
	out.flush()
	require.NoError(t, j.close())

	entries, err := readJournal(path)
	require.NoError(t, err)
	require.Equal(t, j.all(), entries)
	var texts []string
	for _, e := range entries {
		require.Equal(t, "1", e.Step)
		texts = append(texts, e.Message)
	}
	require.Equal(t, []string{"> one", "> two", "> 100%"}, texts[:3])
	require.Less(t, len(texts[3]), messageBytes+10)
	require.Equal(t, "> no end \uFFFD", texts[4])
	require.Len(t, last.lines, 5)
}

func TestALogIsBounded(t *testing.T) {
	j, err := newJournal(filepath.Join(t.TempDir(), "log"), nil)
	require.NoError(t, err)
	out := &lines{journal: j, tail: &tail{}}
	line := []byte(strings.Repeat("y", 1000) + "\n")
	for range 2 * bytesMost / len(line) {
		out.Write(line)
	}
	j.say(LevelError, "", "build failed")
	entries := j.all()
	require.Less(t, len(entries)*1000, bytesMost+10_000)
	require.Contains(t, entries[len(entries)-2].Message, "left out")
	require.Equal(t, "build failed", entries[len(entries)-1].Message, "what the build says itself is kept")
	require.NoError(t, j.close())
}

func TestAHalfWrittenLogIsReadAsFarAsItGoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, []byte(`{"message":"a"}`+"\n"+`{"mess`), 0o600))
	entries, err := readJournal(path)
	require.NoError(t, err)
	require.Equal(t, []Entry{{Message: "a"}}, entries)
	entries, err = readJournal(path + "-none")
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestALogGoesWithTheRecordOfItsBuild(t *testing.T) {
	dir := t.TempDir()
	records, err := sqlite.Open(t.Context(), filepath.Join(dir, "tombolo.db"))
	require.NoError(t, err)
	defer records.Close()
	b, err := New(t.Context(), Config{DataDir: dir, Store: records})
	require.NoError(t, err)
	defer b.Close()
	var ids []string
	for _, alias := range []string{"kept", "deleted"} {
		record, err := b.Request(t.Context(), Request{KeyID: "k", Alias: alias})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(b.logPath(record.ID), nil, 0o600))
		ids = append(ids, record.ID)
	}
	_, err = records.DeleteTemplate(t.Context(), "deleted")
	require.NoError(t, err)
	require.NoError(t, b.pruneRecords(t.Context()))
	require.FileExists(t, b.logPath(ids[0]))
	require.NoFileExists(t, b.logPath(ids[1]))
}
