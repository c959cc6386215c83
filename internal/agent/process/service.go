// Package process serves process.Process: it starts processes for callers,
// carries their input and output, and tells how they ended. It owns the
// processes it started, from the fork to 30 seconds after their end; files and
// accounts belong to other packages.
//
// A process outlives the call that started it. It leads a session and with it a
// process group of its own, so that ending it can end what it started too: a
// timeout and SIGKILL go to the group, because the children of a killed shell
// would run on with nobody to watch them. SIGTERM goes to the process alone,
// which may want to end its children in its own way. A program that is meant to
// stay leaves the group with setsid.
package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/tombolo-dev/tombolo/internal/agent/awake"
	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/agent/identity"
	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
	"github.com/tombolo-dev/tombolo/internal/agent/rpc/process/processconnect"
	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// Options are what the service works with.
type Options struct {
	Spawner  *spawn.Spawner
	Identity *identity.State
	Clock    *awake.Clock // of timeouts
	// Journal is told of each start and end, as records with the attribute
	// "source", which the host's log goes by; nil is nobody.
	Journal *slog.Logger
	// Stall is how long a caller may leave its output unread before it is cut
	// off; 0 is 30 seconds.
	Stall time.Duration
}

// Service implements process.Process.
type Service struct {
	opts  Options
	table *table
}

// New returns a service without processes.
func New(opts Options) *Service {
	if opts.Stall == 0 {
		opts.Stall = 30 * time.Second
	}
	if opts.Journal == nil {
		opts.Journal = slog.New(slog.DiscardHandler)
	}
	opts.Journal = opts.Journal.With("source", hostapi.ProcessSource)
	return &Service{opts: opts, table: newTable(opts.Clock)}
}

// Handler returns the path prefix of the service and its handler.
func (s *Service) Handler(options ...connect.HandlerOption) (string, http.Handler) {
	prefix, handler := processconnect.NewProcessHandler(s, options...)
	return prefix, withController(handler)
}

// Close kills every process it started, and what they lead, and returns when
// all have ended.
func (s *Service) Close() {
	live := s.table.list()
	for _, p := range live {
		p.kill()
	}
	for _, p := range live {
		<-p.ended
	}
}

// List tells the running processes.
func (s *Service) List(context.Context, *connect.Request[pb.ListRequest]) (*connect.Response[pb.ListResponse], error) {
	res := &pb.ListResponse{}
	for _, p := range s.table.list() {
		res.Processes = append(res.Processes, &pb.ProcessInfo{Config: p.config, Pid: uint32(p.child.PID), Tag: p.tag})
	}
	return connect.NewResponse(res), nil
}

// Start runs a process and follows it.
func (s *Service) Start(ctx context.Context, req *connect.Request[pb.StartRequest], stream *connect.ServerStream[pb.StartResponse]) error {
	p, output, err := s.start(ctx, req)
	if err != nil {
		return err
	}
	defer p.unsubscribe(output)
	return p.follow(ctx, output, pingInterval(req.Header()), func(e *pb.ProcessEvent) error {
		return stream.Send(&pb.StartResponse{Event: e})
	})
}

// Connect follows a process that runs, or tells how a recent one ended.
func (s *Service) Connect(ctx context.Context, req *connect.Request[pb.ConnectRequest], stream *connect.ServerStream[pb.ConnectResponse]) error {
	p, err := s.table.find(req.Msg.GetProcess(), true)
	if err != nil {
		return err
	}
	output, err := p.subscribe(cutter(ctx))
	if err != nil {
		return err
	}
	defer p.unsubscribe(output)
	return p.follow(ctx, output, pingInterval(req.Header()), func(e *pb.ProcessEvent) error {
		return stream.Send(&pb.ConnectResponse{Event: e})
	})
}

// Update changes the size of a terminal.
func (s *Service) Update(_ context.Context, req *connect.Request[pb.UpdateRequest]) (*connect.Response[pb.UpdateResponse], error) {
	p, err := s.table.find(req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if size := req.Msg.GetPty().GetSize(); size != nil {
		if err := p.resize(size); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(&pb.UpdateResponse{}), nil
}

// SendInput writes to stdin or to the terminal, and returns when the process
// has room for all of it.
func (s *Service) SendInput(ctx context.Context, req *connect.Request[pb.SendInputRequest]) (*connect.Response[pb.SendInputResponse], error) {
	p, err := s.table.find(req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if err := p.write(ctx, req.Msg.GetInput()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.SendInputResponse{}), nil
}

// StreamInput writes piece after piece to the process that the first message
// selects.
func (s *Service) StreamInput(ctx context.Context, stream *connect.ClientStream[pb.StreamInputRequest]) (*connect.Response[pb.StreamInputResponse], error) {
	var p *process
	for stream.Receive() {
		msg := stream.Msg()
		switch {
		case msg.GetStart() != nil:
			found, err := s.table.find(msg.GetStart().GetProcess(), false)
			if err != nil {
				return nil, err
			}
			p = found
		case msg.GetData() != nil:
			if p == nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the first message must be a start that selects the process"))
			}
			if err := p.write(ctx, msg.GetData().GetInput()); err != nil {
				return nil, err
			}
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.StreamInputResponse{}), nil
}

// killWait is how long SendSignal waits for the effect of a SIGKILL, so that a
// caller who looks afterwards finds the process gone.
const killWait = time.Second

// SendSignal sends SIGTERM to the process or SIGKILL to its group.
func (s *Service) SendSignal(ctx context.Context, req *connect.Request[pb.SendSignalRequest]) (*connect.Response[pb.SendSignalResponse], error) {
	p, err := s.table.find(req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if p.over() {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process %d has ended", p.child.PID))
	}
	switch req.Msg.GetSignal() {
	case pb.Signal_SIGNAL_SIGTERM:
		p.terminate()
	case pb.Signal_SIGNAL_SIGKILL:
		p.kill()
		ctx, cancel := context.WithTimeout(ctx, killWait)
		defer cancel()
		select {
		case <-p.child.Done():
		case <-ctx.Done():
		}
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the signal must be SIGNAL_SIGTERM or SIGNAL_SIGKILL"))
	}
	return connect.NewResponse(&pb.SendSignalResponse{}), nil
}

// CloseStdin ends the input of a process.
func (s *Service) CloseStdin(ctx context.Context, req *connect.Request[pb.CloseStdinRequest]) (*connect.Response[pb.CloseStdinResponse], error) {
	p, err := s.table.find(req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if err := p.closeStdin(ctx); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.CloseStdinResponse{}), nil
}

// defaultPing is E2B's interval of keepalives, for a caller that asks for none.
const defaultPing = 90 * time.Second

// pingInterval reads the seconds of silence after which a caller wants a sign
// of life.
func pingInterval(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Keepalive-Ping-Interval"))
	if err != nil || seconds < 1 || seconds > 24*3600 {
		return defaultPing
	}
	return time.Duration(seconds) * time.Second
}

type controllerKey struct{}

// withController lets a handler cut its own connection: connect hides the
// ResponseWriter.
func withController(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(r.Context(), controllerKey{}, http.NewResponseController(w))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// cutter returns a function that makes every write of the call's answer fail.
func cutter(ctx context.Context) func() {
	controller, ok := ctx.Value(controllerKey{}).(*http.ResponseController)
	if !ok {
		return func() {}
	}
	return func() { _ = controller.SetWriteDeadline(time.Now()) }
}
