package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
)

// Filter says which records are wanted. A field that is empty is no limit.
type Filter struct {
	Sandbox  string
	Key      string // the key that a sandbox belongs to, or that did it
	Actor    string
	Kinds    []Kind
	Decision string
	Since    time.Time // and later
	Until    time.Time // earlier than this
}

// Fits tells whether a record is wanted.
func (f Filter) Fits(r Record) bool {
	return (f.Sandbox == "" || r.SandboxID == f.Sandbox) &&
		(f.Key == "" || r.KeyID == f.Key || r.Actor == "key:"+f.Key) &&
		(f.Actor == "" || r.Actor == f.Actor) &&
		(len(f.Kinds) == 0 || slices.Contains(f.Kinds, r.Kind)) &&
		(f.Decision == "" || r.Decision == f.Decision) &&
		(f.Since.IsZero() || !r.Time.Before(f.Since)) &&
		(f.Until.IsZero() || r.Time.Before(f.Until))
}

// Kinds lists all kinds.
func Kinds() []Kind {
	return []Kind{API, Lifecycle, Exec, File, Network, Secret, Approval, Policy, Server}
}

// ErrNoLog says that a folder has no log.
var ErrNoLog = errors.New("there is no audit log: it begins with the first `tombolo serve` or `tombolo run`")

// Read calls each for every record of a log that fits, oldest first, with its line as
// it is in the file. It checks nothing: see [Verify]. An error of each ends it.
func Read(ctx context.Context, dir string, f Filter, each func(r Record, line []byte) error) error {
	list, err := segments(dir)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return ErrNoLog
	}
	list, err = from(list, f.Since)
	if err != nil {
		return err
	}
	for _, s := range list {
		if _, err := readFrom(ctx, s.path, 0, f, each); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// slack is by how much the times of records that follow each other may differ the
// wrong way: they wait in the queues of several processes.
const slack = time.Minute

// from leaves out the segments that end before a time.
func from(list []segment, since time.Time) ([]segment, error) {
	for !since.IsZero() && len(list) > 1 {
		begins, err := firstTime(list[1].path)
		if err != nil {
			return nil, err
		}
		if begins.IsZero() || begins.After(since.Add(-slack)) {
			break
		}
		list = list[1:]
	}
	return list, nil
}

// firstTime is the time of a segment's first record; zero when it has none.
func firstTime(path string) (time.Time, error) {
	f, err := os.Open(path)
	if err != nil {
		return time.Time{}, err
	}
	defer f.Close()
	var r Record
	line, err := bufio.NewReaderSize(f, maxLine).ReadSlice('\n')
	if err == nil && json.Unmarshal(line, &r) == nil {
		return r.Time, nil
	}
	return time.Time{}, nil
}

// readFrom reads the whole lines of a file from a place on, and gives the place
// after the last one.
func readFrom(ctx context.Context, path string, at int64, f Filter, each func(Record, []byte) error) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return at, err
	}
	defer file.Close()
	if _, err := file.Seek(at, io.SeekStart); err != nil {
		return at, err
	}
	lines := newLines(file)
	for ctx.Err() == nil {
		line, err := lines.next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return at, err
		}
		at += lines.length
		var r Record
		if json.Unmarshal(line, &r) != nil || !f.Fits(r) {
			continue
		}
		if err := each(r, line); err != nil {
			return at, err
		}
	}
	return at, ctx.Err()
}

// lines reads the lines of a segment. One that is longer than a record can be is
// given as its beginning.
type lines struct {
	r      *bufio.Reader
	length int64 // of the last line in the file, with its newline
	torn   int64 // bytes after the last newline, known at the end
}

func newLines(r io.Reader) *lines { return &lines{r: bufio.NewReaderSize(r, 2*maxLine)} }

// next gives a line without its newline, good until the next call; io.EOF at the end.
func (l *lines) next() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	l.length = int64(len(line))
	if errors.Is(err, bufio.ErrBufferFull) {
		line = bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			var rest []byte
			rest, err = l.r.ReadSlice('\n')
			l.length += int64(len(rest))
		}
	}
	if err != nil {
		l.torn, l.length = l.length, 0
		return nil, err
	}
	return bytes.TrimSuffix(line, []byte("\n")), nil
}

// pollEvery is how often a log that is followed is looked at.
const pollEvery = 200 * time.Millisecond

// Tail calls each for the last records that fit, at most as many, oldest first, and
// with follow for those to come, until the context ends, which is no error.
func Tail(ctx context.Context, dir string, f Filter, last int, follow bool, each func(r Record, line []byte) error) error {
	at, err := tailOf(ctx, dir, f, last, each)
	if err != nil || !follow {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollEvery):
		}
		if at, err = readOn(ctx, dir, at, f, each); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// place is where a reader is.
type place struct {
	segment uint64
	offset  int64
}

type found struct {
	record Record
	line   []byte
}

// tailOf reads segments from the newest back, until it has what is wanted.
func tailOf(ctx context.Context, dir string, f Filter, last int, each func(Record, []byte) error) (place, error) {
	list, err := segments(dir)
	if err != nil {
		return place{}, err
	}
	if len(list) == 0 {
		return place{}, ErrNoLog
	}
	wanted, err := from(list, f.Since)
	if err != nil {
		return place{}, err
	}
	end := place{segment: list[len(list)-1].first}
	var all []found
	for i := len(wanted) - 1; i >= 0 && len(all) < last; i-- {
		var these []found
		most := last - len(all)
		offset, err := readFrom(ctx, wanted[i].path, 0, f, func(r Record, line []byte) error {
			if len(these) == 2*most {
				these = slices.Delete(these, 0, most)
			}
			these = append(these, found{r, bytes.Clone(line)})
			return nil
		})
		if err != nil {
			return place{}, err
		}
		if i == len(wanted)-1 {
			end.offset = offset
		}
		all = append(these[max(0, len(these)-most):], all...)
	}
	for _, one := range all {
		if err := each(one.record, one.line); err != nil {
			return place{}, err
		}
	}
	return end, nil
}

// readOn reads what came after a place.
func readOn(ctx context.Context, dir string, at place, f Filter, each func(Record, []byte) error) (place, error) {
	firsts, err := segmentFirsts(dir)
	if err != nil {
		return at, err
	}
	for _, first := range firsts {
		if first < at.segment {
			continue
		}
		if first > at.segment {
			at = place{segment: first}
		}
		at.offset, err = readFrom(ctx, segmentPath(dir, first), at.offset, f, each)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return at, fmt.Errorf("read on: %w", err)
		}
	}
	return at, nil
}
