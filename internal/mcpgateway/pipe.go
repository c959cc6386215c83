package mcpgateway

import (
	"os"

	"golang.org/x/sys/unix"
)

// broken tells whether the other end of a pipe that is written to is closed.
func broken(pipe *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(pipe.Fd())}}
	_, err := unix.Poll(fds, 0)
	return err == nil && fds[0].Revents&unix.POLLERR != 0
}
