package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/wholefile"
)

// What the log says about itself, in records of the kind Server.
const (
	whatBegin  = "begin audit log"
	whatRepair = "repair audit log" // a line that a crash left unfinished was cut off
	whatDamage = "audit log damaged"
	whatPrune  = "prune audit log"
	whatLost   = "audit records lost"
	whatFold   = "audit records left out"
)

// The sizes of segments.
const (
	segmentSize = 64 << 20
	segmentAge  = 7 * 24 * time.Hour // so that a log that grows slowly can be pruned too
)

// chain is the log on the disk, as one process appends to it. Its methods are for
// one goroutine.
type chain struct {
	dir  string
	keys keys
	lock *os.File
	size int64 // at which a segment is full

	last    Head     // the end of the chain, as far as this process knows
	current segment  // that holds it; size as this process left it
	file    *os.File // current, for writing
	begins  time.Time
}

func openChain(dir string, key Key, size int64) (*chain, error) {
	c := &chain{dir: dir, keys: key.uses(), size: size}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	c.lock = lock
	return c, nil
}

func (c *chain) close() error {
	err := c.lock.Close()
	if c.file != nil {
		err = errors.Join(err, c.file.Close())
	}
	return err
}

// locked does something while no other process touches the log.
func (c *chain) locked(do func() error) error {
	if err := flock(c.lock, unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock the audit log: %w", err)
	}
	defer flock(c.lock, unix.LOCK_UN)
	return do()
}

// append adds records to the chain, and tells how many are in it. A record that is
// not, has left no trace.
func (c *chain) append(records []Record) (done int, err error) {
	err = c.locked(func() error {
		notes, err := c.refresh()
		if err != nil {
			return err
		}
		if err := c.writeNotes(notes); err != nil {
			return err
		}
		done, err = c.write(records)
		return err
	})
	return done, err
}

// writeNotes writes what was found wrong, and a head, so that it is found once.
func (c *chain) writeNotes(notes []Record) error {
	if len(notes) == 0 {
		return nil
	}
	if _, err := c.write(notes); err != nil {
		return err
	}
	if err := c.file.Sync(); err != nil {
		return err
	}
	return c.writeHead(c.last)
}

// note is a record of the log about itself.
func note(what, reason string, detail any) Record {
	r := Record{Time: time.Now().UTC(), Kind: Server, Actor: "server", What: what, Reason: reason}
	if detail != nil {
		r.Detail = Detail(detail)
	}
	return bounded(r)
}

// refresh finds the end of the chain, which another process may have moved, and
// gives the records that tell what was found wrong with it.
func (c *chain) refresh() ([]Record, error) {
	if alone, err := c.alone(); alone || err != nil {
		return nil, err
	}
	list, err := segments(c.dir)
	if err != nil {
		return nil, err
	}
	head, headErr := c.keys.readHead(c.dir)
	if headErr != nil && !errors.Is(headErr, errNoHead) && !errors.Is(headErr, errBadHead) {
		return nil, headErr
	}
	if len(list) == 0 && errors.Is(headErr, errNoHead) && c.last.Seq == 0 {
		return nil, c.begin()
	}
	end, notes, err := c.takeEnd(list)
	if err != nil {
		return nil, err
	}
	var damage []string
	if end.broken > 0 {
		damage = append(damage, fmt.Sprintf("the last %d lines were changed or added", end.broken))
	}
	if headErr != nil && !(errors.Is(headErr, errNoHead) && end.last.Seq == 1) { // else a crash came between the two
		damage = append(damage, headErr.Error())
	}
	known := head // the furthest that is known to have been there
	if c.last.Seq > known.Seq {
		known = c.last
	}
	switch {
	case known.Seq > end.last.Seq:
		damage = append(damage, fmt.Sprintf("the records %d to %d were missing", end.last.Seq+1, known.Seq))
		end.last = known
	case known.Seq == end.last.Seq && known.Hash != end.last.Hash:
		damage = append(damage, fmt.Sprintf("the record %d was another", known.Seq))
	}
	c.last = end.last
	if len(damage) > 0 {
		notes = append(notes, note(whatDamage, strings.Join(damage, "; "), nil))
	}
	if len(list) == 0 {
		return notes, c.newSegment()
	}
	return notes, nil
}

// alone tells that nobody wrote since this process did.
func (c *chain) alone() (bool, error) {
	firsts, err := segmentFirsts(c.dir)
	if err != nil || c.file == nil || len(firsts) == 0 || firsts[len(firsts)-1] != c.current.first {
		return false, err
	}
	now, err := statSegment(c.dir, c.current.first)
	return now == c.current, err
}

// begin starts a log that has nothing yet.
func (c *chain) begin() error {
	if err := c.newSegment(); err != nil {
		return err
	}
	return c.writeNotes([]Record{note(whatBegin, "", map[string]string{"key": c.keys.fingerprint()})})
}

// takeEnd opens the last segment for writing, ends or removes a line that is not
// finished, and reads where the chain ends.
func (c *chain) takeEnd(list []segment) (tail, []Record, error) {
	if len(list) == 0 {
		return tail{}, nil, nil
	}
	last := list[len(list)-1]
	end, err := c.keys.readTail(last)
	if err != nil {
		return tail{}, nil, err
	}
	if end.last.Seq == 0 && len(list) > 1 { // begun, and nothing is in it
		before, err := c.keys.readTail(list[len(list)-2])
		if err != nil {
			return tail{}, nil, err
		}
		end.last = before.last
	}
	file, err := os.OpenFile(last.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return tail{}, nil, err
	}
	if c.file != nil {
		c.file.Close()
	}
	c.file, c.current, c.begins = file, last, end.begins
	if end.torn == 0 {
		return end, nil, nil
	}
	cut, err := c.repair(end)
	if err != nil {
		return tail{}, nil, err
	}
	if cut == "" {
		end.broken++
		return end, nil, nil
	}
	return end, []Record{note(whatRepair, "a line was not finished, as a crash leaves it; it was cut off", map[string]any{"bytes": end.torn, "line": cut})}, nil
}

// repair cuts off a line that is not finished and gives its beginning. What is too
// long to be one of ours stays, as a line.
func (c *chain) repair(end tail) (string, error) {
	if end.torn > maxLine {
		n, err := c.file.WriteString("\n")
		c.current.size += int64(n)
		return "", err
	}
	text, err := readAt(c.current.path, end.whole, min(end.torn, 512))
	if err != nil {
		return "", err
	}
	if err := c.file.Truncate(end.whole); err != nil {
		return "", err
	}
	c.current.size = end.whole
	return strings.ToValidUTF8(text, "\uFFFD"), nil
}

func readAt(path string, from, length int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, from, length))
	return string(text), err
}

// newSegment begins a segment after the end of the chain.
func (c *chain) newSegment() error {
	path := segmentPath(c.dir, c.last.Seq+1)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if err := syncDir(c.dir); err != nil {
		return errors.Join(err, file.Close(), os.Remove(path))
	}
	if c.file != nil {
		c.file.Close()
	}
	c.file, c.begins = file, time.Now()
	c.current, err = statSegment(c.dir, c.last.Seq+1)
	return err
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// write seals records and writes them, beginning segments where one is full.
func (c *chain) write(records []Record) (done int, err error) {
	for done < len(records) {
		n, err := c.writeSome(records[done:])
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// writeSome writes what fits into the current segment, at least one record.
func (c *chain) writeSome(records []Record) (int, error) {
	if c.current.size > 0 && (c.current.size >= c.size || time.Since(c.begins) > segmentAge) {
		if err := c.file.Sync(); err != nil {
			return 0, err
		}
		if err := c.newSegment(); err != nil {
			return 0, err
		}
	}
	var lines []byte
	last, n := c.last, 0
	for _, r := range records {
		if n > 0 && c.current.size+int64(len(lines)) >= c.size {
			break
		}
		r = r.WithDetail()
		r.Seq, r.Previous = last.Seq+1, last.Hash
		line, hash, err := c.keys.seal(r)
		if err != nil {
			return 0, err
		}
		lines, last, n = append(lines, line...), Head{r.Seq, hash}, n+1
	}
	if _, err := c.file.Write(lines); err != nil {
		return 0, errors.Join(err, c.file.Truncate(c.current.size))
	}
	c.current.size += int64(len(lines))
	c.last = last
	return n, nil
}

// sync brings what was appended to the disk, and then the head.
func (c *chain) sync() error {
	if c.file == nil {
		return nil
	}
	reached := c.last
	if err := c.file.Sync(); err != nil {
		return err
	}
	return c.locked(func() error {
		head, err := c.keys.readHead(c.dir)
		if err == nil && head.Seq >= reached.Seq {
			return nil // another process was faster
		}
		return c.writeHead(reached)
	})
}

func (c *chain) writeHead(h Head) error {
	return wholefile.Write(filepath.Join(c.dir, headFile), 0o600, c.keys.sealHead(h))
}
