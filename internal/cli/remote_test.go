package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	ownapi "github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/rules"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// storedRules are rules that no sandbox is held to.
type storedRules struct{ *rules.Keeper }

func (s storedRules) Explain(info sandbox.Info, a policy.Action) (policy.Verdict, []policy.TableSay) {
	var book policy.Book
	tables, err := s.Tables(context.Background())
	if err != nil || book.Replace(tables) != nil {
		return policy.Verdict{}, nil
	}
	set := book.For(info.Subject())
	return set.Judge(a), set.Explain(a)
}

// TestRulesAndRecordsOfAServerElsewhere uses a server by its address and keys alone.
func TestRulesAndRecordsOfAServerElsewhere(t *testing.T) {
	dir := t.TempDir()
	records, err := sqlite.Open(t.Context(), filepath.Join(dir, "tombolo.db"))
	require.NoError(t, err)
	t.Cleanup(func() { records.Close() })
	keyFile := map[store.Role]string{}
	ids := map[string]string{}
	for name, role := range map[string]store.Role{"ci": store.RoleSandboxes, "ops": store.RolePolicy, "auditor": store.RoleAudit} {
		key, secret, err := store.NewKey(name, time.Now())
		require.NoError(t, err)
		key.Roles = []store.Role{role}
		require.NoError(t, records.AddKey(t.Context(), key))
		keyFile[role], ids[name] = filepath.Join(dir, name), key.ID
		require.NoError(t, os.WriteFile(keyFile[role], []byte(secret+"\n"), 0o600))
	}
	log, err := audit.Open(audit.Dir(dir), audit.Options{})
	require.NoError(t, err)
	log.Append(audit.Record{Kind: audit.Exec, Actor: "owner", SandboxID: "i1", What: "start"})
	log.Append(audit.Record{Kind: audit.Policy, Actor: "owner", What: "replace"})
	require.NoError(t, log.Close())
	api := ownapi.New(ownapi.Options{
		Store: records, Sandboxes: noSandboxes{}, AuditDir: audit.Dir(dir),
		Rules: storedRules{&rules.Keeper{Store: records, Reload: func(context.Context) error { return nil }}},
	})
	server := httptest.NewServer(api.ForKeys())
	t.Cleanup(func() { api.Close(); server.Close() })
	with := func(role store.Role, code int, args ...string) outcome {
		t.Helper()
		got := tombolo(t, "/proc/none", "", append(args, "--url", server.URL, "--key-file", keyFile[role])...)
		require.Equal(t, code, got.code, "%v: %s", args, got.stderr)
		return got
	}

	file := filepath.Join(dir, "rules.yaml")
	require.NoError(t, os.WriteFile(file, []byte(somePolicy), 0o600))
	require.Contains(t, with(store.RolePolicy, 0, "policy", "apply", file).stdout, "+ key ci: rule no-root: ask")
	require.Contains(t, with(store.RolePolicy, 0, "policy", "apply", file).stdout, "nothing changes")
	now, err := rules.Read(t.Context(), records)
	require.NoError(t, err)
	require.Contains(t, []string{now[0].Scope.ID, now[len(now)-1].Scope.ID}, ids["ci"], "the key is found by its name")
	require.Contains(t, with(store.RolePolicy, 0, "policy", "show").stdout, "  ci:")
	require.Contains(t, with(store.RolePolicy, 0, "policy", "explain", "--key", "ci", "--url", server.URL, "--key-file", keyFile[store.RolePolicy], "exec", "user=root", "ls").stdout, "ask: rule no-root of key ci")
	require.Contains(t, with(store.RoleSandboxes, 1, "policy", "show").stderr, `role "policy"`)

	require.Contains(t, with(store.RoleAudit, 0, "audit", "tail").stdout, "replace")
	require.NotContains(t, with(store.RoleAudit, 0, "audit", "tail", "--kind", "exec", "--sandbox", "i1").stdout, "replace")
	require.Empty(t, with(store.RoleAudit, 0, "audit", "tail", "-n", "0").stdout)
	var line audit.Record
	require.NoError(t, json.Unmarshal([]byte(with(store.RoleAudit, 0, "audit", "tail", "-n", "1", "--json").stdout), &line))
	require.Equal(t, "replace", line.What)
	require.Contains(t, with(store.RoleAudit, 0, "audit", "export", "--format", "ocsf").stdout, `"class_uid"`)
	require.Contains(t, with(store.RoleAudit, 1, "audit", "export", "--format", "xml").stderr, "no format")
	require.Contains(t, with(store.RoleAudit, 1, "audit", "verify").stderr, "its own machine")
	require.Contains(t, with(store.RolePolicy, 1, "audit", "tail").stderr, `role "audit"`)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := command(ctx, "/proc/none", "audit", "tail", "-f", "--url", server.URL, "--key-file", keyFile[store.RoleAudit])
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.True(t, bufio.NewScanner(out).Scan(), "what is there comes at once")
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait(), "to interrupt it is how it ends")
}
