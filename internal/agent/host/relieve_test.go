package host

import (
	"encoding/binary"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

func TestParseStat(t *testing.T) {
	line := "42 (a) b ((c) S 7 42 42 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 1000 25 18446744073709551615"
	var c candidate
	require.True(t, parseStat([]byte(line), 42, 4096, &c))
	require.Equal(t, 42, c.pid)
	require.Equal(t, 7, c.parent)
	require.EqualValues(t, 25*4096, c.rss)
	require.Equal(t, "a) b ((c", string(c.name[:c.nameLength]))
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (x) S 0 1 1"))
	f.Add([]byte(")("))
	f.Fuzz(func(t *testing.T, line []byte) {
		var c candidate
		parseStat(line, 1, 4096, &c)
		require.LessOrEqual(t, c.nameLength, len(c.name))
	})
}

func FuzzNextPID(f *testing.F) {
	entry := make([]byte, 24)
	binary.LittleEndian.PutUint16(entry[16:], 24)
	copy(entry[19:], "42")
	f.Add(entry)
	f.Fuzz(func(t *testing.T, entries []byte) {
		for len(entries) > 0 {
			_, rest := nextPID(entries)
			require.Less(t, len(rest), len(entries), "no progress")
			entries = rest
		}
	})
}

// The scan must work when there is nothing left to allocate.
func TestScanFindsTheParentWithoutAllocating(t *testing.T) {
	spawner, err := spawn.New(nil, false)
	require.NoError(t, err)
	r := newReliever(spawner)
	child, err := spawner.Start("/bin/sleep", []string{"sleep", "100"}, &syscall.ProcAttr{})
	require.NoError(t, err)
	defer func() { _ = child.Signal(syscall.SIGKILL) }()
	var c candidate
	allocations := testing.AllocsPerRun(20, func() { require.True(t, r.read(child.PID, &c)) })
	require.Equal(t, "sleep", string(c.name[:c.nameLength]))
	require.Equal(t, os.Getpid(), c.parent)
	require.LessOrEqual(t, allocations, 4.0)

	r.explain(c, "out of memory")
	require.Equal(t, "out of memory", child.Reason())
}
