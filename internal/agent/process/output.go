package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
)

const (
	// queueLength is how many events wait for one subscriber, at most 32 KiB
	// each.
	queueLength = 16
	// subscriberLimit is how many may follow one process.
	subscriberLimit = 64
)

// subscriber is one call that follows a process.
//
// The output of a process has the pace of its slowest subscriber, as a pipe has:
// nothing is lost and nothing is stored. One whose queue stays full for the
// process's stall time is dropped and told so, so it cannot hold the process, or
// the others, for ever.
type subscriber struct {
	events  chan *pb.ProcessEvent // closed when the process has ended
	dropped chan struct{}
	left    chan struct{}
	cut     func() // makes a blocked send to this caller fail
}

// subscribe joins; every event published from now on arrives.
func (p *process) subscribe(cut func()) (*subscriber, error) {
	sub := &subscriber{
		events:  make(chan *pb.ProcessEvent, queueLength),
		dropped: make(chan struct{}),
		left:    make(chan struct{}),
		cut:     cut,
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end != nil {
		close(sub.events)
		return sub, nil
	}
	if len(p.subscribers) >= subscriberLimit {
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%d callers follow process %d already, which is the limit", subscriberLimit, p.child.PID))
	}
	p.subscribers[sub] = struct{}{}
	return sub, nil
}

// unsubscribe leaves; the process goes on.
func (p *process) unsubscribe(sub *subscriber) {
	p.mu.Lock()
	delete(p.subscribers, sub)
	p.mu.Unlock()
	close(sub.left)
}

// follow sends a start event, what happens, and the end, until then or until the
// caller is gone.
func (p *process) follow(ctx context.Context, sub *subscriber, ping time.Duration, send func(*pb.ProcessEvent) error) error {
	if err := send(startEvent(p.child.PID)); err != nil {
		return err
	}
	silence := time.NewTimer(ping)
	defer silence.Stop()
	for {
		select {
		case event, open := <-sub.events:
			if expired(ctx) {
				return ctx.Err()
			}
			if !open {
				return send(p.end)
			}
			if err := send(event); err != nil {
				return err
			}
		case <-silence.C:
			if err := send(keepaliveEvent()); err != nil {
				return err
			}
		case <-sub.dropped:
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("the output of process %d was not read for %s; connect again to go on from now", p.child.PID, p.stall))
		case <-ctx.Done():
			return ctx.Err()
		}
		silence.Reset(ping)
	}
}

// expired tells whether the time of the call is over. Then that is the answer,
// not the end of the process which it caused.
func expired(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline) && ctx.Err() != nil
}

// publish hands an event to every subscriber, waiting for the slow ones.
func (p *process) publish(event *pb.ProcessEvent) {
	p.mu.Lock()
	subs := make([]*subscriber, 0, len(p.subscribers))
	for sub := range p.subscribers {
		subs = append(subs, sub)
	}
	p.mu.Unlock()
	for _, sub := range subs {
		if !sub.offer(event, p.stall) {
			p.drop(sub)
		}
	}
}

func (s *subscriber) offer(event *pb.ProcessEvent, stall time.Duration) bool {
	select {
	case s.events <- event:
		return true
	default:
	}
	timer := time.NewTimer(stall)
	defer timer.Stop()
	select {
	case s.events <- event:
		return true
	case <-s.left:
		return true
	case <-timer.C:
		return false
	}
}

func (p *process) drop(sub *subscriber) {
	p.mu.Lock()
	_, in := p.subscribers[sub]
	delete(p.subscribers, sub)
	p.mu.Unlock()
	if in {
		close(sub.dropped)
		sub.cut()
	}
}

// buffers are shared by all pumps. A pump holds one only while it reads, so a
// silent process costs none.
var buffers = sync.Pool{New: func() any { return new([pipeChunk]byte) }}

// pump reads f to its end, its failure or its deadline.
func (p *process) pump(f *os.File, limit int, event func([]byte) *pb.ProcessEvent) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	for {
		var chunk []byte
		err := raw.Read(func(fd uintptr) bool {
			var again bool
			chunk, again = readChunk(int(fd), limit)
			return !again
		})
		if err != nil || len(chunk) == 0 {
			return
		}
		p.publish(event(chunk))
	}
}

// readChunk reads what is there. An empty chunk is the end; again means that
// nothing is there yet.
func readChunk(fd, limit int) (chunk []byte, again bool) {
	buffer := buffers.Get().(*[pipeChunk]byte)
	defer buffers.Put(buffer)
	for {
		n, err := unix.Read(fd, buffer[:limit])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil, true
		case err != nil || n <= 0: // a terminal nobody holds any more gives EIO
			return nil, false
		}
		return bytes.Clone(buffer[:n]), false
	}
}

func startEvent(pid int) *pb.ProcessEvent {
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Start{Start: &pb.ProcessEvent_StartEvent{Pid: uint32(pid)}}}
}

func keepaliveEvent() *pb.ProcessEvent {
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Keepalive{Keepalive: &pb.ProcessEvent_KeepAlive{}}}
}

func stdoutEvent(b []byte) *pb.ProcessEvent {
	return dataEvent(&pb.ProcessEvent_DataEvent{Output: &pb.ProcessEvent_DataEvent_Stdout{Stdout: b}})
}

func stderrEvent(b []byte) *pb.ProcessEvent {
	return dataEvent(&pb.ProcessEvent_DataEvent{Output: &pb.ProcessEvent_DataEvent_Stderr{Stderr: b}})
}

func terminalEvent(b []byte) *pb.ProcessEvent {
	return dataEvent(&pb.ProcessEvent_DataEvent{Output: &pb.ProcessEvent_DataEvent_Pty{Pty: b}})
}

func dataEvent(d *pb.ProcessEvent_DataEvent) *pb.ProcessEvent {
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Data{Data: d}}
}
