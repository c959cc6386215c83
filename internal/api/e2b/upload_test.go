package e2b_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
