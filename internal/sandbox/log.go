package sandbox

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/time/rate"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

// LogLine is one line of a sandbox's log.
type LogLine struct {
	Time time.Time `json:"time"`
	// Source is "agent" (what PID 1 wrote), "process" (starts and ends of processes,
	// as the agent tells them), "lifecycle" or "network".
	Source string `json:"source"`
	Level  string `json:"level"` // "debug", "info", "warn" or "error"
	Text   string `json:"text"`
}

// Limits of the log of one sandbox. Code inside can write to all of it but the
// lifecycle, which has room of its own so that nothing pushes it out.
const (
	logLines      = 1000
	lifecycleMost = 200
	logLineBytes  = 2048
	logBytes      = 256 << 10 // of the lines' texts, each of the two
	// logFileBytes is how large the file may grow before it is written anew with
	// what is in memory.
	logFileBytes = 2 << 20
	// logRate is how many lines a second code inside may write, and logBurst how
	// many at once; more are counted and left out.
	logRate  = 200
	logBurst = logLines
)

// logbook keeps the last lines of a sandbox's log, in memory and, once open, in
// a file. Lines go to the file when save is called, which is not on the way of
// who writes them.
type logbook struct {
	mu        sync.Mutex
	lifecycle lines
	inside    lines
	part      []byte // an unfinished line of the agent
	limit     *rate.Limiter
	leftOut   int

	saving sync.Mutex // before mu; held while the file is written
	file   string     // empty while nothing is saved
	size   int64
}

// add takes a line of information.
func (l *logbook) add(source, text string) { l.put(source, "info", text) }

// warn takes a line that people should look at.
func (l *logbook) warn(source, text string) { l.put(source, "warn", text) }

func (l *logbook) put(source, level, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.putLocked(source, level, text)
}

func (l *logbook) putLocked(source, level, text string) {
	now := time.Now().UTC()
	if source == "lifecycle" {
		l.lifecycle.add(LogLine{now, source, level, printable(text)}, lifecycleMost)
		return
	}
	if !l.admit(now, source) {
		return
	}
	l.inside.add(LogLine{now, source, level, printable(text)}, logLines)
}

// admit tells whether there is room for a line now, and says before it how many
// had none.
func (l *logbook) admit(now time.Time, source string) bool {
	if l.limit == nil {
		l.limit = rate.NewLimiter(logRate, logBurst)
	}
	if !l.limit.AllowN(now, 1) {
		l.leftOut++
		return false
	}
	if l.leftOut > 0 {
		note := fmt.Sprintf("%d lines were left out here: more than %d a second", l.leftOut, logRate)
		l.inside.add(LogLine{now, source, "warn", note}, logLines)
		l.leftOut = 0
	}
	return true
}

// printable cuts a text to what a line may have and takes out what would drive
// the terminal of who reads it.
func printable(text string) string {
	text = text[:min(len(text), logLineBytes)]
	return strings.Map(func(r rune) rune {
		if r != '\t' && unicode.IsControl(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

// Write takes the agent's output. It never blocks and never fails.
func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := p
	for {
		line, after, found := bytes.Cut(rest, []byte("\n"))
		if room := logLineBytes - len(l.part); room > 0 {
			l.part = append(l.part, line[:min(len(line), room)]...)
		}
		if !found {
			return len(p), nil
		}
		l.putLocked(parseAgent(string(l.part)))
		l.part, rest = l.part[:0], after
	}
}

// parseAgent takes apart a line of the agent's slog.TextHandler; its time is
// that of our own clock. Anything else the agent printed is left as it is.
func parseAgent(line string) (source, level, text string) {
	_, rest, found := strings.Cut(line, " level=")
	name, rest, cut := strings.Cut(rest, " msg=")
	var of slog.Level
	if !found || !cut || !strings.HasPrefix(line, "time=") || of.UnmarshalText([]byte(name)) != nil {
		return "agent", "info", line
	}
	if quoted, err := strconv.QuotedPrefix(rest); err == nil {
		message, _ := strconv.Unquote(quoted) // cannot fail
		rest = message + rest[len(quoted):]
	}
	source = "agent"
	if before, after, is := strings.Cut(rest, " source="+hostapi.ProcessSource); is {
		source, rest = hostapi.ProcessSource, before+after
	}
	return source, strings.ToLower(of.String()), rest
}

// all returns the lines by time.
func (l *logbook) all() []LogLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return merge(l.lifecycle.list, l.inside.list)
}

// tail joins the last lines the agent wrote, for an error text.
func (l *logbook) tail(count int) string {
	var texts []string
	for _, line := range l.all() {
		if line.Source == "agent" {
			texts = append(texts, line.Text)
		}
	}
	return strings.Join(texts[max(0, len(texts)-count):], "\n")
}

// open reads the lines of a file and keeps the log there from now on.
func (l *logbook) open(file string) error {
	l.saving.Lock()
	defer l.saving.Unlock()
	if l.file == file {
		return nil
	}
	old, size, err := readLog(file)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.file, l.size = file, size
	for _, line := range old {
		if line.Source == "lifecycle" {
			l.lifecycle.add(line, lifecycleMost)
		} else {
			l.inside.add(line, logLines)
		}
	}
	l.lifecycle.fresh, l.inside.fresh = 0, 0
	return nil
}

// readLog reads what is whole in a file, and tells how much that is.
func readLog(file string) (lines []LogLine, size int64, err error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	reader := bufio.NewReader(f)
	for {
		raw, err := reader.ReadBytes('\n')
		var line LogLine
		if err != nil || json.Unmarshal(raw, &line) != nil {
			return lines, size, nil // the end, or where the writer was killed
		}
		lines, size = append(lines, line), size+int64(len(raw))
	}
}

// close saves what is not saved yet; nothing is written after it.
func (l *logbook) close() error {
	err := l.save()
	l.saving.Lock()
	defer l.saving.Unlock()
	l.file = ""
	return err
}

// save writes the new lines to the file. What cannot be written is left out of
// it until the file is written anew.
func (l *logbook) save() error {
	l.saving.Lock()
	defer l.saving.Unlock()
	if l.file == "" {
		return nil
	}
	fresh := encodeLines(l.take(false))
	if len(fresh) == 0 {
		return nil
	}
	if l.size == 0 || l.size+int64(len(fresh)) > logFileBytes {
		whole := encodeLines(l.take(true))
		if err := replaceFile(l.file, whole); err != nil {
			return err
		}
		l.size = int64(len(whole))
		return nil
	}
	f, err := os.OpenFile(l.file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	// At a place, so that a line that was half written is written over.
	_, err = f.WriteAt(fresh, l.size)
	if err = errors.Join(err, f.Truncate(l.size+int64(len(fresh))), f.Close()); err != nil {
		return err
	}
	l.size += int64(len(fresh))
	return nil
}

// take returns the lines since the last take, or the whole log.
func (l *logbook) take(whole bool) []LogLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	since := func(of *lines) []LogLine {
		n := of.fresh
		if whole {
			n = len(of.list)
		}
		of.fresh = 0
		return of.list[len(of.list)-n:]
	}
	return merge(since(&l.lifecycle), since(&l.inside))
}

func encodeLines(lines []LogLine) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	for _, line := range lines {
		_ = encoder.Encode(line) // strings and a time always encode
	}
	return out.Bytes()
}

// merge joins two lists by time.
func merge(a, b []LogLine) []LogLine {
	all := slices.Concat(a, b)
	slices.SortStableFunc(all, func(x, y LogLine) int { return x.Time.Compare(y.Time) })
	return all
}

// lines are the newest of one part of a log, oldest first.
type lines struct {
	list  []LogLine
	bytes int
	fresh int // the last of the list that are not saved yet
}

// add appends a line and lets go of the oldest beyond most lines or logBytes.
func (l *lines) add(line LogLine, most int) {
	l.list, l.bytes = append(l.list, line), l.bytes+len(line.Text)
	old := 0
	for len(l.list)-old > most || l.bytes > logBytes {
		l.bytes -= len(l.list[old].Text)
		l.list[old] = LogLine{} // its text may be freed
		old++
	}
	l.list = l.list[old:] // append moves what is left when the array is full
	l.fresh = min(l.fresh+1, len(l.list))
}
