package tombolo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/approval"
)

// feedLength is how many changes of holds a reader that was away can catch up with.
// Who was away for longer gets what is pending anew.
const feedLength = 1024

// feed keeps the last changes of holds for those who read them in their own time:
// no reader holds up another, or the desk, and none costs memory but its place.
type feed struct {
	mu      sync.Mutex
	run     string          // tells these numbers from those of other processes, or before a gap
	changes []approval.Hold // a ring; number n is at n % feedLength
	first   uint64          // the number of the first since a restart
	next    uint64          // the number of the next
	told    chan struct{}   // closed at the next change
}

func newFeed() *feed {
	f := &feed{changes: make([]approval.Hold, feedLength), told: make(chan struct{})}
	f.restart()
	return f
}

// fill adds what the desk tells until ctx ends.
func (f *feed) fill(ctx context.Context, desk Desk) {
	for {
		for h := range desk.Watch(ctx, approval.Filter{}) {
			f.add(h)
		}
		select { // it was closed, or this was too slow and there is a gap
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		f.restart()
	}
}

// add notes a change. It never waits.
func (f *feed) add(h approval.Hold) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes[f.next%feedLength] = h
	f.next++
	close(f.told)
	f.told = make(chan struct{})
}

// restart forgets everything: all readers begin anew.
func (f *feed) restart() {
	b := make([]byte, 4)
	rand.Read(b) // never fails: crypto/rand ends the process instead
	f.mu.Lock()
	defer f.mu.Unlock()
	f.run = hex.EncodeToString(b)
	f.next += feedLength + 1 // no reader has read as far
	f.first = f.next
	close(f.told)
	f.told = make(chan struct{})
}

// now is the number of the next change.
func (f *feed) now() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.next
}

// read returns the changes from a number on and a channel that is closed when there
// are more. lost tells that some are not kept any more.
func (f *feed) read(from uint64) (changes []approval.Hold, more <-chan struct{}, lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if from < f.first || from > f.next || f.next-from > feedLength {
		return nil, f.told, true
	}
	for n := from; n < f.next; n++ {
		changes = append(changes, f.changes[n%feedLength])
	}
	return changes, f.told, false
}

// id is what a reader says when it comes back after the change with this number.
func (f *feed) id(number uint64) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprintf("%s-%d", f.run, number)
}

// after is the number of the change after the one with an id.
func (f *feed) after(id string) (number uint64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	run, text, _ := strings.Cut(id, "-")
	number, err := strconv.ParseUint(text, 10, 62)
	return number + 1, err == nil && run == f.run
}
