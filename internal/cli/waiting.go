package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/tombolo-dev/tombolo/internal/api/control"
	"github.com/tombolo-dev/tombolo/internal/approval"
)

// waiting tells whoever runs a command that its sandbox waits for a person, once a hold.
type waiting struct {
	to    io.Writer
	data  string // folder, where it is not the default
	owner string // key that the sandbox is to belong to
	began time.Time

	mu      sync.Mutex
	sandbox string // id, once it is known
	early   []approval.Hold
	told    map[string]bool
}

// maxEarly bounds what is kept until it is known which sandbox is meant.
const maxEarly = 1024

func newWaiting(c config, owner string) *waiting {
	w := &waiting{to: os.Stderr, owner: owner, began: time.Now(), told: map[string]bool{}}
	if c.Data != defaultData {
		w.data = " --data " + quoted(c.Data)
	}
	return w
}

// follow looks at what waits until it is told to stop.
func (w *waiting) follow(ctx context.Context, watch func(ctx context.Context, see func(approval.Hold))) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		watch(ctx, w.see)
	}()
	return func() {
		cancel()
		<-done
	}
}

// lookEvery is how often a server is asked what waits. A stream would take one of the few
// that a server gives.
const lookEvery = 2 * time.Second

// watchServer looks at what waits by a server. Where that fails nothing is told: the
// command does not depend on it.
func watchServer(client *control.Client) func(ctx context.Context, see func(approval.Hold)) {
	return func(ctx context.Context, see func(approval.Hold)) {
		look := time.NewTicker(lookEvery)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			holds, err := ownerAPI(client).Approvals(ctx, approval.Filter{States: []approval.State{approval.Pending}})
			if err != nil {
				continue
			}
			for _, h := range holds {
				see(h)
			}
		}
	}
}

// is says which sandbox it is.
func (w *waiting) is(sandboxID string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sandbox = sandboxID
	for _, h := range w.early {
		w.tell(h)
	}
	w.early = nil
}

// see takes a hold of any sandbox, when it is new or has changed.
func (w *waiting) see(h approval.Hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case h.State != approval.Pending:
	case w.sandbox == "" && h.Subject.SandboxID != "":
		if len(w.early) < maxEarly {
			w.early = append(w.early, h)
		}
	default:
		w.tell(h)
	}
}

func (w *waiting) tell(h approval.Hold) {
	mine := h.Subject.SandboxID == w.sandbox
	if h.Subject.SandboxID == "" { // it is about making one
		mine = w.sandbox == "" && h.Subject.KeyID == w.owner && !h.CreatedAt.Before(w.began)
	}
	if !mine || w.told[h.ID] {
		return
	}
	w.told[h.ID] = true
	end := "\n"
	if term.IsTerminal(int(os.Stdin.Fd())) {
		end = "\r\n" // a command may have it for itself
	}
	fmt.Fprintf(w.to, "tombolo: it waits for a person, until %s: %s%s", when(h.Deadline), visible(h.Action.String()), end)
	fmt.Fprintf(w.to, "tombolo: in another terminal: tombolo approvals approve %s%s (or deny)%s", h.ID, w.data, end)
}
