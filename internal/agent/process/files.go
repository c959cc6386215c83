package process

import (
	"fmt"
	"os"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
)

// files are the two sides of a process's streams.
type files struct {
	child []uintptr  // its descriptors 0, 1 and 2
	close []*os.File // what backs them, closed after the fork

	stdin          *os.File // nil when closed
	stdout, stderr *os.File // nil with a terminal
	tty            *os.File // nil without
}

// openFiles makes the streams a request asks for. Stdin is open unless the
// caller says no: callers older than that field expect so.
func openFiles(req *pb.StartRequest, who account.Account) (*files, error) {
	f := &files{}
	var err error
	if req.GetPty() != nil {
		err = f.openTerminal(req.GetPty().GetSize(), who)
	} else {
		err = f.openPipes(req.Stdin == nil || req.GetStdin())
	}
	if err != nil {
		f.closeChild()
		f.closeParent()
		return nil, err
	}
	return f, nil
}

func (f *files) openTerminal(size *pb.PTY_Size, who account.Account) error {
	master, slave, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	f.tty, f.close = master, []*os.File{slave}
	if err := setSize(master, size); err != nil {
		return err
	}
	fd := slave.Fd()
	// Programs that reopen their terminal must be allowed to; where the chown is
	// refused they only cannot do that.
	_ = unix.Fchown(int(fd), int(who.UID), int(who.GID))
	f.child = []uintptr{fd, fd, fd}
	return nil
}

// setSize sets a terminal's size; 0 keeps E2B's default of 80 by 24.
func setSize(tty *os.File, size *pb.PTY_Size) error {
	cols, rows := min(size.GetCols(), 0xffff), min(size.GetRows(), 0xffff)
	if cols == 0 {
		cols = 80
	}
	if rows == 0 {
		rows = 24
	}
	if err := pty.Setsize(tty, &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)}); err != nil {
		return fmt.Errorf("set the terminal's size to %dx%d: %w", cols, rows, err)
	}
	return nil
}

func (f *files) openPipes(stdin bool) error {
	var in *os.File
	var err error
	if stdin {
		if in, f.stdin, err = pipe(false); err != nil {
			return err
		}
	} else if in, err = os.Open(os.DevNull); err != nil {
		return fmt.Errorf("open an empty input: %w", err)
	}
	f.close = append(f.close, in)
	var out, errs *os.File
	if f.stdout, out, err = pipe(true); err != nil {
		return err
	}
	f.close = append(f.close, out)
	if f.stderr, errs, err = pipe(true); err != nil {
		return err
	}
	f.close = append(f.close, errs)
	f.child = []uintptr{in.Fd(), out.Fd(), errs.Fd()}
	return nil
}

// pipe makes a pipe of which only the agent's end does not block: programs do
// not expect it of theirs.
func pipe(agentReads bool) (read, write *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	own := fds[1]
	if agentReads {
		own = fds[0]
	}
	if err := unix.SetNonblock(own, true); err != nil {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

func (f *files) closeChild() {
	for _, file := range f.close {
		_ = file.Close()
	}
	f.close = nil
}

func (f *files) closeParent() {
	for _, file := range []*os.File{f.stdin, f.stdout, f.stderr, f.tty} {
		if file != nil {
			_ = file.Close()
		}
	}
}
