package build

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"
)

// Entry is one line of a build's log.
type Entry struct {
	At      time.Time `json:"at"`
	Level   string    `json:"level"` // debug, info, warn or error
	Step    string    `json:"step,omitempty"`
	Message string    `json:"message"`
}

// Levels of entries.
const (
	LevelDebug = "debug"
	LevelInfo  = "info"
	LevelWarn  = "warn"
	LevelError = "error"
)

// What is kept of one build's log. What a step prints beyond it is dropped, and
// the log says so; what the build itself says is kept.
const (
	entriesMost  = 50_000
	bytesMost    = 16 << 20
	messageBytes = 8 << 10 // of one entry
)

// journal is the log of one build, in memory while it runs and in a file. Safe
// for concurrent use.
type journal struct {
	mu      sync.Mutex
	entries []Entry
	bytes   int
	full    bool
	file    *os.File // nil when the build has ended
	told    func(Entry)
}

func newJournal(path string, told func(Entry)) (*journal, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	return &journal{file: file, told: told}, err
}

// readJournal reads the log of a build that ended; none is an empty one.
func readJournal(path string) ([]Entry, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var entries []Entry
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 8*messageBytes)
	for lines.Scan() {
		var e Entry
		if json.Unmarshal(lines.Bytes(), &e) == nil { // the last may be half written
			entries = append(entries, e)
		}
	}
	return entries, lines.Err()
}

// say adds what the build itself says.
func (j *journal) say(level, step, message string) {
	j.add(Entry{Level: level, Step: step, Message: message}, true)
}

func (j *journal) add(e Entry, always bool) {
	e.At = time.Now().UTC()
	e.Message = strings.ToValidUTF8(e.Message, "\uFFFD")
	if len(e.Message) > messageBytes {
		e.Message = strings.ToValidUTF8(e.Message[:messageBytes], "") + " …"
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !always && (len(j.entries) >= entriesMost || j.bytes >= bytesMost) {
		if j.full {
			return
		}
		j.full = true
		e.Level, e.Message = LevelWarn, "more was printed than a build's log holds; the rest is left out"
	}
	j.entries = append(j.entries, e)
	j.bytes += len(e.Message)
	if j.file != nil {
		line, _ := json.Marshal(e) // of strings and a time
		j.file.Write(append(line, '\n'))
	}
	if j.told != nil {
		j.told(e)
	}
}

func (j *journal) all() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.entries[:len(j.entries):len(j.entries)]
}

func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.file.Close()
	j.file = nil
	return err
}

// lines makes entries of what a program prints, one a line, and keeps the last.
type lines struct {
	journal *journal
	level   string
	step    string
	prefix  string
	rest    []byte
	tail    *tail
}

func (l *lines) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, found := bytes.Cut(rest, []byte{'\n'})
		if room := messageBytes - len(l.rest); room > 0 {
			l.rest = append(l.rest, line[:min(room, len(line))]...)
		}
		if found {
			l.flush()
		}
		rest = after
	}
	return len(p), nil
}

// flush ends a line that has no end.
func (l *lines) flush() {
	text := string(bytes.TrimRight(l.rest, "\r"))
	l.rest = l.rest[:0]
	// Of a line that a progress bar wrote over itself the last state counts.
	if at := strings.LastIndexByte(text, '\r'); at >= 0 {
		text = text[at+1:]
	}
	if text == "" {
		return
	}
	l.tail.add(text)
	l.journal.add(Entry{Level: l.level, Step: l.step, Message: l.prefix + text}, false)
}

// tail keeps the last lines of a step, for the message of its failure.
type tail struct{ lines []string }

const tailLines = 15

func (t *tail) add(line string) {
	if len(t.lines) == tailLines {
		t.lines = t.lines[1:]
	}
	t.lines = append(t.lines, line)
}
