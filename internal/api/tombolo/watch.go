package tombolo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tombolo-dev/tombolo/internal/approval"
)

// maxEvent bounds one line of a stream, bytes.
const maxEvent = 1 << 20

// Change is what a stream tells: a hold that is new or changed, or that all which are
// pending have been told.
type Change struct {
	Hold   *approval.Hold
	Synced *Synced
}

// Watch calls told with all that is pending and then with each change, until ctx ends
// or told returns an error. When the connection breaks it connects again and goes on where it
// was; lost is told of it before (nil is told nothing). An answer of the server that
// it may not ends it.
func (c *Client) Watch(ctx context.Context, told func(Change) error, lost func(error)) error {
	var last string
	var refused *Error
	const first, most = 250 * time.Millisecond, 15 * time.Second
	wait := first
	for {
		began := last
		err := c.follow(ctx, &last, told)
		var stop *stopError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &stop):
			return stop.err
		case errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return err
		}
		if lost != nil {
			lost(err)
		}
		if last != began {
			wait = first
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, most)
	}
}

// stopError is an error of who is told.
type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }

// follow reads one stream to its end. last is the id of the last event, for the next.
func (c *Client) follow(ctx context.Context, last *string, told func(Change) error) error {
	headers := map[string]string{"Accept": "text/event-stream"}
	if *last != "" {
		headers["Last-Event-ID"] = *last
	}
	// The server says something every heartbeat: who is silent for longer is gone.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(3*heartbeat, func() { cancel(errors.New("the server says nothing any more")) })
	defer silence.Stop()
	response, err := c.send(ctx, http.MethodGet, "/approvals/stream", nil, headers)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxEvent)
	var e event
	for lines.Scan() {
		silence.Reset(3 * heartbeat)
		if len(lines.Bytes()) > 0 {
			e.take(lines.Bytes())
			continue
		}
		if err := e.tell(told); err != nil {
			return err
		}
		if e.id != "" {
			*last = e.id
		}
		e = event{}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the stream broke: %w", err)
	}
	return io.ErrUnexpectedEOF
}

// event is a server-sent event as it comes in.
type event struct {
	kind, id string
	data     []byte
}

func (e *event) take(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "event":
		e.kind = string(value)
	case "id":
		e.id = string(value)
	case "data":
		e.data = append(e.data, value...)
	}
}

func (e *event) tell(told func(Change) error) error {
	var change Change
	var err error
	switch e.kind {
	case "hold":
		err = json.Unmarshal(e.data, &change.Hold)
	case "synced":
		err = json.Unmarshal(e.data, &change.Synced)
	default: // of a newer server, or a heartbeat
		return nil
	}
	if err != nil {
		return fmt.Errorf("the stream holds what is no event of it: %w", err)
	}
	if err := told(change); err != nil {
		return &stopError{err}
	}
	return nil
}
