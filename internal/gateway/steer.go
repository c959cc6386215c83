package gateway

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// The device has a queue for TCP and one for the rest. A queue that is full
// drops, and only TCP slows down then: with one queue, a program that floods
// with datagrams would shut out everything else of its sandbox.
const (
	queueTCP = iota
	queueRest
	queueCount
)

// The rest is read no faster than this, which is far above what honest
// datagrams need, so that a flood costs the daemon a bounded share of a core.
const (
	restPackets = 150_000 // a second; a longer frame counts once more for each restUnit
	restUnit    = 2 << 10 // bytes
	restBurst   = 10_000
)

func newRestLimiter() *rate.Limiter { return rate.NewLimiter(restPackets, restBurst) }

// steer loads a program into the kernel that picks the queue for a frame by
// the protocol in its IPv4 header (linux/if_tun.h, TUNSETSTEERINGEBPF). A host
// that does not allow it spreads flows over both queues, which still works.
func steer(queue *os.File) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "tombolo_queue",
		Type: ebpf.SocketFilter,
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1), // LoadAbs reads the frame that R6 points to
			asm.LoadAbs(header.EthernetMinimumSize+ipProtocolOffset, asm.Byte),
			asm.JEq.Imm(asm.R0, int32(header.TCPProtocolNumber), "tcp"),
			asm.Mov.Imm(asm.R0, queueRest),
			asm.Return(),
			asm.Mov.Imm(asm.R0, queueTCP).WithSymbol("tcp"),
			asm.Return(),
		},
		License: "Apache-2.0",
	})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) || errors.Is(err, ebpf.ErrNotSupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("load program: %w", err)
	}
	defer program.Close() // the device keeps it
	raw, err := queue.SyscallConn()
	if err != nil {
		return err
	}
	var attachErr error
	err = raw.Control(func(fd uintptr) {
		attachErr = unix.IoctlSetPointerInt(int(fd), unix.TUNSETSTEERINGEBPF, program.FD())
	})
	return firstError(err, attachErr)
}

const ipProtocolOffset = 9
