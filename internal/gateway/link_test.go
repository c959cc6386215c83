package gateway

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Short and long frames in any order, one by one and many at once, come as they were sent.
func TestFramesOfAllSizesAreReadWhole(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	device, peer := os.NewFile(uintptr(pair[0]), "device"), os.NewFile(uintptr(pair[1]), "peer")
	defer device.Close()
	defer peer.Close()
	raw, err := device.SyscallConn()
	require.NoError(t, err)

	random := rand.New(rand.NewPCG(1, 2))
	sizes := []int{60, firstChunk - 1, firstChunk, firstChunk + 1, firstChunk + lastChunk, 42, 65000, 65000, 1500, 1500, firstChunk + lastChunk}
	var r frameReader
	for range 50 {
		sent := make([][]byte, 1+random.IntN(2))
		for i := range sent {
			sent[i] = make([]byte, vnetHeaderLen+sizes[random.IntN(len(sizes))])
			for j := range sent[i] {
				sent[i][j] = byte(random.Uint32())
			}
			_, err := peer.Write(sent[i])
			require.NoError(t, err)
		}
		for _, want := range sent {
			frame, err := r.next(raw)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want[vnetHeaderLen:], frame.Flatten()), "a frame of %d bytes", len(want)-vnetHeaderLen)
			frame.Release()
		}
		if random.IntN(2) == 0 {
			r.release() // as when it waits
		}
	}
	r.release()
}
