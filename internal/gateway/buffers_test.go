package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBuffersOfManyConnectionsAreSmall(t *testing.T) {
	limits := Limits{}.withDefaults()
	b := newBufferBudget(limits.BufferBytes)
	first := b.take()
	require.EqualValues(t, maxBuffer, first.inside)
	taken := []bufferSizes{first}
	inside, host := 0, 0
	for range limits.Connections - 1 {
		taken = append(taken, b.take())
	}
	for _, sizes := range taken {
		require.GreaterOrEqual(t, sizes.inside, minBuffer)
		require.GreaterOrEqual(t, sizes.host, minHostBuffer)
		inside += 2 * sizes.inside
		host += 2 * sizes.host
	}
	require.Less(t, inside, 160<<20, "what all may hold in the stack")
	require.Less(t, host, 224<<20, "what all may hold in the host's kernel, which takes twice as much")
	for _, sizes := range taken {
		b.give(sizes)
	}
	require.Equal(t, first, b.take(), "all was given back")
}
