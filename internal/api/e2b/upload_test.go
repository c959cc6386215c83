package e2b_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

func TestAnUploadLinkEndsWithItsKey(t *testing.T) {
	w := newWorld(t)
	var link struct{ URL string }
	answer := w.do("alice", "GET", "/templates/"+alicesID+"/files/"+strings.Repeat("ab", 32), "")
	require.Equal(t, 201, answer.Code, answer.Body.String())
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &link))
	require.Equal(t, 200, w.do("", "PUT", link.URL, "archive").Code)
	require.NoError(t, w.store.DeleteKey(t.Context(), "alice"))
	refused := w.do("", "PUT", link.URL, "archive")
	require.Equal(t, 403, refused.Code)
	require.Contains(t, refused.Body.String(), "was deleted")
}

func TestUploadsThatHaveNoRoomAreNoFaultOfTheServer(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.data, "builds", "uploads", "key-of-alice")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	for i := range 10_000 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	var link struct{ URL string }
	require.NoError(t, json.Unmarshal(w.do("alice", "GET", "/templates/"+alicesID+"/files/"+strings.Repeat("ab", 32), "").Body.Bytes(), &link))
	require.Equal(t, 507, w.do("", "PUT", link.URL, "archive").Code)
	heredoc := w.do("alice", "POST", "/templates", `{"alias":"mine","dockerfile":"FROM debian\nCOPY <<E /f\ntext\nE\n"}`)
	require.Equal(t, 507, heredoc.Code, heredoc.Body.String())
	require.Contains(t, heredoc.Body.String(), "uploads")
}

func TestTheDiskOfATemplateFitsItsKey(t *testing.T) {
	w := newWorld(t)
	_, err := w.store.UpdateKey(t.Context(), "alice", func(k *store.Key) error { k.MaxDisk = 5 << 30; return nil })
	require.NoError(t, err)
	for body, code := range map[string]int{
		`{"name":"default"}`:                       202,
		`{"name":"least","minFreeDiskMb":1000}`:    202,
		`{"name":"too-much","minFreeDiskMb":6000}`: 429,
	} {
		answer := w.do("alice", "POST", "/v3/templates", body)
		require.Equal(t, code, answer.Code, body)
		if code != 202 {
			continue
		}
		var made struct{ BuildID string }
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &made))
		record, err := w.store.Build(t.Context(), made.BuildID)
		require.NoError(t, err)
		require.EqualValues(t, 5<<30, record.DiskBytes, body)
	}
}
