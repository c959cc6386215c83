package intercept

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAuthorityIsMadeOnceAndKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var all sync.WaitGroup
	pems := make([]string, 8)
	for i := range pems {
		all.Go(func() {
			a, err := OpenAuthority(dir)
			if err == nil {
				pems[i] = string(a.PEM())
			}
		})
	}
	all.Wait()
	file, err := os.ReadFile(AuthorityFile(dir))
	require.NoError(t, err)
	for _, pem := range pems {
		require.Equal(t, string(file), pem, "all that come at once have the same")
	}
	for path, mode := range map[string]os.FileMode{authorityKeyFile(dir): 0o600, filepath.Join(dir, "keys"): 0o700 | os.ModeDir, AuthorityFile(dir): 0o644} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode(), path)
	}
}

func TestProcessesMakeOneAuthority(t *testing.T) {
	if dir := os.Getenv("TOMBOLO_TEST_AUTHORITY"); dir != "" {
		a, err := OpenAuthority(dir)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("made-", os.Getpid())), a.PEM(), 0o600))
		return
	}
	dir := t.TempDir()
	var all []*exec.Cmd
	for range 4 {
		c := exec.Command(os.Args[0], "-test.run=^TestProcessesMakeOneAuthority$")
		c.Env = append(os.Environ(), "TOMBOLO_TEST_AUTHORITY="+dir)
		require.NoError(t, c.Start())
		all = append(all, c)
	}
	for _, c := range all {
		require.NoError(t, c.Wait())
	}
	made, err := filepath.Glob(filepath.Join(dir, "made-*"))
	require.NoError(t, err)
	require.Len(t, made, 4)
	want, err := os.ReadFile(AuthorityFile(dir))
	require.NoError(t, err)
	for _, path := range made {
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	}
}

// A sandbox may have been given the certificate of before, or that of after.
func TestRenewedAuthorityIsTrustedAsTheOldOne(t *testing.T) {
	dir := t.TempDir()
	start := time.Now()
	old, err := openAuthority(dir, start)
	require.NoError(t, err)
	same, err := openAuthority(dir, start.Add(authorityLife-authorityRenew-time.Hour))
	require.NoError(t, err)
	require.Equal(t, old.PEM(), same.PEM())
	now := start.Add(authorityLife - authorityRenew + time.Hour)
	renewed, err := openAuthority(dir, now)
	require.NoError(t, err)
	require.NotEqual(t, old.PEM(), renewed.PEM())
	for _, trusted := range []*Authority{old, renewed} {
		for _, issuing := range []*Authority{old, renewed} {
			leaf, err := issuing.leaves.get("a.example", now)
			require.NoError(t, err)
			requireTrusted(t, trusted, leaf.Leaf, "a.example", now)
		}
	}
}

func requireTrusted(t *testing.T, a *Authority, leaf *x509.Certificate, host string, now time.Time) {
	t.Helper()
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(a.PEM()))
	_, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: now})
	require.NoError(t, err)
}

func TestAuthorityThatIsNotWhole(t *testing.T) {
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(stranger)
	require.NoError(t, err)
	rows := []struct {
		name  string
		spoil func(dir string) error
		says  string
	}{
		{"no key", func(dir string) error { return os.Remove(authorityKeyFile(dir)) }, "put the key back"},
		{"key of another", func(dir string) error {
			return os.WriteFile(authorityKeyFile(dir), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
		}, "is not the authority's certificate"},
		{"key cut off", func(dir string) error { return os.Truncate(authorityKeyFile(dir), 20) }, "egress-ca.key holds no PRIVATE KEY"},
		{"certificate cut off", func(dir string) error { return os.Truncate(AuthorityFile(dir), 20) }, "egress-ca.pem holds no CERTIFICATE"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := OpenAuthority(dir)
			require.NoError(t, err)
			require.NoError(t, row.spoil(dir))
			_, err = OpenAuthority(dir)
			require.ErrorContains(t, err, row.says)
		})
	}

	dir := t.TempDir()
	first, err := OpenAuthority(dir)
	require.NoError(t, err)
	require.NoError(t, os.Remove(AuthorityFile(dir)))
	second, err := OpenAuthority(dir)
	require.NoError(t, err)
	require.True(t, first.cert.PublicKey.(*ecdsa.PublicKey).Equal(second.cert.PublicKey), "a certificate is made for the key again")
}

func TestLeaves(t *testing.T) {
	a, err := OpenAuthority(t.TempDir())
	require.NoError(t, err)
	now := time.Now()
	long := "a-name-that-is-longer-than-the-sixty-four-characters-of-a-common.name.example"
	for _, host := range []string{"a.example", "under_score.example", "203.0.113.7", "2001:db8::7", long} {
		leaf, err := a.Leaf(host)
		require.NoError(t, err)
		requireTrusted(t, a, leaf.Leaf, host, now)
		require.Error(t, leaf.Leaf.VerifyHostname("b.example"))
		again, err := a.Leaf(host)
		require.NoError(t, err)
		require.Same(t, leaf, again)
	}
	first, err := a.leaves.get("a.example", now)
	require.NoError(t, err)
	later, err := a.leaves.get("a.example", now.Add(leafLife-leafRenew+time.Hour))
	require.NoError(t, err)
	require.NotSame(t, first, later, "it is made anew before it ends")

	for i := range maxLeaves {
		a.leaves.keep(fmt.Sprint(i), first)
	}
	require.Equal(t, maxLeaves, a.leaves.recent.Len())
	require.Len(t, a.leaves.byHost, maxLeaves)
	require.Nil(t, a.leaves.find("a.example", now), "what was not used for long is forgotten")
}
