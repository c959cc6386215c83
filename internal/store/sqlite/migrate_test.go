package sqlite_test

import (
	"database/sql"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/uuid"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// TestTemplatesOfOneAliasBecomeOne opens a database of the time when each build
// was a template by itself.
func TestTemplatesOfOneAliasBecomeOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tombolo.db")
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	old := fstest.MapFS{}
	for _, name := range []string{"00001_records.sql", "00002_quotas_events.sql"} {
		text, err := os.ReadFile(filepath.Join("migrations", name))
		require.NoError(t, err)
		old[name] = &fstest.MapFile{Data: text}
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, old)
	require.NoError(t, err)
	_, err = provider.Up(t.Context())
	require.NoError(t, err)

	start := time.Date(2026, 3, 4, 5, 6, 7, 890_000_000, time.UTC)
	builds := map[string]string{} // by their old ids
	for i, row := range []struct{ id, name, keyID string }{
		{"base", "base", ""},
		{"theirs", "base:v1", "k"}, // the machine's has the alias
		{"v1", "app:v1", "k"},
		{"app", "app", "k"},
		{"v2", "app:v2.1", "k"},
		{"first", "snap:a", "k"},
		{"second", "snap:b", "other"},
		{"third", "snap:c", "k"},
		{"nameless", "", "k"},
		{"alsonameless", "", ""},
	} {
		builds[row.id] = uuid.NewString()
		record, err := json.Marshal(store.Template{
			ID: row.id, Name: row.name, KeyID: row.keyID, CreatedAt: start.Add(time.Duration(i) * time.Minute),
			BuildID: builds[row.id], BuiltAt: start.Add(time.Duration(i) * time.Hour), Image: "image of " + row.id, CPUs: 2,
		})
		require.NoError(t, err)
		_, err = db.Exec("INSERT INTO templates (id, name, record) VALUES (?, ?, ?)", row.id, row.name, record)
		require.NoError(t, err)
	}
	require.NoError(t, db.Close())

	s := open(t, path)
	all, err := s.Templates(t.Context())
	require.NoError(t, err)
	require.Len(t, all, len(builds), "no build is lost")
	for ref, want := range map[string]struct{ build, templateID, keyID string }{
		"base":                 {"base", "base", ""},
		"theirs":               {"theirs", "theirs", "k"},
		"app":                  {"app", "app", "k"},
		"app:v1":               {"v1", "app", "k"},
		"app:v2.1":             {"v2", "app", "k"},
		"snap:a":               {"first", "first", "k"},
		"snap:c":               {"third", "first", "k"},
		"second":               {"second", "second", "other"},
		"nameless":             {"nameless", "nameless", "k"},
		"alsonameless":         {"alsonameless", "alsonameless", ""},
		builds["alsonameless"]: {"alsonameless", "alsonameless", ""},
	} {
		got, err := s.Template(t.Context(), ref)
		require.NoError(t, err, ref)
		require.Equal(t, builds[want.build], got.BuildID, ref)
		require.Equal(t, "image of "+want.build, got.Image, ref)
		require.Equal(t, want.templateID, got.ID, ref)
		require.Equal(t, want.keyID, got.KeyID, ref)
		require.False(t, got.Public, ref)
	}
	app, err := s.Template(t.Context(), "app")
	require.NoError(t, err)
	require.Equal(t, start.Add(2*time.Minute), app.CreatedAt, "since the first of its builds")
	require.Equal(t, start.Add(3*time.Hour), app.BuiltAt)

	require.NoError(t, s.Close())
	db, err = sql.Open("sqlite", path)
	require.NoError(t, err)
	provider, err = goose.NewProvider(goose.DialectSQLite3, db, os.DirFS("migrations"))
	require.NoError(t, err)
	_, err = provider.DownTo(t.Context(), 2)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	s = open(t, path)
	all, err = s.Templates(t.Context())
	require.NoError(t, err)
	require.Len(t, all, len(builds), "nor on the way back")
	again, err := s.Template(t.Context(), "app:v2.1")
	require.NoError(t, err)
	require.Equal(t, builds["v2"], again.BuildID)
	require.Equal(t, "k", again.KeyID)
}
