package tombolo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/approval"
)

// Limits of streams.
const (
	maxStreamsOfKey = 8
	maxStreams      = 256
	// heartbeat is how often a stream with nothing to tell says so: whoever is between
	// closes connections that are silent. The caller's key is looked up again then.
	heartbeat = 15 * time.Second
	// streamPatience is how long a reader may leave what was written unread.
	streamPatience = 30 * time.Second
)

// streams counts those that are open.
type streams struct {
	ctx   context.Context // ends with the server
	close context.CancelFunc

	mu    sync.Mutex
	open  map[string]int // by actor
	total int
}

func newStreams() *streams {
	s := &streams{open: map[string]int{}}
	s.ctx, s.close = context.WithCancel(context.Background())
	return s
}

func (s *streams) enter(actor string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[actor] >= maxStreamsOfKey || s.total >= maxStreams {
		return fail(http.StatusTooManyRequests, CodeTooMany, "%d streams are open, %d of them yours; %d at a time are for each key, %d for all: close one", s.total, s.open[actor], maxStreamsOfKey, maxStreams)
	}
	s.open[actor]++
	s.total++
	return nil
}

func (s *streams) leave(actor string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.open[actor]--; s.open[actor] == 0 {
		delete(s.open, actor)
	}
}

// stream tells of holds as server-sent events. One that begins tells of all that is
// pending, then "synced" with the ids of those, then of every change; one that comes back
// with the id of the last event it had gets the changes since, where they are still
// known.
func (a *API) stream(c *call) (any, error) {
	if err := checkQuery(c.r.URL.Query()); err != nil {
		return nil, err
	}
	if c.r.Method != http.MethodGet { // HEAD
		return nil, fail(http.StatusMethodNotAllowed, CodeMethod, "a stream has no end to know the head of")
	}
	actor := c.auth.Actor()
	if err := a.streams.enter(actor); err != nil {
		return nil, err
	}
	defer a.streams.leave(actor)
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.Header().Set("Cache-Control", "no-store")
	c.w.Header().Set("X-Accel-Buffering", "no") // what proxies of one kind buffer by
	c.w.WriteHeader(http.StatusOK)
	s := &stream{api: a, call: c, rc: http.NewResponseController(c.w)}
	from, known := a.feed.after(c.r.Header.Get("Last-Event-ID"))
	s.follow(from, !known)
	return written, nil
}

// Synced says that a stream has told of all that is pending: what the reader knew of
// before and is not among these is not pending any more.
type Synced struct {
	Pending []string `json:"pending"`
}

// stream is one reader.
type stream struct {
	api  *API
	call *call
	rc   *http.ResponseController
}

// follow tells of changes from a number on until the reader or the server leaves.
func (s *stream) follow(from uint64, anew bool) {
	ticks := time.NewTicker(s.api.heartbeat)
	defer ticks.Stop()
	for {
		if anew {
			var ok bool
			if from, ok = s.begin(); !ok {
				return
			}
		}
		changes, more, lost := s.api.feed.read(from)
		if anew = lost; lost {
			continue
		}
		for _, h := range changes {
			if s.call.auth.Sees(h.Subject.KeyID) && !s.send("hold", s.api.feed.id(from), h) {
				return
			}
			from++
		}
		if len(changes) > 0 && s.rc.Flush() != nil {
			return
		}
		select {
		case <-more:
		case <-ticks.C:
			if !s.beat() {
				return
			}
		case <-s.api.streams.ctx.Done():
			return
		case <-s.call.context().Done():
			return
		}
	}
}

// begin tells of all that is pending. What changes meanwhile is told again after: the
// reader keeps the last that it heard of each.
func (s *stream) begin() (from uint64, ok bool) {
	from = s.api.feed.now()
	holds, err := s.api.visibleHolds(s.call, approval.Filter{States: []approval.State{approval.Pending}, Most: maxList})
	if err != nil {
		s.api.Log.Error("a stream of approvals ended", "error", err)
		return 0, false
	}
	synced := Synced{Pending: []string{}}
	for i := len(holds) - 1; i >= 0; i-- { // oldest first
		if !s.send("hold", "", holds[i]) {
			return 0, false
		}
		synced.Pending = append(synced.Pending, holds[i].ID)
	}
	// With an id of no change, the one before the next: who comes back goes on from here.
	return from, s.send("synced", s.api.feed.id(from-1), synced) && s.rc.Flush() == nil
}

// beat says that the stream lives, unless the key has gone or has other rights now.
func (s *stream) beat() bool {
	if !s.api.keys.Same(s.call.context(), s.call.auth) {
		return false
	}
	s.patience()
	_, err := fmt.Fprint(s.call.w, ": still here\n\n")
	return err == nil && s.rc.Flush() == nil
}

func (s *stream) send(event, id string, v any) bool {
	raw, err := json.Marshal(v) // one line: JSON has no raw line breaks
	if err != nil {
		return false
	}
	s.patience()
	if id != "" {
		id = "id: " + id + "\n"
	}
	_, err = fmt.Fprintf(s.call.w, "event: %s\n%sdata: %s\n\n", event, id, raw)
	return err == nil
}

func (s *stream) patience() { _ = s.rc.SetWriteDeadline(time.Now().Add(streamPatience)) }
