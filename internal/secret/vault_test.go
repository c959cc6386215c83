package secret_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

const topSecret = "s3cr3t/value+&=ü\"x"

// vaultIn opens a vault of a data folder, as another process does.
func vaultIn(t testing.TB, dir string) (*secret.Vault, *sqlite.Store) {
	t.Helper()
	records, err := sqlite.Open(t.Context(), filepath.Join(dir, "tombolo.db"))
	require.NoError(t, err)
	t.Cleanup(func() { records.Close() })
	v, err := secret.Open(t.Context(), dir, records, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return v, records
}

func newVault(t testing.TB) *secret.Vault {
	v, _ := vaultIn(t, t.TempDir())
	return v
}

func value(text string) secret.Value { return secret.NewValue([]byte(text)) }

// add makes a secret of the key "k" that may go to api.example.com.
func add(t testing.TB, v *secret.Vault, name, text string, bindings ...secret.Binding) secret.Secret {
	t.Helper()
	if bindings == nil {
		bindings = []secret.Binding{{Host: []string{"api.example.com"}}}
	}
	s, err := v.Create(t.Context(), "k", secret.New{Name: name, Value: value(text), Bindings: bindings})
	require.NoError(t, err)
	return s
}

func TestSecretIsKeptAndNeverGivenBack(t *testing.T) {
	dir := t.TempDir()
	v, records := vaultIn(t, dir)
	made := add(t, v, "API-Token", topSecret)
	require.Equal(t, "api-token", made.Name)
	require.Equal(t, 1, made.Version)
	require.Regexp(t, `^sec_[a-z0-9]{26}$`, made.ID)
	require.Regexp(t, `^tombolo_api-token_[A-Z2-7]{26}$`, made.Placeholder)

	for _, by := range []string{made.ID, "api-token", "API-TOKEN"} {
		got, err := v.Get(t.Context(), "k", by)
		require.NoError(t, err)
		require.Equal(t, made, got)
	}
	changed, err := v.Update(t.Context(), "k", "api-token", secret.Change{Value: value("another value")})
	require.NoError(t, err)
	require.Equal(t, 2, changed.Version)
	require.Equal(t, made.Placeholder, changed.Placeholder)
	require.Equal(t, made.Bindings, changed.Bindings)
	for n := range 3 {
		_, err := v.Update(t.Context(), "k", made.ID, secret.Change{Value: value(fmt.Sprintf("another value %d", n))})
		require.NoError(t, err)
	}
	stored, err := records.Secret(t.Context(), "k", made.ID)
	require.NoError(t, err)
	require.Equal(t, 5, stored.Version)
	require.Len(t, stored.Values, 2, "the value in use and the one before")

	require.NoError(t, records.Close())
	err = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		require.NotContains(t, string(content), "another value", path)
		require.NotContains(t, string(content), topSecret, path)
		return err
	})
	require.NoError(t, err)
	info, err := os.Stat(secret.KeyFile(dir))
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
}

func TestOtherKeysHaveNoPartInASecret(t *testing.T) {
	v := newVault(t)
	made := add(t, v, "token", topSecret)
	for _, by := range []string{made.ID, made.Name} {
		_, err := v.Get(t.Context(), "other", by)
		require.ErrorIs(t, err, secret.ErrNotFound)
		_, err = v.Update(t.Context(), "other", by, secret.Change{Value: value("another value")})
		require.ErrorIs(t, err, secret.ErrNotFound)
		_, err = v.Delete(t.Context(), "other", by)
		require.ErrorIs(t, err, secret.ErrNotFound)
		require.Empty(t, v.Session("other", []string{by}).Hosts())
		_, _, err = v.Env(t.Context(), "other", map[string]string{"A": "${e2b.secrets." + by + "}"})
		require.ErrorContains(t, err, "there is none of this name")
	}
	list, err := v.List(t.Context(), "other")
	require.NoError(t, err)
	require.Empty(t, list)
	_, err = v.Create(t.Context(), "other", secret.New{Name: "token", Value: value(topSecret)})
	require.NoError(t, err, "names are a key's own")
	_, err = v.Create(t.Context(), "k", secret.New{Name: "Token", Value: value(topSecret)})
	require.ErrorIs(t, err, secret.ErrExists)
}

func TestWhatCannotBeASecretIsRefused(t *testing.T) {
	v := newVault(t)
	host := []string{"api.example.com"}
	many := make([]string, 65)
	for i := range many {
		many[i] = "a.example.com"
	}
	for about, tt := range map[string]struct {
		n    secret.New
		says string
	}{
		"no name":                     {secret.New{Name: ""}, "name"},
		"an id as a name":             {secret.New{Name: "SEC_token"}, "is an id"},
		"braces would end references": {secret.New{Name: "a}b"}, "name"},
		"a path":                      {secret.New{Name: "../b"}, "name"},
		"NUL":                         {secret.New{Name: "a\x00"}, "name"},
		"letters that look alike":     {secret.New{Name: "tоken"}, "name"},
		"the Kelvin sign lower-cases": {secret.New{Name: "to\u212aen/"}, "name"},
		"overlong name":               {secret.New{Name: strings.Repeat("a", 101)}, "name"},
		"no value":                    {secret.New{Name: "a", Value: value("")}, "empty"},
		"short value":                 {secret.New{Name: "a", Value: value("1234567")}, "8 at least"},
		"huge value":                  {secret.New{Name: "a", Value: value(strings.Repeat("a", 64<<10+1))}, "65536 are possible"},
		"value with NUL":              {secret.New{Name: "a", Value: value("12345678\x00")}, "NUL"},
		"value of white space":        {secret.New{Name: "a", Value: value("         \n")}, "white space"},
		"binary value":                {secret.New{Name: "a", Value: value("12345678\xff")}, "UTF-8"},
		"prefix":                      {secret.New{Name: "a", PlaceholderPrefix: "a b"}, "prefix"},
		"prefix that breaks headers":  {secret.New{Name: "a", PlaceholderPrefix: "a\r\nX: y"}, "prefix"},
		"prefix by metadata":          {secret.New{Name: "a", Metadata: map[string]string{"tombolo.placeholder-prefix": "a b"}}, "prefix"},
		"binding without host":        {secret.New{Name: "a", Bindings: []secret.Binding{{Method: []string{"GET"}}}}, "name a host"},
		"binding to everything":       {secret.New{Name: "a", Bindings: []secret.Binding{{Host: []string{"*"}}}}, "name the hosts"},
		"binding to no host":          {secret.New{Name: "a", Bindings: []secret.Binding{{Host: []string{"a b"}}}}, "binding"},
		"binding to an address":       {secret.New{Name: "a", Bindings: []secret.Binding{{Host: []string{"10.0.0.1"}}}}, "binding"},
		"binding to framing":          {secret.New{Name: "a", Bindings: []secret.Binding{{Host: host, In: []string{"content-length"}}}}, "Content-Length"},
		"binding to Host":             {secret.New{Name: "a", Bindings: []secret.Binding{{Host: host, In: []string{"host"}}}}, "Host"},
		"binding to no header":        {secret.New{Name: "a", Bindings: []secret.Binding{{Host: host, In: []string{"a: b"}}}}, "binding"},
		"binding to a relative path":  {secret.New{Name: "a", Bindings: []secret.Binding{{Host: host, Path: []string{"v1"}}}}, "binding"},
		"binding of many hosts":       {secret.New{Name: "a", Bindings: []secret.Binding{{Host: many}}}, "64 entries"},
		"many bindings":               {secret.New{Name: "a", Bindings: make([]secret.Binding, 17)}, "16 bindings"},
		"unknown metadata of ours":    {secret.New{Name: "a", Metadata: map[string]string{"tombolo.host": "a.example.com"}}, "tombolo.hosts"},
		"metadata bind to no host":    {secret.New{Name: "a", Metadata: map[string]string{"tombolo.methods": "GET"}}, "tombolo.hosts"},
		"metadata bind badly":         {secret.New{Name: "a", Metadata: map[string]string{"tombolo.hosts": ""}}, "binding"},
		"metadata and bindings":       {secret.New{Name: "a", Metadata: map[string]string{"tombolo.hosts": "a.example.com"}, Bindings: []secret.Binding{{Host: host}}}, "one of both"},
		"long metadata":               {secret.New{Name: "a", Metadata: map[string]string{"a": strings.Repeat("a", 1025)}}, "1024"},
		"long key of metadata":        {secret.New{Name: "a", Metadata: map[string]string{strings.Repeat("a", 129): ""}}, "128"},
		"much metadata":               {secret.New{Name: "a", Metadata: entries(9, 1000)}, "8192"},
		"many metadata":               {secret.New{Name: "a", Metadata: entries(33, 1)}, "32"},
	} {
		t.Run(about, func(t *testing.T) {
			if tt.n.Value.IsZero() && !strings.HasPrefix(about, "no value") {
				tt.n.Value = value(topSecret)
			}
			_, err := v.Create(t.Context(), "k", tt.n)
			bad := (*secret.InvalidError)(nil)
			require.ErrorAs(t, err, &bad)
			require.ErrorContains(t, err, tt.says)
			require.NotContains(t, err.Error(), topSecret)
		})
	}
	list, err := v.List(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, list)
}

func entries(n, size int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint(i)] = strings.Repeat("a", size)
	}
	return m
}

func TestMetadataBind(t *testing.T) {
	v := newVault(t)
	ctx := t.Context()
	metadata := map[string]string{"tombolo.hosts": "api.example.com, *.example.org", "tombolo.in": "Authorization,?key", "team": "a"}
	made, err := v.Create(ctx, "k", secret.New{Name: "a", Value: value(topSecret), Metadata: metadata})
	require.NoError(t, err)
	require.Equal(t, metadata, made.Metadata)
	require.Equal(t, []secret.Binding{{Host: []string{"api.example.com", "*.example.org"}, In: []string{"Authorization", "?key"}}}, made.Bindings)

	change := func(c secret.Change) (secret.Secret, error) { return v.Update(ctx, "k", "a", c) }
	own := []secret.Binding{{Host: []string{"own.example.com"}}}
	_, err = change(secret.Change{Bindings: &own})
	require.ErrorContains(t, err, "metadata give some")
	changed, err := change(secret.Change{Metadata: &map[string]string{"tombolo.hosts": "b.example.com"}})
	require.NoError(t, err)
	require.Equal(t, []secret.Binding{{Host: []string{"b.example.com"}}}, changed.Bindings)
	changed, err = change(secret.Change{Metadata: &map[string]string{"team": "b"}})
	require.NoError(t, err)
	require.Empty(t, changed.Bindings, "what metadata gave goes with them")
	changed, err = change(secret.Change{Bindings: &own})
	require.NoError(t, err)
	require.Equal(t, own, changed.Bindings)
	changed, err = change(secret.Change{Metadata: &map[string]string{}, Value: value("another value")})
	require.NoError(t, err)
	require.Equal(t, own, changed.Bindings, "what was not given by metadata stays")
	_, err = change(secret.Change{Metadata: &map[string]string{"tombolo.what": "b"}})
	require.ErrorContains(t, err, "means nothing")
	got, err := v.Get(ctx, "k", "a")
	require.NoError(t, err)
	require.Equal(t, changed, got)
}

func TestSecretsOfAKeyAreLimited(t *testing.T) {
	v := newVault(t)
	for n := range secret.MaxSecrets {
		add(t, v, fmt.Sprintf("s%d", n), topSecret)
	}
	_, err := v.Create(t.Context(), "k", secret.New{Name: "more", Value: value(topSecret)})
	require.ErrorIs(t, err, secret.ErrFull)
	_, err = v.Create(t.Context(), "other", secret.New{Name: "more", Value: value(topSecret)})
	require.NoError(t, err)
}

func TestProcessesMakeOneKey(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for n := range 6 {
		v, _ := vaultIn(t, dir)
		wg.Go(func() {
			_, err := v.Create(t.Context(), "k", secret.New{Name: fmt.Sprintf("s%d", n), Value: value(fmt.Sprintf("value of %d", n)), Bindings: []secret.Binding{{Host: []string{"api.example.com"}}}})
			require.NoError(t, err)
		})
	}
	wg.Wait()
	v, _ := vaultIn(t, dir)
	for n := range 6 {
		name := fmt.Sprintf("s%d", n)
		require.Equal(t, fmt.Sprintf("value of %d", n), sentBy(t, v, name))
	}
	left, err := os.ReadDir(filepath.Join(dir, "keys"))
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing half made is left")
}

func TestLostKeyIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	v, _ := vaultIn(t, dir)
	add(t, v, "a", topSecret)
	key, err := os.ReadFile(secret.KeyFile(dir))
	require.NoError(t, err)
	require.NoError(t, os.Remove(secret.KeyFile(dir)))

	v, _ = vaultIn(t, dir)
	_, err = v.Create(t.Context(), "k", secret.New{Name: "b", Value: value(topSecret)})
	require.ErrorContains(t, err, "put it back from a backup")
	require.NoFileExists(t, secret.KeyFile(dir))

	require.NoError(t, os.WriteFile(secret.KeyFile(dir), key, 0o644))
	_, err = v.Create(t.Context(), "k", secret.New{Name: "b", Value: value(topSecret)})
	require.ErrorContains(t, err, "chmod 600")
	require.NoError(t, os.Chmod(secret.KeyFile(dir), 0o600))
	add(t, v, "b", topSecret)
	require.Equal(t, topSecret, sentBy(t, v, "a"))

	require.NoError(t, os.Remove(secret.KeyFile(dir)))
	other := t.TempDir()
	w, _ := vaultIn(t, other)
	add(t, w, "a", topSecret)
	require.NoError(t, os.Rename(secret.KeyFile(other), secret.KeyFile(dir)))
	v, _ = vaultIn(t, dir)
	_, err = v.Session("k", []string{"a"}).Rewrite(request(t, v, "a"), "api.example.com", nil)
	require.ErrorContains(t, err, "encrypted with another key")

	require.NoError(t, os.WriteFile(secret.KeyFile(dir), []byte("AGE-SECRET-KEY-1NONSENSE"), 0o600))
	v, _ = vaultIn(t, dir)
	_, err = v.Session("k", []string{"a"}).Rewrite(request(t, v, "a"), "api.example.com", nil)
	require.ErrorContains(t, err, "no age key")
	require.NotContains(t, err.Error(), "NONSENSE")
}

func TestOtherProcessesAreHeard(t *testing.T) {
	dir := t.TempDir()
	server, _ := vaultIn(t, dir)
	owner, _ := vaultIn(t, dir)
	session := server.Session("k", []string{"a"})
	require.Empty(t, session.Hosts())

	made := add(t, owner, "a", topSecret)
	require.NoError(t, server.Refresh(t.Context()))
	require.Equal(t, []string{"api.example.com"}, session.Hosts())
	require.Equal(t, topSecret, sentBy(t, server, "a"))

	_, err := owner.Update(t.Context(), "k", "a", secret.Change{Value: value("another value"), Bindings: &[]secret.Binding{{Host: []string{"api.example.com", "b.example.com"}}}})
	require.NoError(t, err)
	require.NoError(t, server.Refresh(t.Context()))
	require.Equal(t, []string{"api.example.com", "b.example.com"}, session.Hosts())
	require.Equal(t, "another value", sentBy(t, server, "a"))

	_, err = owner.Delete(t.Context(), "k", "a")
	require.NoError(t, err)
	require.NoError(t, server.Refresh(t.Context()))
	require.Empty(t, session.Hosts())
	req := newRequest(t, "GET", "https://api.example.com/", "")
	req.Header.Set("Authorization", "Bearer "+made.Placeholder)
	_, err = session.Rewrite(req, "api.example.com", nil)
	require.NoError(t, err)
	require.Equal(t, "Bearer "+made.Placeholder, req.Header.Get("Authorization"), "what was deleted is not used")

	env, attached, err := server.Env(t.Context(), "k", map[string]string{"A": "plain"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"A": "plain"}, env)
	require.Empty(t, attached)
	again := add(t, owner, "a", topSecret)
	require.NotEqual(t, made.Placeholder, again.Placeholder)
	env, attached, err = server.Env(t.Context(), "k", map[string]string{"A": "x ${e2b.secrets.A} y"})
	require.NoError(t, err, "one just made by another process is found")
	require.Equal(t, "x "+again.Placeholder+" y", env["A"])
	require.Equal(t, []string{again.ID}, attached)
}

func TestValueTellsNothing(t *testing.T) {
	v := value(topSecret)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "value", v, "within", map[string]secret.Value{"a": v})
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "value", v, "new", secret.New{Value: v})
	told, err := json.Marshal(secret.New{Name: "a", Value: v})
	require.NoError(t, err)
	for _, text := range []string{
		log.String(), string(told), fmt.Sprint(v), fmt.Sprintf("%v %+v %#v %s %q %x %d", v, v, v, v, v, v, v),
		fmt.Sprintf("%v %+v %#v", secret.New{Value: v}, secret.New{Value: v}, &secret.Change{Value: v}),
		fmt.Sprint(errors.Join(fmt.Errorf("%v", v))),
	} {
		require.NotContains(t, text, "s3cr3t")
		require.NotContains(t, text, fmt.Sprintf("%x", "s3cr3t"))
		require.NotContains(t, text, "115 51 99", "as numbers")
		require.Contains(t, text, "[secret]")
	}
	var read struct{ Value secret.Value }
	err = json.Unmarshal([]byte(`{"value":{"a":"`+"s3cr3t-value"+`"}}`), &read)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "s3cr3t")
}

var _ store.Secrets = (*sqlite.Store)(nil)
