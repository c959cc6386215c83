// Package record writes the calls of the server's APIs into the audit log: those that
// change something, those that were refused, and those that look at what is to be looked
// at by few. It knows what a request asks for and
// how it was answered, and never reads what is in a body, a header or a query.
package record

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/audit"
)

// Requests records the calls of one API.
type Requests struct {
	Log audit.Appender
	API string // its name, in the detail of the records
	// Actor makes the calls unless the handler says who does (Caller). Empty is
	// audit.Nobody.
	Actor string
}

// call is one request, as its handler and the packages below tell about it.
type call struct {
	mu      sync.Mutex
	actor   string
	keyID   string
	sandbox string
	notes   map[string]string
	look    bool
}

type callKey struct{}

func of(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// Caller says who makes the request of a context: audit.Record.Actor, and the id of
// the key that is asked with or for. Where nothing is recorded it does nothing.
func Caller(ctx context.Context, actor, keyID string) {
	if c := of(ctx); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.actor, c.keyID = actor, keyID
	}
}

// Sandbox says which sandbox the request of a context is about, where its path does
// not: one that was made just now.
func Sandbox(ctx context.Context, id string) {
	if c := of(ctx); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sandbox = id
	}
}

// Note adds a word to the record of a request, such as the name of what it made. The
// value must be no secret.
func Note(ctx context.Context, name, value string) {
	if c := of(ctx); c != nil && value != "" {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.notes == nil {
			c.notes = map[string]string{}
		}
		c.notes[name] = value[:min(len(value), maxNote)]
	}
}

// Look says that the request of a context, which only reads, reads what few may. Who asks
// again and again is recorded once a minute; a stream when it begins.
func Look(ctx context.Context) {
	if c := of(ctx); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.look = true
	}
}

const (
	lookEvery = time.Minute
	maxLooks  = 1000 // callers and routes that are remembered

	maxNote = 512 // bytes of a note
	maxPath = 200 // bytes of a path that is no endpoint
)

// Wrap records the requests that a handler answers. The handler must give the request
// itself to its http.ServeMux, which writes the pattern into it.
func (q Requests) Wrap(api http.Handler) http.Handler {
	if q.Actor == "" {
		q.Actor = audit.Nobody
	}
	looks := &looks{last: map[string]time.Time{}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, c := time.Now(), &call{actor: q.Actor}
		r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
		answer := &answer{ResponseWriter: w}
		answer.begins = func(status int) {
			if who, is := c.looks(); is && !refused(status) && looks.first(who+" "+r.Pattern, began) {
				q.Log.Append(q.record(r, c, status, began))
			}
		}
		defer func() { // a handler that breaks off panics
			if worth(r.Method, answer.status) {
				q.Log.Append(q.record(r, c, answer.status, began))
			}
		}()
		api.ServeHTTP(answer, r)
		answer.begin(http.StatusOK) // the server's, of a handler that wrote nothing
	})
}

func (c *call) looks() (who string, is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.actor, c.look
}

// looks remembers who looked at what lately.
type looks struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// first tells whether a look is none of those that were recorded a moment ago.
func (l *looks) first(what string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.last[what]) < lookEvery {
		return false
	}
	if len(l.last) >= maxLooks {
		clear(l.last)
	}
	l.last[what] = now
	return true
}

// worth tells whether a request is recorded. The status is 0 when it broke off.
func worth(method string, status int) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return refused(status)
	}
	return true
}

func refused(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// detail is that of a record of the kind audit.API.
type detail struct {
	API          string            `json:"api"`
	Method       string            `json:"method"`
	Path         string            `json:"path,omitempty"` // of what is no endpoint
	Status       int               `json:"status"`
	Milliseconds float64           `json:"ms"`
	Client       string            `json:"client,omitempty"`       // address and port
	ForwardedFor string            `json:"forwardedFor,omitempty"` // as a proxy in front claims
	Target       map[string]string `json:"target,omitempty"`       // what the path names, and notes
}

func (q Requests) record(r *http.Request, c *call, status int, began time.Time) audit.Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := detail{
		API: q.API, Method: short(r.Method, 16), Status: status, Target: c.notes,
		Milliseconds: float64(time.Since(began).Microseconds()) / 1000,
		Client:       client(r.RemoteAddr), ForwardedFor: short(r.Header.Get("X-Forwarded-For"), maxPath),
	}
	for name, value := range pathValues(r) {
		if strings.Contains(r.Pattern, "/sandboxes/{id}") && name == "id" {
			c.sandbox = value
			continue
		}
		if d.Target == nil {
			d.Target = map[string]string{}
		}
		d.Target[name] = short(value, maxNote)
	}
	what := r.Pattern
	switch {
	case what == "":
		what, d.Path = d.Method+" (no such endpoint)", short(r.URL.Path, maxPath)
	case !strings.Contains(what, " "):
		what = d.Method + " " + what
	}
	record := audit.Record{Time: began, Kind: audit.API, Actor: c.actor, SandboxID: c.sandbox, KeyID: c.keyID, What: what, Detail: audit.Detail(d)}
	if refused(status) {
		record.Decision = "deny"
	}
	return record
}

// client is the address of who is at the other end; a Unix socket's has none.
func client(remote string) string {
	if !strings.Contains(remote, ":") {
		return ""
	}
	return short(remote, 64)
}

func short(s string, most int) string { return s[:min(len(s), most)] }

// pathValues are the parts of the path that its pattern names.
func pathValues(r *http.Request) map[string]string {
	var values map[string]string
	for rest := r.Pattern; ; {
		_, after, found := strings.Cut(rest, "{")
		if !found {
			return values
		}
		name, after, found := strings.Cut(after, "}")
		if !found {
			return values
		}
		rest = after
		name = strings.TrimSuffix(name, "...")
		if value := r.PathValue(name); value != "" {
			if values == nil {
				values = map[string]string{}
			}
			values[name] = value
		}
	}
}

// answer sees the status of an answer.
type answer struct {
	http.ResponseWriter
	status int
	begins func(status int) // called once
}

func (a *answer) begin(status int) {
	if a.status == 0 {
		a.status = status
		a.begins(status)
	}
}

func (a *answer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		a.begin(status)
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	a.begin(http.StatusOK)
	return a.ResponseWriter.Write(p)
}

// Hijack is what http.ResponseController calls: the handler answers by itself then.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err == nil {
		a.begin(http.StatusSwitchingProtocols)
	}
	return conn, buffered, err
}

// FlushError is what http.ResponseController calls.
func (a *answer) FlushError() error {
	a.begin(http.StatusOK)
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Flush is for handlers that do not use http.ResponseController.
func (a *answer) Flush() { _ = a.FlushError() }

// Unwrap gives http.ResponseController the rest.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
