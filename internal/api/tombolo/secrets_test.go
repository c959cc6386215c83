package tombolo_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/secret"
)

func TestSecretsAreOfTheirKeyAndNeverReadBack(t *testing.T) {
	w := newWorld(t)
	const value = "the-very-value-0123456789"
	made := w.do("alice", "POST", "/secrets", `{"name":"API","value":"`+value+`","bindings":[{"host":["api.example"]}]}`)
	require.Equal(t, 200, made.code, made.body)
	var s secret.Secret
	made.into(t, &s)
	require.Equal(t, "key-alice", s.KeyID)
	require.Equal(t, "api", s.Name)
	changed := w.do("alice", "PUT", "/secrets/api", `{"value":"`+value+`2"}`)
	require.Equal(t, 200, changed.code, changed.body)
	for _, got := range []answer{made, changed, w.do("alice", "GET", "/secrets", ""), w.do("alice", "GET", "/secrets/"+s.ID, ""), w.do("owner", "GET", "/secrets", "")} {
		require.Equal(t, 200, got.code, got.body)
		require.Contains(t, got.body, s.ID)
		require.NotContains(t, got.body, value)
	}

	for _, method := range []string{"GET", "PUT", "DELETE"} {
		for _, path := range []string{"/secrets/api", "/secrets/" + s.ID} {
			require.Equal(t, 404, w.do("bob", method, path, `{"metadata":{}}`).code, "%s %s", method, path)
			require.Equal(t, 404, w.do("bob", method, path+"?key=key-alice", `{"metadata":{}}`).code, "%s %s", method, path)
		}
	}
	require.Equal(t, "[]\n", w.do("bob", "GET", "/secrets", "").body)
	require.Equal(t, 404, w.do("bob", "POST", "/secrets?key=key-alice", `{"name":"b","value":"`+value+`"}`).code)
	require.Equal(t, 409, w.do("alice", "POST", "/secrets", `{"name":"api","value":"`+value+`"}`).code)
	for _, body := range []string{"", `{}`, `{"name":"b"}`, `{"name":"b","value":7}`, `{"name":"b","value":"` + value + `","host":"*"}`, `{"name":"b","value":"` + value + `","bindings":[{"hosts":["a"]}]}`} {
		got := w.do("alice", "POST", "/secrets", body)
		require.Equal(t, 400, got.code, "%s: %s", body, got.body)
		require.NotContains(t, got.body, value)
	}
	require.Equal(t, 400, w.do("alice", "PUT", "/secrets/api", `{"name":"other"}`).code)

	owner := w.client("owner")
	_, err := owner.CreateSecret(t.Context(), "", tombolo.SecretRequest{Name: "x", Value: ptr(value)})
	require.True(t, tombolo.HasCode(err, tombolo.CodeInvalid), "whose? %v", err)
	_, err = owner.CreateSecret(t.Context(), "key-nobody", tombolo.SecretRequest{Name: "x", Value: ptr(value)})
	require.True(t, tombolo.HasCode(err, tombolo.CodeNotFound), "%v", err)
	_, err = owner.CreateSecret(t.Context(), "key-bob", tombolo.SecretRequest{Name: "x", Value: ptr(value), Bindings: &[]secret.Binding{{Host: []string{"api.example"}}}})
	require.NoError(t, err)
	require.Contains(t, w.do("bob", "GET", "/secrets", "").body, `"x"`)
	require.NoError(t, w.client("alice").DeleteSecret(t.Context(), "", "api"))
	require.Equal(t, 404, w.do("alice", "GET", "/secrets/api", "").code)

	for _, r := range w.recorded() {
		require.NotContains(t, encode(t, r), value)
	}
}

func ptr[T any](v T) *T { return &v }
