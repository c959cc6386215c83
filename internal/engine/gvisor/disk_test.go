package gvisor

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	fspb "gvisor.dev/gvisor/pkg/sentry/fscheckpoint/fscheckpoint_proto_go_proto"
	pgallocpb "gvisor.dev/gvisor/pkg/sentry/pgalloc/pgalloc_metadata_go_proto"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
)

const page = 4096

// saved is a disk as gVisor saves it, in the making.
type saved struct {
	t     testing.TB
	names bytes.Buffer
	tar   *tar.Writer
	pages bytes.Buffer
	list  pgallocpb.MemoryFileMetadataProto
}

func newSaved(t testing.TB) *saved {
	s := &saved{t: t, list: pgallocpb.MemoryFileMetadataProto{
		Version: 1, Chunks: []*pgallocpb.ChunkInfoProto{{Huge: true}}, Subreleased: map[uint64]uint64{1: 2},
	}}
	s.tar = tar.NewWriter(&s.names)
	return s
}

// page puts a page into the memory, at an address behind those before, and returns that.
func (s *saved) page(fill byte) uint64 {
	at := uint64(0)
	if n := len(s.list.MemAcct); n > 0 {
		at = s.list.MemAcct[n-1].End
	}
	s.list.MemAcct = append(s.list.MemAcct, &pgallocpb.MemAcctRangeProto{Start: at, End: at + page, Kind: 3, KnownCommitted: true})
	s.pages.Write(bytes.Repeat([]byte{fill}, page))
	return at
}

// file adds a file of a size, with pieces of start, end and place.
func (s *saved) file(name string, size uint64, pieces ...uint64) {
	var text []byte
	for _, n := range append([]uint64{size}, pieces...) {
		text = binary.LittleEndian.AppendUint64(text, n)
	}
	require.NoError(s.t, s.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}))
	_, err := s.tar.Write(text)
	require.NoError(s.t, err)
}

func (s *saved) write() string {
	require.NoError(s.t, s.tar.Close())
	dir := s.t.TempDir()
	put := func(name string, text []byte) {
		require.NoError(s.t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	list, err := proto.Marshal(&s.list)
	require.NoError(s.t, err)
	list = append(binary.LittleEndian.AppendUint64(nil, uint64(len(list))), list...)
	manifest, err := proto.Marshal(&fspb.Manifest{
		Endian:      "little",
		Tmpfs:       []*fspb.Tmpfs{{TarEnd: uint64(s.names.Len())}},
		MemoryFiles: []*fspb.MemoryFile{{PagesMetadataEnd: uint64(len(list))}},
	})
	require.NoError(s.t, err)
	put(checkpointfiles.FSCheckpointManifestFileName, manifest)
	put(checkpointfiles.FSCheckpointMultiTarFileName, s.names.Bytes())
	put(checkpointfiles.PagesMetadataFileName, list)
	put(checkpointfiles.PagesFileName, s.pages.Bytes())
	return dir
}

// TestDisksBecomeArchives: also those with files that are holes for the most part.
func TestDisksBecomeArchives(t *testing.T) {
	const large = 5 << 40
	s := newSaved(t)
	a, b := s.page('a'), s.page('b')
	s.list.MemAcct = append(s.list.MemAcct, &pgallocpb.MemAcctRangeProto{Start: b + page, End: b + 2*page})
	c := s.page('c')
	require.NoError(t, s.tar.WriteHeader(&tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}))
	s.file("./small", 5, 0, page, a)
	s.file("./both", 2*page, 0, 2*page, a)
	s.file("./empty", 0)
	s.file("./not in use", 2*page, 0, page, b+page, page, 2*page, c)
	s.file("./large", large, 0, page, b, large-page, large, c)
	require.NoError(t, s.tar.WriteHeader(&tar.Header{Name: "./link", Typeflag: tar.TypeSymlink, Linkname: "small"}))
	to := filepath.Join(t.TempDir(), "to")
	require.NoError(t, archiveDisk(t.Context(), s.write(), to))

	f, err := os.Open(to)
	require.NoError(t, err)
	defer f.Close()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(f.Fd()), &st))
	require.Greater(t, st.Size, int64(large))
	require.Less(t, st.Blocks*512, int64(1<<20), "holes take no room")
	read := tar.NewReader(f)
	var found []string
	for {
		h, err := read.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		line := h.Name + h.Linkname + " "
		if h.Name == "./large" {
			at, err := f.Seek(0, io.SeekCurrent)
			require.NoError(t, err)
			for _, place := range []int64{0, page, large - page} {
				var one [1]byte
				_, err = f.ReadAt(one[:], at+place)
				require.NoError(t, err)
				line += string(one[:])
			}
		} else {
			text, err := io.ReadAll(read)
			require.NoError(t, err)
			for letter, was := 0, byte('?'); letter < len(text); letter++ {
				if text[letter] != was {
					was = text[letter]
					line += string(was)
				}
			}
		}
		found = append(found, strings.ReplaceAll(line, "\x00", "0"))
	}
	require.Equal(t, []string{"./ ", "./small a", "./both ab", "./empty ", "./not in use 0c", "./large b0c", "./linksmall "}, found)
}

func TestDisksThatAreNone(t *testing.T) {
	for says, make := range map[string]func(*saved){
		"all files together may have": func(s *saved) { s.file("a", 9<<40); s.file("b", 9<<40) },
		"holes included":              func(s *saved) { s.file("a", 1<<63) },
		"pieces are not in order":     func(s *saved) { s.file("a", 3*page, page, 2*page, 0, 0, page, 0) },
		"list of pieces":              func(s *saved) { s.file("a", 3*page, 1) },
		"it is not in order": func(s *saved) {
			s.list.MemAcct = []*pgallocpb.MemAcctRangeProto{{Start: page, End: 2 * page}, {Start: 0, End: page}}
		},
		"is of version 2":  func(s *saved) { s.list.Version = 2 },
		"read its content": func(s *saved) { at := s.page('a'); s.file("a", page, 0, page, at); s.pages.Reset() },
	} {
		s := newSaved(t)
		make(s)
		require.ErrorContains(t, archiveDisk(context.Background(), s.write(), filepath.Join(t.TempDir(), "to")), says)
	}
}
