package sandbox

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// TestWhatAKeyHasOnTheDisk: each file of these takes 100 KiB.
func TestWhatAKeyHasOnTheDisk(t *testing.T) {
	const kib = 1 << 10
	data := t.TempDir()
	for _, name := range []string{
		"images/template-a.erofs", "images/template-b.upper", "images/oci-c.erofs", "images/base-d.erofs",
		"snapshots/s/memory", "snapshots/t/memory", "builds/uploads/up/archive",
	} {
		path := filepath.Join(data, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, make([]byte, 100*kib), 0o600))
	}
	// Folders take a block, too.
	folder := DiskBytes(filepath.Join(data, "snapshots")) - 200*kib
	require.Less(t, folder, int64(100*kib))

	built := store.Template{KeyID: "k", Name: "web", BuildID: "1", Tags: []string{"default"}, Image: "template-a.erofs", Snapshot: "s"}
	small := store.Template{KeyID: "k", Name: "small", BuildID: "2", Tags: []string{"default"}, Image: "base-d.erofs", Upper: "template-b.upper", Snapshot: "s"}
	other := built
	other.KeyID = "another"
	twice := built
	twice.BuildID, twice.Tags = "3", []string{"default", "v1"}
	imported := store.Template{KeyID: "k", BuildID: "4", Image: "oci-c.erofs"}
	again := store.Template{KeyID: "k", Name: "web", BuildID: "5", Tags: []string{"default"}, Image: "base-d.erofs", Snapshot: "t"}
	for _, tt := range []struct {
		name  string
		there []store.Template
		next  store.Template
		kib   int64
		why   string
	}{
		{"nothing", nil, store.Template{KeyID: "k"}, 0, ""},
		{"uploads", nil, store.Template{KeyID: "up"}, 100, "they are the key's"},
		{"built", []store.Template{built}, store.Template{KeyID: "k"}, 200, "its image and its snapshot are the key's"},
		{"of another", []store.Template{other}, store.Template{KeyID: "k"}, 0, "each key has its own sum"},
		{"recipe", []store.Template{small}, store.Template{KeyID: "k"}, 200, "the image is everybody's, what was written over it is not"},
		{"shared", []store.Template{built, small}, store.Template{KeyID: "k"}, 300, "one snapshot of both counts once"},
		{"imported", []store.Template{imported}, store.Template{KeyID: "k"}, 100, "a template keeps it on the disk"},
		{"next", []store.Template{imported}, built, 300, "what is to come counts"},
		{"replaced", []store.Template{built, imported}, again, 200, "a build that loses its tags goes"},
		{"still named", []store.Template{twice}, again, 300, "a build that keeps a tag stays"},
		{"replaced of another", []store.Template{other, built}, store.Template{KeyID: "another"}, 200, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			left := KeptRoom(data, Quota{DiskBytes: 1000 * kib}, tt.there, tt.next)
			require.InDelta(t, 1000-tt.kib, left/kib, float64(3*folder/kib+1), tt.why)
			require.Equal(t, int64(math.MaxInt64), KeptRoom(data, Quota{}, tt.there, tt.next))
		})
	}
}
