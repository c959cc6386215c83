package tombolo

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Head is the last record of the audit log. Who keeps it elsewhere can tell later that nothing
// up to it was changed or removed.
type Head struct {
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	Hash string    `json:"hash"`
}

// maxLast is how many records a request may ask for from the end.
const maxLast = 100_000

func (a *API) auditRoutes() []route {
	var log any
	if a.AuditDir != "" {
		log = a.AuditDir
	}
	read := []store.Role{store.RoleAudit}
	return []route{
		{"GET", "/audit", read, log, a.readAudit},
		{"GET", "/audit/head", read, log, a.auditHead},
	}
}

// readAudit answers with the lines of the log that a filter selects, as they are in its
// files, so that whoever has them can check the chain.
func (a *API) readAudit(c *call) (any, error) {
	q := c.r.URL.Query()
	f, err := auditFilter(q)
	if err != nil {
		return nil, err
	}
	last, err := queryInt(q, "last", 0, maxLast)
	if err != nil {
		return nil, err
	}
	follow := q.Get("follow") == "true"
	if follow && c.r.Method == http.MethodGet {
		actor := c.auth.Actor()
		if err := a.streams.enter(actor); err != nil {
			return nil, err
		}
		defer a.streams.leave(actor)
	}
	ctx, cancel := context.WithCancel(c.context())
	defer context.AfterFunc(a.streams.ctx, cancel)()
	out := &lines{w: c.w, rc: http.NewResponseController(c.w), follow: follow}
	var beating sync.WaitGroup
	beating.Go(func() {
		defer cancel()
		a.beat(ctx, c, out)
	})
	if last > 0 || follow {
		err = audit.Tail(ctx, a.AuditDir, f, last, follow, out.write)
	} else {
		err = audit.Read(ctx, a.AuditDir, f, out.write)
	}
	cancel()
	beating.Wait()
	return out.end(err)
}

// beat returns when the caller is gone, or its key, or the rights of that.
func (a *API) beat(ctx context.Context, c *call, out *lines) {
	ticks := time.NewTicker(a.heartbeat)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			if !a.keys.Same(ctx, c.auth) || out.beat() != nil {
				return
			}
		}
	}
}

func auditFilter(q url.Values) (f audit.Filter, err error) {
	if err := checkQuery(q, "sandbox", "key", "actor", "kind", "decision", "since", "until", "last", "follow"); err != nil {
		return f, err
	}
	f = audit.Filter{Sandbox: q.Get("sandbox"), Key: q.Get("key"), Actor: q.Get("actor"), Decision: q.Get("decision")}
	if text := q.Get("kind"); text != "" {
		for kind := range strings.SplitSeq(text, ",") {
			if !slices.Contains(audit.Kinds(), audit.Kind(kind)) {
				return f, invalid("there is no kind %.20q of records", kind)
			}
			f.Kinds = append(f.Kinds, audit.Kind(kind))
		}
	}
	if follow := q.Get("follow"); !slices.Contains([]string{"", "true", "false"}, follow) {
		return f, invalid("follow must be true or false")
	}
	if f.Since, err = queryTime(q, "since"); err != nil {
		return f, err
	}
	f.Until, err = queryTime(q, "until")
	return f, err
}

// lines writes records as they come.
type lines struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	follow bool

	mu    sync.Mutex
	begun bool
}

func (l *lines) begin() {
	l.begun = true
	l.w.Header().Set("Content-Type", "application/x-ndjson")
	l.w.Header().Set("Cache-Control", "no-store")
	l.w.WriteHeader(http.StatusOK)
}

func (l *lines) write(_ audit.Record, line []byte) error {
	return l.send(append(line[:len(line):len(line)], '\n'))
}

// beat says with an empty line that what is followed lives.
func (l *lines) beat() error {
	if !l.follow {
		return nil
	}
	return l.send([]byte("\n"))
}

func (l *lines) send(line []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		l.begin()
	}
	_ = l.rc.SetWriteDeadline(time.Now().Add(streamPatience))
	if _, err := l.w.Write(line); err != nil || !l.follow {
		return err
	}
	return l.rc.Flush()
}

// end is what the route returns. An answer that has begun and could not be ended is broken
// off, so that nobody takes a part for the whole.
func (l *lines) end(err error) (any, error) {
	switch {
	case err != nil && !l.begun && errors.Is(err, audit.ErrNoLog):
		return nil, notFound("%s", err)
	case err != nil && !l.begun:
		return nil, err
	case err != nil:
		panic(http.ErrAbortHandler)
	case !l.begun:
		l.begin()
	}
	return written, nil
}

func (a *API) auditHead(c *call) (any, error) {
	if err := checkQuery(c.r.URL.Query()); err != nil {
		return nil, err
	}
	var head Head
	err := audit.Tail(c.context(), a.AuditDir, audit.Filter{}, 1, false, func(r audit.Record, _ []byte) error {
		head = Head{Seq: r.Seq, Time: r.Time, Hash: r.Hash}
		return nil
	})
	if errors.Is(err, audit.ErrNoLog) {
		return nil, notFound("%s", err)
	}
	return head, err
}

// AuditHead returns the last record's number and hash.
func (c *Client) AuditHead(ctx context.Context) (h Head, err error) {
	return h, c.do(ctx, "GET", "/audit/head", nil, &h)
}

// Audit calls each with every line of the log that a query selects, see the route. The
// lines are valid until each returns.
func (c *Client) Audit(ctx context.Context, query url.Values, each func(line json.RawMessage) error) error {
	response, err := c.send(ctx, http.MethodGet, "/audit?"+query.Encode(), nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	decoder := json.NewDecoder(response.Body)
	for {
		var line json.RawMessage
		err := decoder.Decode(&line)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = each(line)
		}
		if err != nil {
			return err
		}
	}
}
