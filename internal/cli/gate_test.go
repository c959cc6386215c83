package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhoHandsOverDoesNotWait(t *testing.T) {
	stuck := make(chan struct{})
	var taken []int
	give, stop := handOver(func(n int) {
		<-stuck
		taken = append(taken, n)
	})
	for n := range 100 {
		give(n) // nothing is taken yet
	}
	close(stuck)
	stop()
	require.Len(t, taken, 100)
	require.IsIncreasing(t, taken)
	give(100)
	require.Len(t, taken, 100, "what comes too late is dropped")
}
