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
	child []uintptr // its descriptors 0, 1 and 2
	close []int     // closed after the fork

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
	defer slave.Close()
	f.tty = master
	if err := setSize(master, size); err != nil {
		return err
	}
	fd, err := unix.FcntlInt(slave.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	f.close = []int{fd}
	// Programs that reopen their terminal must be allowed to; where the chown is
	// refused they only cannot do that.
	_ = unix.Fchown(fd, int(who.UID), int(who.GID))
	f.child = []uintptr{uintptr(fd), uintptr(fd), uintptr(fd)}
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
	var err error
	if stdin {
		if f.stdin, err = f.pipe(false); err != nil {
			return err
		}
	} else if err = f.openNull(); err != nil {
		return err
	}
	if f.stdout, err = f.pipe(true); err != nil {
		return err
	}
	f.stderr, err = f.pipe(true)
	return err
}

// openNull makes the next descriptor of the process an empty input. The files of
// the process are no *os.File: what that asks of the kernel for each is a tenth
// of a start.
func (f *files) openNull() error {
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open an empty input: %w", err)
	}
	f.give(fd)
	return nil
}

// pipe makes the next descriptor of the process one end of a pipe and returns
// the other. Only the agent's end does not block: programs do not expect it of
// theirs.
func (f *files) pipe(agentReads bool) (*os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	own, child, mode := fds[1], fds[0], unix.O_WRONLY
	if agentReads {
		own, child, mode = fds[0], fds[1], unix.O_RDONLY
	}
	f.give(child)
	if _, err := unix.FcntlInt(uintptr(own), unix.F_SETFL, mode|unix.O_NONBLOCK); err != nil {
		_ = unix.Close(own)
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	return os.NewFile(uintptr(own), "pipe"), nil
}

func (f *files) give(fd int) {
	f.child = append(f.child, uintptr(fd))
	f.close = append(f.close, fd)
}

func (f *files) closeChild() {
	for _, fd := range f.close {
		_ = unix.Close(fd)
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
