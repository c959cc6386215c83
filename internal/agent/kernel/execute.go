package kernel

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/peer"
)

// Limits of what one run may send to its client, bytes.
const (
	maxStream  = 16 << 20 // stdout, and stderr
	maxResults = 64 << 20
)

// maxTogether is how many lines of a run go out together when they come
// together. A packet for each would be most of what a short run costs.
const maxTogether = 16

const (
	// keepalive is how often a silent run sends a line (5 s upstream).
	keepalive = 5 * time.Second
	// A client that goes away interrupts its run. Code that does not stop is asked
	// again so often, with its children, until the [Options]' patience is over and
	// its kernel is ended. A client that a restore of the sandbox took away does
	// not: a pause keeps what runs. The run goes on unheard, and the context's next
	// one waits for its end, or restarts the context.
	interruptAll = 1 * time.Second
	// stalled is how long a client may not read before it counts as gone.
	stalled = 60 * time.Second
)

// execute runs the code and streams what happens, in its turn. It returns when
// the run has ended, also when the client went away before.
func (s *Server) execute(w http.ResponseWriter, r *http.Request, c *codeContext, req executeRequest) {
	out := newStream(w)
	ctx := r.Context()
	if !waitTurn(ctx, c, out) {
		return
	}
	defer c.release()
	k, err := s.kernelFor(ctx, c)
	if err != nil {
		if !out.begun {
			s.fail(w, r, err)
			return
		}
		s.opts.Log.Error("start a kernel", "context", c.id, "error", err)
		out.send(errorLine{"error", "KernelStartError", err.Error(), err.Error()})
		out.send(bareLine{"end_of_execution"})
		return
	}
	if err := k.refuses(req.EnvVars); err != nil {
		if !out.begun {
			s.fail(w, r, err)
			return
		}
		out.send(errorLine{"error", "EnvironmentError", err.Error(), err.Error()})
		out.send(bareLine{"end_of_execution"})
		return
	}
	s.follow(ctx, c, k, k.execute(req.Code, req.EnvVars), out)
}

// waitTurn queues for the context; false when the client left the queue.
func waitTurn(ctx context.Context, c *codeContext, out *stream) bool {
	tick := time.NewTicker(keepalive)
	defer tick.Stop()
	for {
		select {
		case c.turn <- struct{}{}:
			return true
		case <-ctx.Done():
			return false
		case <-tick.C:
			out.send(bareLine{"keepalive"})
		}
	}
}

func (s *Server) kernelFor(ctx context.Context, c *codeContext) (driver, error) {
	if c.isRemoved() {
		return nil, errRemoved
	}
	// A start goes on without its client: the next one finds it done.
	return s.kernel(context.WithoutCancel(ctx), c)
}

// follow passes events on until the run has ended.
func (s *Server) follow(ctx context.Context, c *codeContext, k driver, events <-chan event, out *stream) {
	tick := time.NewTicker(keepalive)
	defer tick.Stop()
	gone := ctx.Done()
	var again, last <-chan time.Time
	handle := func(e event) {
		if e.Kind == eventDied {
			s.opts.Log.Warn("kernel died", "context", c.id, "why", e.Value)
		}
		out.event(e)
		tick.Reset(keepalive)
	}
	together := 0
	for {
		runtime.Gosched() // the kernel's next event may be about to come
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			handle(e)
			if together++; together < maxTogether {
				continue
			}
		default:
		}
		together = 0
		out.flush()
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			handle(e)
		case <-tick.C:
			out.send(bareLine{"keepalive"})
		case <-gone:
			gone = nil
			out.closed = true
			if peer.Lost(ctx) {
				continue
			}
			repeat := time.NewTicker(interruptAll)
			defer repeat.Stop()
			again, last = repeat.C, time.After(s.opts.Patience)
			k.interrupt(false)
		case <-again:
			k.interrupt(true)
		case <-last:
			s.opts.Log.Warn("code ignored its interrupt; restarting the kernel", "context", c.id)
			k.kill(fmt.Sprintf("its code did not stop within %s after its client went away", s.opts.Patience))
		}
	}
}

// A stream writes the lines of one run and counts them against its limits.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
	waiting bool // something is written and not flushed
	closed  bool // the client is gone
	stdout  int
	stderr  int
	results int
}

func newStream(w http.ResponseWriter) *stream {
	return &stream{w: w, control: http.NewResponseController(w)}
}

func (s *stream) event(e event) {
	switch e.Kind {
	case eventStdout:
		s.output(e, &s.stdout, "stdout")
	case eventStderr:
		s.output(e, &s.stderr, "stderr")
	case eventResult:
		s.result(e)
	case eventEnd:
		s.write(bareLine{"end_of_execution"})
	case eventDied:
		s.write(line(e, time.Now()))
		s.write(bareLine{"end_of_execution"})
	default:
		s.write(line(e, time.Now()))
	}
}

func (s *stream) output(e event, sent *int, name string) {
	if *sent > maxStream {
		return
	}
	*sent += len(e.Text)
	if *sent > maxStream {
		s.note(fmt.Sprintf("[%s of this run has passed %d MiB; the rest is left out. Write large output to a file.]\n", name, maxStream>>20))
		return
	}
	s.write(line(e, time.Now()))
}

func (s *stream) result(e event) {
	if s.results > maxResults {
		return
	}
	for mime, value := range e.Bundle {
		s.results += len(mime) + len(value)
	}
	if s.results > maxResults {
		s.note(fmt.Sprintf("[the results of this run have passed %d MiB; the rest is left out. Write large results to files.]\n", maxResults>>20))
		return
	}
	s.write(line(e, time.Now()))
}

func (s *stream) note(text string) {
	s.write(line(event{Kind: eventStderr, Text: text}, time.Now()))
}

// send sends one line at once.
func (s *stream) send(v any) {
	s.write(v)
	s.flush()
}

// write writes one line, which goes out with the next flush or at the end. A
// client that is gone is noticed by the request's context, not here.
func (s *stream) write(v any) {
	if s.closed {
		return
	}
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", "application/x-ndjson")
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(stalled))
	encoder := json.NewEncoder(s.w)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		s.closed = true
		return
	}
	s.waiting = true
}

func (s *stream) flush() {
	if s.waiting && !s.closed {
		_ = s.control.Flush()
	}
	s.waiting = false
}
