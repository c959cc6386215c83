package audit

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	queueSize = 4096
	syncEvery = time.Second
	// patience is how long Append waits for room while the log cannot be written.
	patience = 5 * time.Second
	// retryEvery is how often what could not be written is tried again.
	retryEvery = 500 * time.Millisecond
	// gatherFor is how long the writer waits for more, once it has a record: what a program
	// does first has several, and one write of them all leaves the processors to it. A crash
	// of the server loses as much.
	gatherFor = 5 * time.Millisecond
)

// Options are what a log is opened with; the zero value is fine.
type Options struct {
	KeyFile string       // "" is keys/audit.key beside the folder
	Log     *slog.Logger // slog.Default() when nil
	// Keep says what is removed; the zero value removes nothing. It is for the one
	// process that looks after the log.
	Keep Keep
	// SegmentSize is where a segment ends, bytes; 0 is 64 MiB.
	SegmentSize int64
}

// Log is the log as one process writes it. Its methods may be called from anywhere.
type Log struct {
	chain *chain
	log   *slog.Logger
	keep  Keep

	queue chan Record
	stop  chan struct{} // closed by Close
	done  chan struct{} // closed when the writer has ended
	ended error         // what Close returns, once done is closed

	// appending is held for reading while a record is put into the queue, so that
	// none is put there after the writer looked for the last time.
	appending sync.RWMutex
	closed    bool

	fold *fold
	lost losses
}

// Open opens the log in a folder, and begins it when it is new, with its key. What a
// crash left unfinished is repaired, and a record says so.
func Open(dir string, o Options) (*Log, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.KeyFile == "" {
		o.KeyFile = KeyFile(filepath.Dir(filepath.Clean(dir)))
	}
	if o.SegmentSize <= 0 {
		o.SegmentSize = segmentSize
	}
	chain, err := openWithKey(dir, o)
	if err != nil {
		return nil, fmt.Errorf("open the audit log %s: %w", dir, err)
	}
	l := &Log{
		chain: chain, log: o.Log, keep: o.Keep, fold: newFold(),
		queue: make(chan Record, queueSize), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go l.run()
	return l, nil
}

func openWithKey(dir string, o Options) (_ *chain, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := lockDir(dir, unix.LOCK_EX) // two processes must not make two keys
	if err != nil {
		return nil, err
	}
	key, err := keyOf(dir, o.KeyFile)
	lock.Close()
	if err != nil {
		return nil, err
	}
	c, err := openChain(dir, key, o.SegmentSize)
	if err != nil {
		return nil, err
	}
	if _, err := c.append(nil); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func keyOf(dir, file string) (Key, error) {
	list, err := segments(dir)
	if err != nil {
		return nil, err
	}
	return ensureKey(file, len(list) > 0)
}

// Append adds a record. It does not wait for the disk; only when some thousand
// records wait already does it wait for the writer, and for 5 s at most: what finds
// no room then is counted, and the count is recorded when the log can be written again.
func (l *Log) Append(r Record) {
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	r.Time = r.Time.UTC()
	r = bounded(r)
	if !l.fold.pass(r) {
		return
	}
	l.put(r)
}

func (l *Log) put(r Record) {
	l.appending.RLock()
	defer l.appending.RUnlock()
	if l.closed {
		l.lose(r)
		return
	}
	select {
	case l.queue <- r:
		return
	default:
	}
	wait := time.NewTimer(patience)
	defer wait.Stop()
	select {
	case l.queue <- r:
	case <-wait.C:
		l.lose(r)
	}
}

func (l *Log) lose(r Record) {
	if l.lost.add(r.Time) {
		l.log.Error("the audit log takes no records, they are lost and counted", "what", r.What)
	}
}

// losses counts the records that could not be kept.
type losses struct {
	mu    sync.Mutex
	count int
	since time.Time
}

// add tells whether it is the first.
func (l *losses) add(at time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count == 0 {
		l.since = at
	}
	l.count++
	return l.count == 1
}

// take gives the record that tells of them.
func (l *losses) take() (r Record, some bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count == 0 {
		return Record{}, false
	}
	r = note(whatLost, "the log could not be written", map[string]any{"records": l.count, "since": l.since})
	l.count = 0
	return r, true
}

// Close writes what was appended to the disk and ends the log.
func (l *Log) Close() error {
	l.appending.Lock()
	if !l.closed {
		l.closed = true
		close(l.stop)
	}
	l.appending.Unlock()
	<-l.done
	return l.ended
}

// run is the one writer.
func (l *Log) run() {
	defer close(l.done)
	var syncAt <-chan time.Time
	folds := time.NewTicker(foldEvery)
	defer folds.Stop()
	prunes := time.NewTicker(pruneEvery)
	defer prunes.Stop()
	l.prune()
	for {
		var batch []Record
		select {
		case r := <-l.queue:
			l.gather()
			batch = l.drain([]Record{r})
		case <-folds.C:
			batch = l.fold.take()
		case <-prunes.C:
			l.prune()
		case <-syncAt:
			syncAt = nil
			if err := l.chain.sync(); err != nil {
				l.log.Error("the audit log does not reach the disk", "error", err)
				syncAt = time.After(syncEvery)
			}
		case <-l.stop:
			l.ended = l.finish()
			return
		}
		if len(batch) > 0 {
			l.write(batch)
			if syncAt == nil {
				syncAt = time.After(syncEvery)
			}
		}
	}
}

// maxBatch bounds the records that are written in one go.
const maxBatch = 1024

// gather waits for what comes with a record, unless a whole batch is there.
func (l *Log) gather() {
	if len(l.queue) >= maxBatch {
		return
	}
	select {
	case <-time.After(gatherFor):
	case <-l.stop:
	}
}

func (l *Log) drain(batch []Record) []Record {
	for len(batch) < maxBatch {
		select {
		case r := <-l.queue:
			batch = append(batch, r)
		default:
			return batch
		}
	}
	return batch
}

// write writes a batch, and tries until it is written or the log is closed.
func (l *Log) write(batch []Record) {
	told := false
	for {
		n, err := l.chain.append(batch)
		batch = batch[n:]
		if err == nil {
			if r, some := l.lost.take(); some {
				batch = []Record{r}
				continue
			}
			if len(batch) == 0 {
				return
			}
			continue
		}
		if !told {
			told = true
			l.log.Error("the audit log cannot be written; it is tried again", "error", err)
		}
		select {
		case <-l.stop:
			for _, r := range batch {
				l.lost.add(r.Time)
			}
			return
		case <-time.After(retryEvery):
		}
	}
}

// finish writes what is left.
func (l *Log) finish() error {
	l.write(l.fold.take())
	for batch := l.drain(nil); len(batch) > 0; batch = l.drain(nil) {
		l.write(batch)
	}
	err := l.chain.sync()
	l.lost.mu.Lock()
	if l.lost.count > 0 {
		err = errors.Join(err, fmt.Errorf("%d records of the audit log are lost", l.lost.count))
	}
	l.lost.mu.Unlock()
	return errors.Join(err, l.chain.close())
}
