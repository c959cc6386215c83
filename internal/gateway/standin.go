package gateway

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
)

// standInNet are the addresses that stand for names inside. Nothing on the internet
// has one (RFC 2544), and no connection leads to what has one in a network at hand.
var standInNet = netip.MustParsePrefix("198.18.0.0/15")

const (
	// maxStandIns names are known at once; one more, and the first is forgotten.
	maxStandIns = 4096
	// standInCount addresses are used in turn, so that one which is forgotten stands
	// for nothing for a long time before it stands for another name.
	standInCount = 1<<17 - 2

	standInEntry = 4 + 1 + maxHostName // bytes: number, length of the name, name
)

// standIns are the addresses that stand for names in one sandbox. They are kept in
// a file in the folder of its run, for the next process: programs inside remember the
// addresses. Another run begins anew somewhere, so that those of before mean nothing. The file has a place for each name,
// written without a sync; what cannot be read costs programs a lookup. A file is made
// with the first name.
type standIns struct {
	dir string

	mu     sync.Mutex
	file   *os.File // nil before the first name and after close
	closed bool
	next   uint32 // the number of the next one
	places [maxStandIns]*standIn
	byName map[string]*standIn
	byAddr map[netip.Addr]*standIn
}

type standIn struct {
	number uint32
	name   string
}

func (s *standIn) addr() netip.Addr {
	base := binary.BigEndian.Uint32(standInNet.Addr().AsSlice())
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], base+1+s.number%standInCount)
	return netip.AddrFrom4(b)
}

func standInsPath(dir string) string { return filepath.Join(dir, "names") }

// openStandIns takes what the file in dir says, if there is one. The error is that of
// a file that cannot be read; the table works without.
func openStandIns(dir string) (*standIns, error) {
	// Addresses that programs remember from another table, of a sandbox that was copied or
	// resumed, should stand for nothing in this one.
	first := rand.Uint32N(standInCount)
	s := &standIns{dir: dir, next: first, byName: map[string]*standIn{}, byAddr: map[netip.Addr]*standIn{}}
	file, err := os.OpenFile(standInsPath(dir), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	s.file = file
	content, err := io.ReadAll(io.LimitReader(file, maxStandIns*standInEntry))
	s.load(content)
	return s, err
}

// load takes all entries that are right: in their place, with a name that is one.
func (s *standIns) load(content []byte) {
	next := uint32(0)
	for place := 0; len(content) > 0; place++ {
		var entry [standInEntry]byte
		content = content[copy(entry[:], content):]
		length := int(entry[4])
		if length == 0 || length > maxHostName {
			continue
		}
		known := &standIn{number: binary.BigEndian.Uint32(entry[:]), name: string(entry[5 : 5+length])}
		if name, err := HostName(known.name); err != nil || name != known.name || known.number%maxStandIns != uint32(place) {
			continue
		}
		if s.byName[known.name] != nil || s.byAddr[known.addr()] != nil {
			continue
		}
		s.put(known)
		next = max(next, known.number+1)
	}
	if next > 0 {
		s.next = next
	}
}

func (s *standIns) put(known *standIn) {
	s.places[known.number%maxStandIns] = known
	s.byName[known.name], s.byAddr[known.addr()] = known, known
}

func (s *standIns) forget(old *standIn) {
	if old == nil {
		return
	}
	s.places[old.number%maxStandIns] = nil
	delete(s.byName, old.name)
	delete(s.byAddr, old.addr())
}

// address returns the one that stands for name, the same while name is known.
func (s *standIns) address(name string) netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.byName[name]; known != nil {
		return known.addr()
	}
	fresh := &standIn{number: s.next, name: name}
	s.next++
	s.forget(s.places[fresh.number%maxStandIns])
	s.forget(s.byAddr[fresh.addr()])
	s.put(fresh)
	s.write(fresh)
	return fresh.addr()
}

// name returns what an address stands for, or empty.
func (s *standIns) name(addr netip.Addr) string {
	if !standInNet.Contains(addr) {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.byAddr[addr]; known != nil {
		return known.name
	}
	return ""
}

// write ignores failures: with a full disk a name is forgotten with the process.
func (s *standIns) write(known *standIn) {
	if s.closed {
		return
	}
	if s.file == nil {
		file, err := os.OpenFile(standInsPath(s.dir), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return
		}
		s.file = file
	}
	var entry [standInEntry]byte
	binary.BigEndian.PutUint32(entry[:], known.number)
	entry[4] = byte(len(known.name))
	copy(entry[5:], known.name)
	_, _ = s.file.WriteAt(entry[:], int64(known.number%maxStandIns)*standInEntry)
}

// close leaves the file as it is, for who adopts the network; it goes with the folder.
func (s *standIns) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return err
}
