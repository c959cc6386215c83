package sandbox

import (
	"bytes"
	"strings"
	"sync"
	"time"
)

// LogLine is one line of a sandbox's log.
type LogLine struct {
	Time time.Time `json:"time"`
	// Source is "agent" (what PID 1 wrote), "lifecycle" or "network".
	Source string `json:"source"`
	Text   string `json:"text"`
}

// Limits of the log kept of one sandbox, which code inside can write to.
const (
	logLines     = 1000
	logLineBytes = 2048
)

// logbook keeps the last lines of a sandbox's log in memory.
type logbook struct {
	mu    sync.Mutex
	lines []LogLine // a ring once it is full
	next  int
	part  []byte // an unfinished line of the agent
}

func (l *logbook) add(source, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addLocked(source, text)
}

func (l *logbook) addLocked(source, text string) {
	if len(text) > logLineBytes {
		text = text[:logLineBytes]
	}
	line := LogLine{Time: time.Now().UTC(), Source: source, Text: text}
	if len(l.lines) < logLines {
		l.lines = append(l.lines, line)
		return
	}
	l.lines[l.next] = line
	l.next = (l.next + 1) % logLines
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
		l.addLocked("agent", string(l.part))
		l.part, rest = l.part[:0], after
	}
}

func (l *logbook) all() []LogLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(append([]LogLine{}, l.lines[l.next:]...), l.lines[:l.next]...)
}

// tail joins the last lines the agent wrote, for an error text.
func (l *logbook) tail(count int) string {
	var lines []string
	for _, line := range l.all() {
		if line.Source == "agent" {
			lines = append(lines, line.Text)
		}
	}
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}
