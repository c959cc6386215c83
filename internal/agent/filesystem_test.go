package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem"
)

func (s *sandbox) path(name string) string { return filepath.Join(s.dir, name) }

func (s *sandbox) put(name, content string) string {
	s.t.Helper()
	require.NoError(s.t, os.MkdirAll(filepath.Dir(s.path(name)), 0o755))
	require.NoError(s.t, os.WriteFile(s.path(name), []byte(content), 0o644))
	return s.path(name)
}

func (s *sandbox) stat(path string) (*pb.EntryInfo, error) {
	res, err := s.filesystem().Stat(context.Background(), connect.NewRequest(&pb.StatRequest{Path: path}))
	if err != nil {
		return nil, err
	}
	return res.Msg.GetEntry(), nil
}

func TestStatDescribesAFile(t *testing.T) {
	s := start(t)
	path := s.put("f.txt", "12345")
	require.NoError(t, os.Chmod(path, 0o750))
	e, err := s.stat(filepath.Join(s.dir, "x", "..", "f.txt"))
	require.NoError(t, err)
	require.Equal(t, "f.txt", e.GetName())
	require.Equal(t, path, e.GetPath())
	require.Equal(t, pb.FileType_FILE_TYPE_FILE, e.GetType())
	require.EqualValues(t, 5, e.GetSize())
	require.EqualValues(t, 0o750, e.GetMode())
	require.Equal(t, "-rwxr-x---", e.GetPermissions())
	require.Equal(t, "root", e.GetOwner())
	require.Equal(t, "root", e.GetGroup())
	require.WithinDuration(t, time.Now(), e.GetModifiedTime().AsTime(), time.Minute)
	require.False(t, e.GetIsSymlink())
}

func TestStatTellsTheTargetOfALink(t *testing.T) {
	s := start(t)
	target := s.put("real/f", "")
	require.NoError(t, os.Symlink("real", s.path("dir")))
	require.NoError(t, os.Symlink("nowhere", s.path("broken")))
	e, err := s.stat(s.path("dir"))
	require.NoError(t, err)
	require.True(t, e.GetIsSymlink())
	require.Equal(t, pb.FileType_FILE_TYPE_DIRECTORY, e.GetType())
	require.Equal(t, filepath.Dir(target), e.GetSymlinkTarget())
	require.Equal(t, byte('l'), e.GetPermissions()[0])
	e, err = s.stat(s.path("broken"))
	require.NoError(t, err)
	require.Equal(t, pb.FileType_FILE_TYPE_SYMLINK, e.GetType())
	require.Equal(t, "nowhere", e.GetSymlinkTarget())
}

func TestPathsThatCannotBeAreInvalid(t *testing.T) {
	s := start(t)
	long := make([]byte, 5000)
	for i := range long {
		long[i] = 'a'
	}
	for _, path := range []string{"/a\x00b", "/" + string(long), "/" + string(long[:256]), "~other/x"} {
		_, err := s.stat(path)
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "%.20q", path)
	}
	_, err := s.stat(s.path("missing"))
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
}

func TestMakeDirMakesParentsForTheUser(t *testing.T) {
	s := start(t)
	require.NoError(t, os.Chmod(s.dir, 0o755))
	s.username = "nobody"
	fs := s.filesystem()
	made, err := fs.MakeDir(context.Background(), connect.NewRequest(&pb.MakeDirRequest{Path: s.path("a/b")}))
	require.NoError(t, err)
	require.Equal(t, s.path("a/b"), made.Msg.GetEntry().GetPath())
	for _, path := range []string{"a", "a/b"} {
		e, err := s.stat(s.path(path))
		require.NoError(t, err)
		require.Equal(t, "nobody", e.GetOwner(), path)
	}
	_, err = fs.MakeDir(context.Background(), connect.NewRequest(&pb.MakeDirRequest{Path: s.path("a/b")}))
	require.Equal(t, connect.CodeAlreadyExists, connect.CodeOf(err))
	file := s.put("file", "")
	for _, path := range []string{file, file + "/below"} {
		_, err = fs.MakeDir(context.Background(), connect.NewRequest(&pb.MakeDirRequest{Path: path}))
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), path)
	}
}

func TestMoveMakesParents(t *testing.T) {
	s := start(t)
	source := s.put("f", "content")
	res, err := s.filesystem().Move(context.Background(), connect.NewRequest(&pb.MoveRequest{Source: source, Destination: s.path("new/dir/g")}))
	require.NoError(t, err)
	require.Equal(t, s.path("new/dir/g"), res.Msg.GetEntry().GetPath())
	require.NoFileExists(t, source)
	_, err = s.filesystem().Move(context.Background(), connect.NewRequest(&pb.MoveRequest{Source: source, Destination: s.path("h")}))
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
}

func TestListGoesToTheDepth(t *testing.T) {
	s := start(t)
	s.put("a/b/c", "")
	s.put("f", "")
	require.NoError(t, os.Symlink(s.dir, s.path("../link-"+filepath.Base(s.dir))))
	t.Cleanup(func() { _ = os.Remove(s.path("../link-" + filepath.Base(s.dir))) })
	names := func(path string, depth uint32) []string {
		res, err := s.filesystem().ListDir(context.Background(), connect.NewRequest(&pb.ListDirRequest{Path: path, Depth: depth}))
		require.NoError(t, err)
		var all []string
		for _, e := range res.Msg.GetEntries() {
			rel, err := filepath.Rel(path, e.GetPath())
			require.NoError(t, err)
			all = append(all, rel)
		}
		return all
	}
	require.Equal(t, []string{"a", "f"}, names(s.dir, 0))
	require.Equal(t, []string{"a", "a/b", "f"}, names(s.dir, 2))
	require.Equal(t, []string{"a", "a/b", "a/b/c", "f"}, names(s.dir, 9))
	require.Equal(t, []string{"a", "f"}, names(s.path("../link-"+filepath.Base(s.dir)), 1))
	_, err := s.filesystem().ListDir(context.Background(), connect.NewRequest(&pb.ListDirRequest{Path: s.path("f")}))
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
}

func TestRemoveIsIdempotent(t *testing.T) {
	s := start(t)
	s.put("a/b", "")
	for range 2 {
		_, err := s.filesystem().Remove(context.Background(), connect.NewRequest(&pb.RemoveRequest{Path: s.path("a")}))
		require.NoError(t, err)
		require.NoDirExists(t, s.path("a"))
	}
	_, err := s.filesystem().Remove(context.Background(), connect.NewRequest(&pb.RemoveRequest{Path: "/"}))
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
}

func TestEmptyPathIsNeverRemovedOrMoved(t *testing.T) {
	s := start(t)
	s.init(hostapi.Init{DefaultWorkdir: s.dir})
	f := s.put("f", "")
	_, err := s.filesystem().Remove(context.Background(), connect.NewRequest(&pb.RemoveRequest{}))
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
	_, err = s.filesystem().Move(context.Background(), connect.NewRequest(&pb.MoveRequest{Destination: s.path("g")}))
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
	_, err = s.filesystem().Move(context.Background(), connect.NewRequest(&pb.MoveRequest{Source: f}))
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
	require.FileExists(t, f)
}

// seen is what a watch told.
type seen map[string][]pb.EventType

func (s seen) add(e *pb.FilesystemEvent) { s[e.GetName()] = append(s[e.GetName()], e.GetType()) }

func (s seen) count(name string, kind pb.EventType) int {
	n := 0
	for _, k := range s[name] {
		if k == kind {
			n++
		}
	}
	return n
}

func TestWatchTellsWhatHappens(t *testing.T) {
	s := start(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	st, err := s.filesystem().WatchDir(ctx, connect.NewRequest(&pb.WatchDirRequest{Path: s.dir, IncludeEntry: true}))
	require.NoError(t, err)
	require.True(t, st.Receive(), st.Err())
	require.NotNil(t, st.Msg().GetStart())

	f := s.put("f", "one")
	require.NoError(t, os.Chmod(f, 0o600))
	require.NoError(t, os.Rename(f, s.path("g")))
	require.NoError(t, os.Remove(s.path("g")))

	got := seen{}
	for got.count("g", pb.EventType_EVENT_TYPE_REMOVE) == 0 {
		require.True(t, st.Receive(), st.Err())
		got.add(st.Msg().GetFilesystem())
	}
	require.Equal(t, 1, got.count("f", pb.EventType_EVENT_TYPE_CREATE))
	require.Positive(t, got.count("f", pb.EventType_EVENT_TYPE_WRITE))
	require.Positive(t, got.count("f", pb.EventType_EVENT_TYPE_CHMOD))
	require.Equal(t, 1, got.count("f", pb.EventType_EVENT_TYPE_RENAME))
	require.Equal(t, 1, got.count("g", pb.EventType_EVENT_TYPE_CREATE))
}

// poller watches by polling.
type poller struct {
	s  *sandbox
	id string
}

func (s *sandbox) poll(recursive bool) *poller {
	s.t.Helper()
	res, err := s.filesystem().CreateWatcher(context.Background(), connect.NewRequest(&pb.CreateWatcherRequest{Path: s.dir, Recursive: recursive}))
	require.NoError(s.t, err)
	return &poller{s, res.Msg.GetWatcherId()}
}

// until gathers events until enough is true.
func (p *poller) until(got seen, enough func() bool) {
	p.s.t.Helper()
	require.Eventually(p.s.t, func() bool {
		res, err := p.s.filesystem().GetWatcherEvents(context.Background(), connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: p.id}))
		require.NoError(p.s.t, err)
		for _, e := range res.Msg.GetEvents() {
			got.add(e)
		}
		return enough()
	}, 10*time.Second, 5*time.Millisecond, "got %v", got)
}

func TestRecursiveWatchMissesNothingInNewDirectories(t *testing.T) {
	s := start(t)
	p := s.poll(true)
	const dirs = 50
	for i := range dirs {
		s.put("d"+strconv.Itoa(i)+"/in/f", "content")
	}
	got := seen{}
	p.until(got, func() bool {
		for i := range dirs {
			name := "d" + strconv.Itoa(i) + "/in/f"
			if got.count(name, pb.EventType_EVENT_TYPE_CREATE) == 0 || got.count(name, pb.EventType_EVENT_TYPE_WRITE) == 0 {
				return false
			}
		}
		return true
	})
	for name := range got {
		require.Equal(t, 1, got.count(name, pb.EventType_EVENT_TYPE_CREATE), name)
	}
}

func TestMovedDirectoryIsWatchedUnderItsNewName(t *testing.T) {
	s := start(t)
	s.put("old/f", "")
	p := s.poll(true)
	require.NoError(t, os.Rename(s.path("old"), s.path("new")))
	got := seen{}
	p.until(got, func() bool { return got.count("new", pb.EventType_EVENT_TYPE_CREATE) == 1 })
	s.put("new/g", "")
	p.until(got, func() bool { return got.count("new/g", pb.EventType_EVENT_TYPE_CREATE) == 1 })
	require.Zero(t, len(got["old/g"]))
}

func TestManyWritesAreOneEvent(t *testing.T) {
	s := start(t)
	path := s.put("f", "")
	p := s.poll(false)
	for i := range 100 {
		require.NoError(t, os.WriteFile(path, []byte(strconv.Itoa(i)), 0o644))
	}
	s.put("last", "")
	got := seen{}
	p.until(got, func() bool { return got.count("last", pb.EventType_EVENT_TYPE_CREATE) == 1 })
	require.Less(t, got.count("f", pb.EventType_EVENT_TYPE_WRITE), 20)
	require.Positive(t, got.count("f", pb.EventType_EVENT_TYPE_WRITE))
}

func TestWatchNeedsADirectory(t *testing.T) {
	s := start(t)
	fs := s.filesystem()
	_, err := fs.CreateWatcher(context.Background(), connect.NewRequest(&pb.CreateWatcherRequest{Path: s.put("f", "")}))
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
	_, err = fs.CreateWatcher(context.Background(), connect.NewRequest(&pb.CreateWatcherRequest{Path: s.path("missing")}))
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
	p := s.poll(false)
	_, err = fs.RemoveWatcher(context.Background(), connect.NewRequest(&pb.RemoveWatcherRequest{WatcherId: p.id}))
	require.NoError(t, err)
	_, err = fs.GetWatcherEvents(context.Background(), connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: p.id}))
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
}
