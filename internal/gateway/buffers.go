package gateway

import "sync"

// Sizes of the two buffers of a TCP connection, bytes. They are limits on what
// may wait there, not memory set aside.
const (
	minBuffer     = 16 << 10
	defaultBuffer = 1 << 20
	maxBuffer     = 2 << 20
	// minHostBuffer is the same for the host's side: the way is longer there.
	minHostBuffer = 128 << 10
)

// bufferBudget shares out how much may wait in the buffers of a sandbox's
// connections. Few connections get big buffers, many get small ones, down to
// minBuffer, so a sandbox cannot make the daemon hold much by opening many
// connections and reading from none.
type bufferBudget struct {
	mu   sync.Mutex
	free int
}

func newBufferBudget(total int) *bufferBudget { return &bufferBudget{free: total} }

// take returns the size for each of the two buffers of a new connection.
func (b *bufferBudget) take() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := min(max(b.free/16, minBuffer), maxBuffer)
	b.free -= 2 * size
	return size
}

func (b *bufferBudget) give(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += 2 * size
}
