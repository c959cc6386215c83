package e2b

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// maxLogs is the most, and the default, of one answer.
const maxLogs = 1000

// levels in the order of a level filter, which means "this or worse".
var levels = []string{"debug", "info", "warn", "error"}

// logLine is the older form. Line is a JSON object as a string.
type logLine struct {
	Timestamp time.Time `json:"timestamp"`
	Line      string    `json:"line"`
}

type logEntry struct {
	Timestamp time.Time         `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"`
	Fields    map[string]string `json:"fields"`
}

// logsV1 answers lines in both forms; upstream's CLI polls it.
func (a *api) logsV1(w http.ResponseWriter, r *http.Request, k store.Key) error {
	v := r.URL.Query()
	q := logQuery{}
	var err error
	if q.from, err = parseMillis("start", v.Get("start")); err != nil {
		return err
	}
	if q.limit, err = parseLogLimit(v.Get("limit")); err != nil {
		return err
	}
	lines, err := a.logs(r, k, q)
	if err != nil {
		return err
	}
	answer := struct {
		Logs       []logLine  `json:"logs"`
		LogEntries []logEntry `json:"logEntries"`
	}{make([]logLine, len(lines)), encodeLogs(lines)}
	for i, line := range lines {
		answer.Logs[i] = encodeLine(line)
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

func (a *api) logsV2(w http.ResponseWriter, r *http.Request, k store.Key) error {
	q, err := parseLogQuery(r.URL.Query())
	if err != nil {
		return err
	}
	lines, err := a.logs(r, k, q)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		Logs []logEntry `json:"logs"`
	}{encodeLogs(lines)})
	return nil
}

// logQuery selects lines. Backward means newest first, and from is then the
// latest moment instead of the earliest; the zero time is no bound.
type logQuery struct {
	from     time.Time
	backward bool
	level    string
	search   string
	limit    int
}

func (a *api) logs(r *http.Request, k store.Key, q logQuery) ([]sandbox.LogLine, error) {
	info, err := a.own(r, k)
	if err != nil {
		return nil, err
	}
	lines, err := a.sandboxes.Logs(info.ID)
	if err != nil {
		return nil, a.gone(r, k, info.ID, err)
	}
	lines = slices.DeleteFunc(lines, func(l sandbox.LogLine) bool { return !q.selects(l) })
	if q.backward {
		slices.Reverse(lines)
	}
	return lines[:min(len(lines), q.limit)], nil
}

func (q logQuery) selects(l sandbox.LogLine) bool {
	if slices.Index(levels, q.level) > slices.Index(levels, l.Level) {
		return false
	}
	if !strings.Contains(l.Text, q.search) {
		return false
	}
	if q.from.IsZero() {
		return true
	}
	at := l.Time.Truncate(time.Millisecond) // what the client has seen of it
	if q.backward {
		return !at.After(q.from)
	}
	return !at.Before(q.from)
}

func parseLogQuery(v url.Values) (q logQuery, err error) {
	if q.from, err = parseMillis("cursor", v.Get("cursor")); err != nil {
		return q, err
	}
	if q.limit, err = parseLogLimit(v.Get("limit")); err != nil {
		return q, err
	}
	switch d := v.Get("direction"); d {
	case "", "forward":
	case "backward":
		q.backward = true
	default:
		return q, invalid("direction %q: use forward or backward", d)
	}
	if q.level = v.Get("level"); q.level != "" && !slices.Contains(levels, q.level) {
		return q, invalid("level %q: use %s", q.level, strings.Join(levels, ", "))
	}
	q.search = v.Get("search")
	return q, nil
}

func parseMillis(name, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	ms, err := strconv.ParseInt(s, 10, 64)
	if err != nil || ms < 0 {
		return time.Time{}, invalid("%s %q: use milliseconds since 1970", name, s)
	}
	return time.UnixMilli(ms), nil
}

func parseLogLimit(s string) (int, error) {
	if s == "" {
		return maxLogs, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, invalid("limit %q: use 1 to %d", s, maxLogs)
	}
	return min(n, maxLogs), nil
}

func encodeLogs(lines []sandbox.LogLine) []logEntry {
	entries := make([]logEntry, len(lines))
	for i, line := range lines {
		entries[i] = logEntry{
			Timestamp: line.Time.UTC(),
			Message:   line.Text,
			Level:     line.Level,
			Fields:    map[string]string{"logger": line.Source},
		}
	}
	return entries
}

func encodeLine(line sandbox.LogLine) logLine {
	text, _ := json.Marshal(map[string]string{"level": line.Level, "logger": line.Source, "message": line.Text}) // strings always encode
	return logLine{Timestamp: line.Time.UTC(), Line: string(text)}
}
