package build

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// hold takes a turn, or says that it waits; the channel is closed when it has one.
func hold(ctx context.Context, q *queue, key string) (has <-chan error, waits bool) {
	turn, waiting := make(chan error, 1), make(chan struct{})
	go func() { turn <- q.take(ctx, key, func() { close(waiting) }) }()
	select {
	case err := <-turn:
		turn <- err
		return turn, false
	case <-waiting:
		return turn, true
	}
}

func TestOneKeyDoesNotKeepTheBuildsOfOthersWaiting(t *testing.T) {
	q := newQueue(3)
	var first []<-chan error
	for i, waits := range []bool{false, false, true, true} {
		has, waited := hold(t.Context(), q, "many")
		require.Equal(t, waits, waited, "build %d of a key that has many", i)
		first = append(first, has)
	}
	_, waits := hold(t.Context(), q, "other")
	require.False(t, waits, "one turn is left for others")
	third, waits := hold(t.Context(), q, "third")
	require.True(t, waits, "all turns are taken")
	q.give("many")
	require.NoError(t, <-third, "who has none comes before who has one and waits longer")
	q.give("other")
	require.NoError(t, <-first[2])
	require.Len(t, q.waiting, 1)
	q.give("third")
	require.Len(t, q.waiting, 1, "the key has all turns that one key may have")
	q.give("many")
	require.NoError(t, <-first[3])
}

func TestWhoGivesUpWaitingLeavesItsTurn(t *testing.T) {
	q := newQueue(2)
	_, waits := hold(t.Context(), q, "a")
	require.False(t, waits)
	ctx, cancel := context.WithCancel(t.Context())
	gone, waits := hold(ctx, q, "a")
	require.True(t, waits)
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	require.Empty(t, q.waiting)
	require.ErrorIs(t, q.take(ctx, "b", func() {}), context.Canceled, "a turn is free and is not taken")
	require.Equal(t, map[string]int{"a": 1}, q.running)
	q.give("a")
	require.Empty(t, q.running)
}
