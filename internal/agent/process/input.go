package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"connectrpc.com/connect"

	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
)

// write gives input to the process, whole and in the order of the calls. It
// waits while the process does not read, until ctx ends.
func (p *process) write(ctx context.Context, input *pb.ProcessInput) error {
	if err := p.takeInput(ctx); err != nil {
		return err
	}
	defer func() { p.input <- struct{}{} }()

	var to *os.File
	var data []byte
	switch in := input.GetInput().(type) {
	case *pb.ProcessInput_Stdin:
		to, data = p.files.stdin, in.Stdin
		if p.files.tty != nil {
			return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("process %d has a terminal; send the input as pty", p.child.PID))
		}
		if to == nil {
			return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("stdin of process %d is closed; start it with stdin enabled", p.child.PID))
		}
	case *pb.ProcessInput_Pty:
		to, data = p.files.tty, in.Pty
		if to == nil {
			return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("process %d has no terminal; send the input as stdin", p.child.PID))
		}
	default:
		return connect.NewError(connect.CodeInvalidArgument, errors.New("the input must be stdin or pty"))
	}
	return p.writeTo(ctx, to, data)
}

func (p *process) writeTo(ctx context.Context, to *os.File, data []byte) error {
	_ = to.SetWriteDeadline(time.Time{})
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = to.SetWriteDeadline(time.Now())
		close(interrupted)
	})
	_, err := to.Write(data)
	if !stop() {
		<-interrupted // or it would end the next write
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, syscall.EPIPE), errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EIO):
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("process %d does not read its input any more", p.child.PID))
	}
	return connect.NewError(connect.CodeInternal, fmt.Errorf("write to process %d: %w", p.child.PID, err))
}

// closeStdin ends the input after what is being written. Closing twice is no
// error.
func (p *process) closeStdin(ctx context.Context) error {
	if p.files.tty != nil {
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("process %d has a terminal; end its input with ctrl-d", p.child.PID))
	}
	if err := p.takeInput(ctx); err != nil {
		return err
	}
	defer func() { p.input <- struct{}{} }()
	if p.files.stdin != nil {
		_ = p.files.stdin.Close()
	}
	return nil
}

func (p *process) takeInput(ctx context.Context) error {
	select {
	case <-p.input:
		return nil
	case <-p.ended:
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("process %d has ended", p.child.PID))
	case <-ctx.Done():
		return ctx.Err()
	}
}
