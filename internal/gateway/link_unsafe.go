package gateway

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

var nativeEndian = binary.NativeEndian

// readv3 fills three buffers with one system call and without allocating.
func readv3(fd int, a, b, c []byte) (int, error) {
	vectors := [3]unix.Iovec{vector(a), vector(b), vector(c)}
	n, _, errno := unix.Syscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&vectors)), 3)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// writePacket writes head and the packet as one frame. A packet in more than
// 60 pieces is written flat; the stack makes none.
func writePacket(fd int, head []byte, packet *stack.PacketBuffer) error {
	var space [61]unix.Iovec
	slices := packet.AsSlices()
	if len(slices) > len(space)-1 {
		slices = [][]byte{packet.ToView().AsSlice()}
	}
	space[0] = vector(head)
	count := 1
	for _, s := range slices {
		if len(s) > 0 {
			space[count] = vector(s)
			count++
		}
	}
	for {
		_, _, errno := unix.Syscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&space)), uintptr(count))
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

// vector must not be given an empty slice.
func vector(b []byte) unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return v
}
