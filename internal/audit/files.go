package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	headFile = "head"
	lockFile = "lock"
)

// segment is one file of records.
type segment struct {
	first uint64 // number of its first record, and its name
	path  string
	size  int64
	inode uint64
}

// A segment's name is its first number in as many digits as a number may have, so
// that names sort as numbers do.
const (
	segmentDigits = 20
	segmentSuffix = ".jsonl"
)

func segmentPath(dir string, first uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%0*d%s", segmentDigits, first, segmentSuffix))
}

// segments lists the segments of a folder, oldest first; none when there is no folder.
func segments(dir string) ([]segment, error) {
	firsts, err := segmentFirsts(dir)
	if err != nil {
		return nil, err
	}
	var found []segment
	for _, first := range firsts {
		s, err := statSegment(dir, first)
		if errors.Is(err, fs.ErrNotExist) {
			continue // pruned since
		}
		if err != nil {
			return nil, err
		}
		found = append(found, s)
	}
	return found, nil
}

// segmentFirsts lists the names of the segments as numbers, in order.
func segmentFirsts(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var firsts []uint64
	for _, e := range entries {
		digits, is := strings.CutSuffix(e.Name(), segmentSuffix)
		if first, err := strconv.ParseUint(digits, 10, 64); is && err == nil && len(digits) == segmentDigits {
			firsts = append(firsts, first)
		}
	}
	return firsts, nil
}

func statSegment(dir string, first uint64) (segment, error) {
	var st unix.Stat_t
	path := segmentPath(dir, first)
	if err := unix.Lstat(path, &st); err != nil {
		return segment{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return segment{}, fmt.Errorf("%s is not a file", path)
	}
	return segment{first: first, path: path, size: st.Size, inode: st.Ino}, nil
}

// lockDir locks the folder's lock as flock says; closing the file unlocks it.
func lockDir(dir string, how int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, how); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// Head is the last record that is known to be on the disk.
type Head struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// sealedHead is Head as its file holds it. Key is the fingerprint of the chain's key.
type sealedHead struct {
	Head
	Key string `json:"key"`
	MAC string `json:"mac"`
}

var (
	errNoHead  = errors.New("the file head is missing")
	errBadHead = errors.New("the file head was changed")
)

// WrongKeyError says that a log belongs to another key.
type WrongKeyError struct{ Log, Key string }

// Error names both keys by their fingerprints.
func (e *WrongKeyError) Error() string {
	return fmt.Sprintf("the audit log was written with the key %s, and this key is %s", e.Log, e.Key)
}

func (k keys) sealHead(h Head) []byte {
	s := sealedHead{Head: h, Key: k.fingerprint()}
	s.MAC = k.headMAC(s)
	raw, _ := json.Marshal(s) // strings and a number
	return append(raw, '\n')
}

func (k keys) headMAC(s sealedHead) string {
	return k.mac(k.head, fmt.Appendf(nil, "%d %s %s", s.Seq, s.Hash, s.Key))
}

// readHead reads the head: errNoHead, errBadHead, or a *WrongKeyError.
func (k keys) readHead(dir string) (Head, error) {
	raw, err := os.ReadFile(filepath.Join(dir, headFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Head{}, errNoHead
	}
	if err != nil {
		return Head{}, err
	}
	var s sealedHead
	if json.Unmarshal(raw, &s) != nil {
		return Head{}, errBadHead
	}
	if s.Key != k.fingerprint() {
		return Head{}, &WrongKeyError{Log: cut(s.Key, 32), Key: k.fingerprint()}
	}
	if !k.same(s.MAC, k.headMAC(s)) {
		return Head{}, errBadHead
	}
	return s.Head, nil
}

// tail is the end of a segment.
type tail struct {
	last   Head      // of the last record that is right; Seq 0 when none is
	whole  int64     // bytes up to the end of the last line
	torn   int64     // bytes after it: a line that was not finished
	broken int       // lines after last that are not right
	begins time.Time // of the first record; zero when that is not right
}

// readTail reads the end of a segment, and its first line.
func (k keys) readTail(s segment) (tail, error) {
	f, err := os.Open(s.path)
	if err != nil {
		return tail{}, err
	}
	defer f.Close()
	from := max(0, s.size-4*maxLine)
	end, err := io.ReadAll(io.NewSectionReader(f, from, s.size-from))
	if err != nil {
		return tail{}, err
	}
	var t tail
	t.torn = int64(len(end) - bytes.LastIndexByte(end, '\n') - 1)
	t.whole = s.size - t.torn
	end = end[:int64(len(end))-t.torn]
	for len(end) > 0 && t.last.Seq == 0 {
		end = end[:len(end)-1]
		begin := bytes.LastIndexByte(end, '\n') + 1
		if r, ok := k.open(end[begin:]); ok {
			t.last = Head{r.Seq, r.Hash}
		} else if begin > 0 || from == 0 {
			t.broken++
		}
		end = end[:begin]
	}
	first, err := k.readFirst(s)
	t.begins = first.Time
	return t, err
}

// readFirst reads the first record of a segment; it is zero when it is not right.
func (k keys) readFirst(s segment) (Record, error) {
	f, err := os.Open(s.path)
	if err != nil {
		return Record{}, err
	}
	defer f.Close()
	line, err := bufio.NewReaderSize(f, maxLine).ReadSlice('\n')
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, bufio.ErrBufferFull) {
			err = nil
		}
		return Record{}, err
	}
	if r, ok := k.open(line[:len(line)-1]); ok {
		return r, nil
	}
	return Record{}, nil
}
