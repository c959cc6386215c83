package e2b_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// inMemory has the test's folders in memory, where many files are made fast.
func inMemory(t *testing.T) {
	if _, err := os.Stat("/dev/shm"); err == nil {
		t.Setenv("TMPDIR", "/dev/shm")
	}
}

// deep makes folders in one another, each with a file, deeper than any path can name.
func deep(t *testing.T, dir, name string, levels int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	for range levels {
		require.NoError(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(at))
		at = next
		file, err := unix.Openat(at, "file", unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		require.NoError(t, err)
		require.NoError(t, unix.Close(file))
	}
	require.NoError(t, unix.Close(at))
}

// TestRemoveFolders removes what a sandbox may have made with few descriptors, whatever
// its depth, and nothing that links lead to.
func TestRemoveFolders(t *testing.T) {
	inMemory(t)
	w, f := newFolder(t)
	for name, make := range map[string]func(dir string){
		"deep": func(dir string) { deep(t, dir, "d", 3000) },
		"deep at several places": func(dir string) {
			for _, name := range []string{"a", "b", strings.Repeat("n", 255)} {
				deep(t, dir, name, 200)
			}
		},
		"wide far below": func(dir string) {
			for i := range 40 {
				dir = filepath.Join(dir, fmt.Sprint(i))
			}
			require.NoError(t, os.MkdirAll(dir, 0o755))
			for i := range 3000 {
				require.NoError(t, os.MkdirAll(filepath.Join(dir, fmt.Sprint(i), "x"), 0o755))
			}
		},
		"links": func(dir string) {
			for link, target := range map[string]string{"out": "..", "secret": "../../secret", "root": "/", "kept": "../kept"} {
				require.NoError(t, os.Symlink(target, filepath.Join(dir, link)))
			}
		},
		"a pipe, and a folder that nobody may enter": func(dir string) {
			require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "closed", "x"), 0o755))
			require.NoError(t, os.Chmod(filepath.Join(dir, "closed"), 0))
		},
		"empty": func(string) {},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(f.dir, "gone")
			require.NoError(t, os.Mkdir(dir, 0o755))
			require.NoError(t, os.MkdirAll(filepath.Join(f.dir, "kept", "x"), 0o755))
			make(dir)
			fewDescriptors(t, 128)
			answer := w.content("DELETE", "path?path=/gone", "")
			require.Equal(t, 204, answer.Code, answer.Body)
			left, err := filepath.Glob(filepath.Join(f.dir, "*"))
			require.NoError(t, err)
			require.Equal(t, []string{filepath.Join(f.dir, "kept")}, left)
			require.DirExists(t, filepath.Join(f.dir, "kept", "x"))
			require.FileExists(t, filepath.Join(f.dir, "..", "secret"))
		})
	}
}

// fewDescriptors lets the process open more files up to a number only.
func fewDescriptors(t *testing.T, most uint64) {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(open)) + most, Max: before.Max}))
	t.Cleanup(func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) })
}

func paths(t *testing.T, answer *httptest.ResponseRecorder) []string {
	t.Helper()
	require.Equal(t, 200, answer.Code, answer.Body)
	var entries []struct{ Path string }
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &entries))
	var all []string
	for _, e := range entries {
		all = append(all, e.Path)
	}
	return all
}

// TestHugeFolders: lists have bounds, and all of a list below counts for them.
func TestHugeFolders(t *testing.T) {
	inMemory(t)
	w, f := newFolder(t)
	fill := func(dir string, files int) {
		require.NoError(t, os.MkdirAll(dir, 0o755))
		for i := range files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o644))
		}
	}
	require.Equal(t, "[]", w.content("GET", "dir?path=/", "").Body.String())
	fill(filepath.Join(f.dir, "d", "e"), 49_998)
	require.Len(t, paths(t, w.content("GET", "dir?path=/&depth=3", "")), 50_000)
	fill(filepath.Join(f.dir, "f"), 1)
	answer := w.content("GET", "dir?path=/&depth=3", "")
	require.Equal(t, 400, answer.Code, answer.Body)
	require.Contains(t, answer.Body.String(), "more than 50000 entries")
	require.Len(t, paths(t, w.content("GET", "dir?path=/", "")), 2)

	long := slices.Repeat([]string{strings.Repeat("n", 250)}, 15)
	fill(filepath.Join(append([]string{f.dir}, long...)...), 2500)
	answer = w.content("GET", "dir?path=/"+strings.Join(long, "/"), "")
	require.Equal(t, 400, answer.Code)
	require.Contains(t, answer.Body.String(), "more than 8 MiB together")
}

// TestUploadsHaveNoNameBeforeTheyAreWhole: a crash leaves nothing of one.
func TestUploadsHaveNoNameBeforeTheyAreWhole(t *testing.T) {
	w, f := newFolder(t)
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "file"), []byte("old"), 0o600))
	body, arrives := io.Pipe()
	answered := make(chan *httptest.ResponseRecorder)
	go func() {
		r := httptest.NewRequest("PUT", "/volumecontent/vol/file?path=/file&force=true&mode=420&uid=7", body)
		r.Header.Set("Authorization", "Bearer token")
		answer := httptest.NewRecorder()
		w.ServeHTTP(answer, r)
		answered <- answer
	}()
	_, err := io.WriteString(arrives, "new")
	require.NoError(t, err)
	before, err := os.ReadDir(f.dir)
	require.NoError(t, err)
	require.Len(t, before, 1)
	text, err := os.ReadFile(filepath.Join(f.dir, "file"))
	require.NoError(t, err)
	require.Equal(t, "old", string(text))
	require.NoError(t, arrives.Close())
	answer := <-answered
	require.Equal(t, 201, answer.Code, answer.Body)
	after, err := os.ReadDir(f.dir)
	require.NoError(t, err)
	require.Len(t, after, 1)
	text, err = os.ReadFile(filepath.Join(f.dir, "file"))
	require.NoError(t, err)
	require.Equal(t, "new", string(text))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(f.dir, "file"), &st))
	require.Equal(t, []uint32{unix.S_IFREG | 0o644, 7, 1000}, []uint32{st.Mode, st.Uid, st.Gid})
}
