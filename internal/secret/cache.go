package secret

import (
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/replace"
)

const (
	// keepUnused is how long a decrypted value stays in memory that nobody asks for.
	keepUnused = 5 * time.Minute
	// maxCached bounds the decrypted values in memory, in bytes.
	maxCached = 16 << 20
)

// valueID is one version of one secret.
type valueID struct {
	secret  string
	version int
}

// open is a decrypted value, and how it may be found in answers.
type open struct {
	value    Value
	patterns []replace.Pair
	used     time.Time
}

func (o *open) size() int {
	n := len(o.value.bytes)
	for _, p := range o.patterns {
		n += len(p.Old)
	}
	return n
}

// cache holds the values in use. The zero cache is empty.
type cache struct {
	mu   sync.Mutex
	all  map[valueID]*open
	size int
}

// get is a value and its patterns, made by make when they are not there.
func (c *cache) get(of valueID, now time.Time, make func() (*open, error)) (text string, patterns []replace.Pair, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.all[of]
	if o == nil {
		if o, err = make(); err != nil {
			return "", nil, err
		}
		c.add(of, o)
	}
	o.used = now
	return string(o.value.bytes), o.patterns, nil
}

func (c *cache) add(of valueID, o *open) {
	if c.all == nil {
		c.all = map[valueID]*open{}
	}
	for c.size+o.size() > maxCached && len(c.all) > 0 {
		c.drop(c.oldest())
	}
	c.all[of] = o
	c.size += o.size()
}

func (c *cache) oldest() (oldest valueID) {
	var used time.Time
	for of, o := range c.all {
		if used.IsZero() || o.used.Before(used) {
			oldest, used = of, o.used
		}
	}
	return oldest
}

func (c *cache) drop(of valueID) {
	o := c.all[of]
	c.size -= o.size()
	o.value.Wipe()
	delete(c.all, of)
}

// keep drops all that keep says no to.
func (c *cache) keep(keep func(valueID) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for of := range c.all {
		if !keep(of) {
			c.drop(of)
		}
	}
}

func (c *cache) dropAll() { c.keep(func(valueID) bool { return false }) }

func (c *cache) dropUnused(since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for of, o := range c.all {
		if o.used.Before(since) {
			c.drop(of)
		}
	}
}
