package account_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
)

const passwd = `root:x:0:0:root:/root:/bin/bash
# comment
broken line
user:x:1000:1001::/home/user:/bin/zsh
user:x:5:5::/second:/bin/sh
bare:x:7:7:::
huge:x:99999999999:1:::
`

const group = `root:x:0:
staff:x:50:user,root
user:x:1001:user
audio:x:29:user
`

func open(t *testing.T) (*account.Database, string) {
	dir := t.TempDir()
	p, g := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	require.NoError(t, os.WriteFile(p, []byte(passwd), 0o644))
	require.NoError(t, os.WriteFile(g, []byte(group), 0o644))
	return account.Open(p, g), p
}

func TestLookupFindsGroupsAndDefaults(t *testing.T) {
	db, _ := open(t)
	user, err := db.Lookup("user")
	require.NoError(t, err)
	require.Equal(t, account.Account{Name: "user", UID: 1000, GID: 1001, Groups: []uint32{50, 29}, Home: "/home/user", Shell: "/bin/zsh"}, user)
	byNumber, err := db.Lookup("1000")
	require.NoError(t, err)
	require.Equal(t, user, byNumber)
	bare, err := db.Lookup("bare")
	require.NoError(t, err)
	require.Equal(t, "/", bare.Home)
	require.Equal(t, "/bin/sh", bare.Shell)
	for _, name := range []string{"", "huge", "nobody", "broken line", "4"} {
		_, err = db.Lookup(name)
		require.ErrorIs(t, err, account.ErrUnknown, name)
	}
	require.Equal(t, "staff", db.GroupName(50))
	require.Equal(t, "4242", db.UserName(4242))
}

func TestLookupSeesNewUsers(t *testing.T) {
	db, path := open(t)
	_, err := db.Lookup("late")
	require.ErrorIs(t, err, account.ErrUnknown)
	require.NoError(t, os.WriteFile(path, []byte("late:x:9:9::/:/bin/sh\n"), 0o644))
	require.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(time.Second)))
	_, err = db.Lookup("late")
	require.NoError(t, err)
	_, err = db.Lookup("user")
	require.ErrorIs(t, err, account.ErrUnknown)
}

func TestResolve(t *testing.T) {
	for path, want := range map[string]string{
		"":                "/work",
		"a":               "/home/user/a",
		"./a/../b":        "/home/user/b",
		"../../../../etc": "/etc",
		"~":               "/home/user",
		"~/x":             "/home/user/x",
		"/a//b/":          "/a/b",
		"/../x":           "/x",
		"a~":              "/home/user/a~",
	} {
		got, err := account.Resolve(path, "/home/user", "/work")
		require.NoError(t, err)
		require.Equal(t, want, got, path)
	}
}

func FuzzResolve(f *testing.F) {
	f.Add("~/a", "/home/user", "/work")
	f.Add("../\x00", "", "")
	f.Add(strings.Repeat("a/", 3000), "~", "..")
	f.Fuzz(func(t *testing.T, path, home, workdir string) {
		got, err := account.Resolve(path, home, workdir)
		if err != nil {
			var wrong *account.PathError
			require.ErrorAs(t, err, &wrong)
			return
		}
		require.True(t, filepath.IsAbs(got))
		require.Equal(t, filepath.Clean(got), got)
		require.Less(t, len(got), 4096)
	})
}

func FuzzDatabase(f *testing.F) {
	f.Add(passwd, group, "user")
	f.Add("a:b:c:d:e:f:g\n:::::::", "x:y:1:,,", "1")
	f.Fuzz(func(t *testing.T, users, groups, name string) {
		dir := t.TempDir()
		p, g := filepath.Join(dir, "p"), filepath.Join(dir, "g")
		require.NoError(t, os.WriteFile(p, []byte(users), 0o644))
		require.NoError(t, os.WriteFile(g, []byte(groups), 0o644))
		a, err := account.Open(p, g).Lookup(name)
		if err == nil {
			require.NotEmpty(t, a.Name)
			require.NotEmpty(t, a.Home)
			require.NotContains(t, a.Groups, a.GID)
		}
	})
}
