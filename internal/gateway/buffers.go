package gateway

import "sync"

// Sizes of the two buffers of a TCP connection, bytes. They are limits on what
// may wait there, not memory set aside.
const (
	minBuffer     = 16 << 10
	defaultBuffer = 1 << 20
	maxBuffer     = 2 << 20
	// The same for the host's side, where the way is longer. The kernel takes twice as
	// much for each.
	minHostBuffer = 32 << 10
	maxHostBuffer = 128 << 10
	// hostBufferBytes is shared by the host's buffers of a sandbox, as limits are.
	hostBufferBytes = 64 << 20
)

// bufferBudget shares out how much may wait in the buffers of a sandbox's
// connections. Few connections get big buffers, many get small ones, down to
// the least, so a sandbox cannot make the daemon and the host's kernel hold much by
// opening many connections and reading from none.
type bufferBudget struct {
	mu         sync.Mutex
	free, host int
}

// bufferSizes are of each of the two buffers that a connection has on either side,
// bytes.
type bufferSizes struct{ inside, host int }

func newBufferBudget(total int) *bufferBudget {
	return &bufferBudget{free: total, host: hostBufferBytes}
}

// take returns the sizes for a new connection.
func (b *bufferBudget) take() bufferSizes {
	b.mu.Lock()
	defer b.mu.Unlock()
	sizes := bufferSizes{
		inside: min(max(b.free/16, minBuffer), maxBuffer),
		host:   min(max(b.host/256, minHostBuffer), maxHostBuffer),
	}
	b.free -= 2 * sizes.inside
	b.host -= 2 * sizes.host
	return sizes
}

func (b *bufferBudget) give(sizes bufferSizes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += 2 * sizes.inside
	b.host += 2 * sizes.host
}
