package certs_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/certs"
)

func TestParseDomain(t *testing.T) {
	for text, want := range map[string]certs.Domain{
		"sbx.example.com":       {Name: "sbx.example.com"},
		"SBX.Example.com.":      {Name: "sbx.example.com"},
		"sbx.localhost:3000":    {Name: "sbx.localhost", Port: 3000},
		"127.0.0.1.nip.io":      {Name: "127.0.0.1.nip.io"},
		"127.0.0.1.nip.io:8443": {Name: "127.0.0.1.nip.io", Port: 8443},
	} {
		got, err := certs.ParseDomain(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for text, why := range map[string]string{
		"":                       "not a name",
		"localhost":              "sbx.localhost",
		"127.0.0.1":              "nip.io",
		"a..b":                   "not a name",
		"*.example.com":          "not a name",
		"https://example.com":    "port",
		"example.com:0":          "port",
		"example.com:https":      "port",
		"exa mple.com":           "not a name",
		"-a.example.com":         "not a name",
		"a_b.example.com":        "not a name",
		"ä.example.com":          "not a name",
		strings.Repeat("a.", 99): "longer",
	} {
		_, err := certs.ParseDomain(text)
		require.ErrorContains(t, err, why, text)
	}
}

func initAuthority(t *testing.T, dir, domain string) *certs.Authority {
	t.Helper()
	d, err := certs.ParseDomain(domain)
	require.NoError(t, err)
	_, err = certs.InitAuthority(dir, d, false)
	require.NoError(t, err)
	a, err := certs.OpenAuthority(dir)
	require.NoError(t, err)
	return a
}

func trusted(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	raw, err := os.ReadFile(certs.AuthorityFile(dir))
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(raw))
	return pool
}

// handshake connects to a server with the source's certificates by a name.
func handshake(source certs.Source, pool *x509.CertPool, name string) error {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	go tls.Server(there, certs.Config(source)).Handshake()
	return tls.Client(here, &tls.Config{RootCAs: pool, ServerName: name}).Handshake()
}

func TestAuthorityCertifiesItsDomainAndThisMachineOnly(t *testing.T) {
	dir := t.TempDir()
	authority := initAuthority(t, dir, "sbx.localhost")
	require.Equal(t, "sbx.localhost", authority.Domain().Name)
	pool := trusted(t, dir)
	for _, name := range []string{"8000-iabc.sbx.localhost", "api.sbx.localhost", "sbx.localhost", "localhost", "127.0.0.1", "::1"} {
		require.NoError(t, handshake(authority, pool, name), name)
	}
	for _, name := range []string{"example.com", "a.b.sbx.localhost", "8.8.8.8"} {
		require.Error(t, handshake(authority, pool, name), name)
	}
}

func TestStolenAuthorityIsOfNoUseForOtherNames(t *testing.T) {
	dir := t.TempDir()
	initAuthority(t, dir, "sbx.localhost")
	pair, err := tls.LoadX509KeyPair(certs.AuthorityFile(dir), filepath.Join(dir, "keys", "ca.key"))
	require.NoError(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	for _, forged := range []*x509.Certificate{
		{DNSNames: []string{"bank.example.com"}},
		{IPAddresses: []net.IP{net.IPv4(8, 8, 8, 8)}},
	} {
		forged.SerialNumber, forged.NotAfter = big.NewInt(1), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, forged, pair.Leaf, key.Public(), pair.PrivateKey)
		require.NoError(t, err)
		leaf, err := x509.ParseCertificate(der)
		require.NoError(t, err)
		_, err = leaf.Verify(x509.VerifyOptions{Roots: trusted(t, dir)})
		require.Error(t, err, "%v %v", forged.DNSNames, forged.IPAddresses)
	}
}

func TestAuthorityStaysUntilItIsReplaced(t *testing.T) {
	dir := t.TempDir()
	initAuthority(t, dir, "sbx.localhost")
	first, err := os.ReadFile(certs.AuthorityFile(dir))
	require.NoError(t, err)
	key, err := os.Stat(filepath.Join(dir, "keys", "ca.key"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), key.Mode().Perm())
	keys, err := os.Stat(filepath.Join(dir, "keys"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), keys.Mode().Perm())

	made, err := certs.InitAuthority(dir, certs.Domain{Name: "sbx.localhost"}, false)
	require.NoError(t, err)
	require.False(t, made)
	_, err = certs.InitAuthority(dir, certs.Domain{Name: "127.0.0.1.nip.io"}, false)
	require.ErrorContains(t, err, "--replace")
	same, err := os.ReadFile(certs.AuthorityFile(dir))
	require.NoError(t, err)
	require.Equal(t, first, same)

	made, err = certs.InitAuthority(dir, certs.Domain{Name: "127.0.0.1.nip.io"}, true)
	require.NoError(t, err)
	require.True(t, made)
	authority, err := certs.OpenAuthority(dir)
	require.NoError(t, err)
	require.NoError(t, handshake(authority, trusted(t, dir), "1-i.127.0.0.1.nip.io"))
}

func TestBrokenAuthorityIsNamed(t *testing.T) {
	dir := t.TempDir()
	_, err := certs.OpenAuthority(dir)
	require.ErrorIs(t, err, certs.ErrNoAuthority)
	require.ErrorContains(t, err, "tombolo tls init")
	initAuthority(t, dir, "sbx.localhost")
	require.NoError(t, os.WriteFile(certs.AuthorityFile(dir), []byte("nonsense"), 0o644))
	_, err = certs.OpenAuthority(dir)
	require.ErrorContains(t, err, certs.AuthorityFile(dir))
	_, err = certs.InitAuthority(dir, certs.Domain{Name: "sbx.localhost"}, false)
	require.ErrorContains(t, err, "--replace")
	_, err = certs.InitAuthority(dir, certs.Domain{Name: "sbx.localhost"}, true)
	require.NoError(t, err)
}

// selfSigned writes a certificate for a name and its key.
func selfSigned(t *testing.T, cert, key, name string) {
	t.Helper()
	selfSignedUntil(t, cert, key, name, time.Now().Add(time.Hour))
}

func selfSignedUntil(t *testing.T, cert, key, name string, end time.Time) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
}

func TestFilesAreReadAgainWhenTheyChange(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	_, err := certs.OpenFiles(cert, key, slog.Default())
	require.ErrorContains(t, err, cert)
	selfSigned(t, cert, key, "one.example.com")
	files, err := certs.OpenFiles(cert, key, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	name := func() string {
		c, err := files.GetCertificate(nil)
		require.NoError(t, err)
		return c.Leaf.DNSNames[0]
	}
	require.Equal(t, "one.example.com", name())

	// A key that does not fit, as between the two steps of a replacement.
	selfSigned(t, filepath.Join(dir, "other"), key, "two.example.com")
	require.Never(t, func() bool { return name() != "one.example.com" }, 1500*time.Millisecond, 100*time.Millisecond)
	selfSigned(t, cert, key, "two.example.com")
	require.Eventually(t, func() bool { return name() == "two.example.com" }, 10*time.Second, 50*time.Millisecond)
	require.NoError(t, os.Remove(cert))
	require.Never(t, func() bool { return name() != "two.example.com" }, 1500*time.Millisecond, 100*time.Millisecond)
}

func TestEndedCertificateIsToldOnce(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	selfSignedUntil(t, cert, key, "one.example.com", time.Now().Add(-time.Hour))
	var said bytes.Buffer
	files, err := certs.OpenFiles(cert, key, slog.New(slog.NewTextHandler(&said, nil)))
	require.NoError(t, err)
	for range 3 {
		_, err = files.GetCertificate(nil)
		require.NoError(t, err)
	}
	require.Equal(t, 1, strings.Count(said.String(), "has ended"))
	require.Contains(t, said.String(), cert)
}
