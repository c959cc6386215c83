package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
	"github.com/tombolo-dev/tombolo/internal/store/storetest"
)

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		return open(t, filepath.Join(t.TempDir(), "tombolo.db"))
	})
}

func TestRecordsOutliveTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a ?%#", "tombolo.db")
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	s, err := sqlite.Open(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, s.PutSandbox(t.Context(), store.Sandbox{ID: "a"}))
	require.NoError(t, s.Close())

	_, err = open(t, path).Sandbox(t.Context(), "a")
	require.NoError(t, err)
}

func TestFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tombolo.db")
	s := open(t, path)
	require.NoError(t, s.PutSandbox(t.Context(), store.Sandbox{ID: "a"}))
	files, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 3)
	for _, file := range files {
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), file)
	}
}

func TestMissingFolderIsNamed(t *testing.T) {
	_, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "missing", "tombolo.db"))
	require.ErrorContains(t, err, "data folder")
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tombolo.db")
	require.NoError(t, open(t, path).Close())
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	_, err = db.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)`)
	require.NoError(t, err)
	require.NoError(t, db.Close())

	_, err = sqlite.Open(t.Context(), path)
	require.ErrorContains(t, err, "newer tombolo")
}

const writerEnv = "TOMBOLO_TEST_WRITER"

// TestSeveralProcessesShareOneFile starts processes that all make the schema and
// write at once.
func TestSeveralProcessesShareOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tombolo.db")
	const processes, each = 3, 30
	var running []*exec.Cmd
	for p := range processes {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWriterProcess$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s:%d:%d", writerEnv, path, p, each))
		cmd.Stderr, cmd.Stdout = os.Stderr, os.Stderr
		require.NoError(t, cmd.Start())
		running = append(running, cmd)
	}
	for _, cmd := range running {
		require.NoError(t, cmd.Wait())
	}
	all, err := open(t, path).Sandboxes(t.Context(), false)
	require.NoError(t, err)
	require.Len(t, all, processes*each)
}

// TestWriterProcess is a process of TestSeveralProcessesShareOneFile.
func TestWriterProcess(t *testing.T) {
	spec := os.Getenv(writerEnv)
	if spec == "" {
		t.Skip("runs as a child only")
	}
	dir, file := filepath.Split(spec)
	var p, each int
	_, err := fmt.Sscanf(file, "tombolo.db:%d:%d", &p, &each)
	require.NoError(t, err)
	s := open(t, filepath.Join(dir, "tombolo.db"))
	for i := range each {
		sb := store.Sandbox{ID: fmt.Sprintf("p%d-%d", p, i), CreatedAt: time.Now()}
		require.NoError(t, s.PutSandbox(t.Context(), sb))
	}
}

func BenchmarkKeyByHash(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "tombolo.db"))
	k, _, err := store.NewKey("a", time.Now())
	require.NoError(b, err)
	require.NoError(b, s.AddKey(b.Context(), k))
	for b.Loop() {
		if _, err := s.KeyByHash(b.Context(), k.Hash); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTemplate finds a template as each create does.
func BenchmarkTemplate(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "tombolo.db"))
	for i := range 300 {
		_, _, err := s.PutTemplate(b.Context(), store.Template{ID: fmt.Sprint("id", i), Name: fmt.Sprint("app", i), BuildID: fmt.Sprint("build", i)})
		require.NoError(b, err)
	}
	for b.Loop() {
		if _, err := s.Template(b.Context(), "app250"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPutSandbox(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "tombolo.db"))
	for b.Loop() {
		if err := s.PutSandbox(b.Context(), store.Sandbox{ID: "a", Metadata: map[string]string{"a": "b"}}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDueDeliveries looks for what is due in a long queue of which little is,
// as it is when a receiver has failed for hours.
func BenchmarkDueDeliveries(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "tombolo.db"))
	ctx := b.Context()
	require.NoError(b, s.AddWebhook(ctx, store.Webhook{ID: "w", KeyID: "a", Kinds: []string{"created"}, Enabled: true}, 1))
	now := time.Now()
	for i := range 10_000 {
		at := now.Add(time.Hour)
		if i%1000 == 0 {
			at = now
		}
		_, err := s.AddEvent(ctx, store.Event{ID: fmt.Sprint(i), Kind: "created", KeyID: "a", SandboxID: fmt.Sprint(i), At: at})
		require.NoError(b, err)
	}
	for b.Loop() {
		due, _, err := s.DueDeliveries(ctx, now, 4, 3)
		if err != nil || len(due) != 4 {
			b.Fatal(len(due), err)
		}
	}
}

func open(t testing.TB, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), path)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}
