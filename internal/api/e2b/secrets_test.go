package e2b_test

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// addSecrets adds two secrets of alice and one of bob.
func addSecrets(s store.Store) error {
	for _, added := range []store.Secret{
		{ID: "sec_openai", KeyID: "key-of-alice", Name: "openai", Version: 3, Metadata: map[string]string{"team": "ä&<"}, Bindings: json.RawMessage(`[{"host":["api.openai.com"]}]`)},
		{ID: "sec_github", KeyID: "key-of-alice", Name: "github", Version: 1},
		{ID: "sec_theirs", KeyID: "key-of-bob", Name: "openai", Version: 1},
	} {
		added.CreatedAt, added.UpdatedAt, added.Placeholder = start, start, "tombolo_"+added.ID
		added.Values = []store.SecretValue{{Version: added.Version, Ciphertext: []byte("none"), CreatedAt: start}}
		if err := s.AddSecret(context.Background(), added, 0); err != nil {
			return err
		}
	}
	return nil
}

// newVault is what a server has whose secrets were made with some key.
func newVault(t testing.TB, s store.Store) *secret.Vault {
	dir := t.TempDir()
	key, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Dir(secret.KeyFile(dir)), 0o700))
	require.NoError(t, os.WriteFile(secret.KeyFile(dir), []byte(key.String()), 0o600))
	v, err := secret.Open(t.Context(), dir, s, nil)
	require.NoError(t, err)
	return v
}

func TestSecretIsMadeAndChanged(t *testing.T) {
	w := newWorld(t)
	const value = "the value of it"
	type wire struct {
		SecretID, Name string
		CurrentVersion int
		Metadata       map[string]string
		Value          *string
	}
	var made, got wire
	w.call(t, "POST", "/secrets", `{"name":"New.One","value":"`+value+`"}`, 201, &made)
	require.Regexp(t, "^sec_[a-z0-9]{26}$", made.SecretID)
	require.Equal(t, wire{made.SecretID, "new.one", 1, map[string]string{}, nil}, made)
	w.call(t, "POST", "/secrets/NEW.one", `{"value":"`+value+`2","metadata":{"a":"b"}}`, 200, &got)
	require.Equal(t, wire{made.SecretID, "new.one", 2, map[string]string{"a": "b"}, nil}, got)
	w.call(t, "POST", "/secrets/"+made.SecretID, `{"metadata":{"tombolo.hosts":"api.example.com"}}`, 200, &got)
	require.Equal(t, 2, got.CurrentVersion, "metadata alone are no version")
	got = wire{}
	w.call(t, "POST", "/secrets/"+made.SecretID, `{"value":"`+value+`3"}`, 200, &got)
	require.Equal(t, wire{made.SecretID, "new.one", 3, map[string]string{"tombolo.hosts": "api.example.com"}, nil}, got)
	session := w.vault.Session("key-of-alice", []string{"new.one"})
	require.Equal(t, []string{"api.example.com"}, session.Hosts())
	w.call(t, "DELETE", "/secrets/new.one", "", 204, nil)
	require.Empty(t, session.Hosts())
}

func TestSecretsOfAKeyAreLimited(t *testing.T) {
	w := newWorld(t)
	for n := range secret.MaxSecrets - 2 {
		require.NoError(t, w.store.AddSecret(t.Context(), store.Secret{ID: "sec_" + buildID(n), KeyID: "key-of-alice", Name: buildID(n), Placeholder: buildID(n)}, 0))
	}
	r := httptest.NewRequest("POST", "/secrets", strings.NewReader(`{"name":"more","value":"12345678"}`))
	r.Header.Set("X-API-KEY", w.secrets["alice"])
	answer := httptest.NewRecorder()
	w.ServeHTTP(answer, r)
	require.Equal(t, 429, answer.Code)
	require.Equal(t, "false", answer.Header().Get("Should-Retry"), "waiting changes nothing")
	require.Contains(t, answer.Body.String(), "delete one first")
}
