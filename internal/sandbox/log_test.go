package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func texts(lines []LogLine) []string {
	var found []string
	for _, line := range lines {
		found = append(found, line.Source+" "+line.Level+": "+line.Text)
	}
	return found
}

func TestLogbookKeepsTheLastLines(t *testing.T) {
	var book logbook
	for n := range lifecycleMost + 10 {
		book.add("lifecycle", fmt.Sprint(n))
	}
	lines := book.all()
	require.Len(t, lines, lifecycleMost)
	require.Equal(t, "10", lines[0].Text)
	require.Equal(t, fmt.Sprint(lifecycleMost+9), lines[lifecycleMost-1].Text)
}

func TestLogbookJoinsAndBoundsLines(t *testing.T) {
	var book logbook
	for _, piece := range []string{"one", " line\nnext", "\n\n", strings.Repeat("x", 3*logLineBytes), "more\nunfinished"} {
		n, err := book.Write([]byte(piece))
		require.NoError(t, err)
		require.Equal(t, len(piece), n)
	}
	book.warn("network", strings.Repeat("y", logLineBytes+1))
	require.Equal(t, []string{
		"agent info: one line", "agent info: next", "agent info: ",
		"agent info: " + strings.Repeat("x", logLineBytes),
		"network warn: " + strings.Repeat("y", logLineBytes),
	}, texts(book.all()))
	require.LessOrEqual(t, cap(book.part), 2*logLineBytes, "an endless line takes memory")
}

func TestLogbookTakesTheAgentsLinesApart(t *testing.T) {
	var book logbook
	for _, line := range []string{
		`time=2026-11-30T06:00:00.000Z level=WARN msg="ended a process, the sandbox is out of memory" pid=7 name=python3`,
		`time=2026-11-30T06:00:00.000Z level=ERROR msg=init error="no such file"`,
		`time=2026-11-30T06:00:00.000Z level=INFO msg="process started" source=process pid=7 user=root command="sh -c \"a\""`,
		`panic: something`,
		`time=now level=LOUD msg=x`,
		`level=INFO msg=x`,
		"\x1b[31mred\x00\tand \xff bytes",
	} {
		book.Write([]byte(line + "\n"))
	}
	require.Equal(t, []string{
		`agent warn: ended a process, the sandbox is out of memory pid=7 name=python3`,
		`agent error: init error="no such file"`,
		`process info: process started pid=7 user=root command="sh -c \"a\""`,
		`agent info: panic: something`,
		`agent info: time=now level=LOUD msg=x`,
		`agent info: level=INFO msg=x`,
		"agent info: ?[31mred?\tand ? bytes",
	}, texts(book.all()))
}

func TestLogbookTailIsTheAgentsLastLines(t *testing.T) {
	var book logbook
	for n := range 5 {
		book.add("agent", fmt.Sprint("agent ", n))
		book.add("lifecycle", "between")
	}
	require.Equal(t, "agent 3\nagent 4", book.tail(2))
	require.Equal(t, "", (&logbook{}).tail(2))
}

// What code inside prints without end costs bounded memory and disk, and does not
// push out what the host says.
func TestFloodOfLinesIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	var book logbook
	require.NoError(t, book.open(file))
	book.add("lifecycle", "running")
	flood := []byte(strings.Repeat(strings.Repeat("\x01z", logLineBytes/2)+"\n", 100))
	for range 200 {
		book.Write(flood)
		require.NoError(t, book.save())
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), int64(logFileBytes))
	}
	total := 0
	for _, line := range book.all() {
		total += len(line.Text)
	}
	require.LessOrEqual(t, total, logBytes+100)
	require.LessOrEqual(t, cap(book.inside.list), 4*logLines, "lines let go of take memory")
	require.Positive(t, book.leftOut, "too many lines a second should be left out")
	require.Equal(t, "running", book.all()[0].Text)

	require.NoError(t, book.close())
	var again logbook
	require.NoError(t, again.open(file))
	require.Equal(t, book.all(), again.all())
}

func TestLeftOutLinesAreTold(t *testing.T) {
	var book logbook
	for range logBurst + 100 {
		book.add("network", "refused")
	}
	require.Positive(t, book.leftOut)
	require.Eventually(t, func() bool {
		book.add("network", "later")
		return strings.Contains(fmt.Sprint(texts(book.all())), "lines were left out here")
	}, sampleEvery, sampleEvery/1000)
}

func TestLogbookGoesOnAfterARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	var first logbook
	require.NoError(t, first.open(file))
	first.add("lifecycle", "running")
	require.NoError(t, first.save())
	first.warn("network", "refused")
	require.NoError(t, first.save())
	// It is killed while it writes.
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"time":"2026-11-30T06:00:00Z","source":"agent","text":"half wri`)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	var second logbook
	require.NoError(t, second.open(file))
	require.Equal(t, first.all(), second.all())
	second.add("lifecycle", "taken over")
	require.NoError(t, second.close())
	second.add("lifecycle", "not written any more")
	require.NoError(t, second.save())

	var third logbook
	require.NoError(t, third.open(file))
	require.NoError(t, third.open(file), "opening again does nothing")
	require.Equal(t, []string{"lifecycle info: running", "network warn: refused", "lifecycle info: taken over"}, texts(third.all()))
}
