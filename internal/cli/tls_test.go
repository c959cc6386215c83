package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

func TestTLSInitMakesAnAuthorityOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new data folder")
	got := tombolo(t, dir, "", "tls", "init")
	require.Zero(t, got.code, got.stderr)
	ca := filepath.Join(dir, "ca.pem")
	require.Contains(t, got.stdout, "Made an authority for sbx.localhost: "+ca)
	for _, word := range []string{"update-ca-certificates", "security add-trusted-cert", "NODE_EXTRA_CA_CERTS", "httpx", "curl --cacert"} {
		require.Contains(t, got.stdout, word)
	}
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o711), info.Mode().Perm(), "others reach the certificate")

	got = tombolo(t, dir, "", "tls", "init")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "already")
	got = tombolo(t, dir, "", "tls", "init", "--domain", "127.0.0.1.nip.io")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "--replace")
	got = tombolo(t, dir, "", "tls", "init", "--domain", "127.0.0.1.nip.io", "--replace")
	require.Zero(t, got.code, got.stderr)
	got = tombolo(t, dir, "", "tls", "init", "--domain", "localhost")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "sbx.localhost")
}

// certificate writes a certificate for a name with its key.
func certificate(t *testing.T, name string) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	return cert, key
}

func TestSettingsOfHTTPSThatDoNotFitAreNamed(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t, "*.sbx.example.com")
	authority := t.TempDir()
	require.Zero(t, tombolo(t, authority, "", "tls", "init").code)
	for want, c := range map[string]config{
		"give both or none":      {TLSCert: cert},
		"two ways":               {TLSCert: cert, TLSKey: key, ACMEEmail: "me@example.com"},
		"needs --acme-email":     {ACMEDNS: "exec:true"},
		"needs --domain":         {ACMEEmail: "me@example.com", ACMEDNS: "exec:true"},
		"--acme-dns to prove":    {ACMEEmail: "me@example.com", Domain: "sbx.example.com"},
		"no way to set DNS":      {ACMEEmail: "me@example.com", Domain: "sbx.example.com", ACMEDNS: "cloudflare"},
		"does not fit --domain":  {TLSCert: cert, TLSKey: key, Domain: "other.example.com"},
		"no such file":           {TLSCert: cert + "x", TLSKey: key},
		"--domain: domain":       {Domain: "localhost"},
		"tombolo tls init --rep": {Domain: "sbx.example.com", Data: authority},
	} {
		if c.Data == "" {
			c.Data = dir
		}
		_, err := openTLS(t.Context(), c, slog.Default())
		require.ErrorContains(t, err, want)
	}
}

func TestClientsAreToldAnAddressThatWorks(t *testing.T) {
	dir, authority := t.TempDir(), t.TempDir()
	require.Zero(t, tombolo(t, authority, "", "tls", "init").code)
	cert, key := certificate(t, "*.sbx.example.com")
	for _, tt := range []struct {
		name   string
		config config
		port   int
		want   string
	}{
		{"nothing", config{Data: dir}, 3000, ""},
		{"a certificate alone", config{Data: dir, TLSCert: cert, TLSKey: key}, 443, ""},
		{"a proxy in front", config{Data: dir, Domain: "sbx.example.com"}, 3000, "sbx.example.com"},
		{"a proxy on another port", config{Data: dir, Domain: "sbx.example.com:8443"}, 3000, "sbx.example.com:8443"},
		{"own certificate", config{Data: dir, Domain: "sbx.example.com", TLSCert: cert, TLSKey: key}, 443, "sbx.example.com"},
		{"own port", config{Data: dir, Domain: "sbx.example.com", TLSCert: cert, TLSKey: key}, 3000, "sbx.example.com:3000"},
		{"port forwarded", config{Data: dir, Domain: "sbx.example.com:443", TLSCert: cert, TLSKey: key}, 3000, "sbx.example.com"},
		{"authority", config{Data: authority}, 3000, "sbx.localhost:3000"},
		{"ACME", config{Data: dir, Domain: "sbx.example.com", ACMEEmail: "me@example.com", ACMEDNS: "exec:false", ACMEDirectory: "https://127.0.0.1:1/"}, 443, "sbx.example.com"},
	} {
		front, err := openTLS(t.Context(), tt.config, slog.Default())
		require.NoError(t, err, tt.name)
		require.Equal(t, tt.want, front.clientDomain(&net.TCPAddr{Port: tt.port}), tt.name)
		front.close()
	}
}

func TestServeWithAnAuthority(t *testing.T) {
	needAgent(t)
	dir := sandboxtest.NewDir(t)
	require.Zero(t, tombolo(t, dir, "", "tls", "init").code)
	s := startServer(t, dir)
	address := strings.TrimPrefix(s.ready, "tombolo serves on http://")
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)

	got := tombolo(t, dir, "", "env")
	require.Contains(t, got.stdout, "export E2B_API_URL=http://"+address)
	require.Contains(t, got.stdout, "export E2B_DOMAIN=sbx.localhost:"+port)
	require.Contains(t, got.stdout, "export NODE_EXTRA_CA_CERTS='"+filepath.Join(dir, "ca.pem")+"'")

	raw, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(raw))
	client := &http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{RootCAs: pool},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}}
	for url, proto := range map[string]string{"http://" + address: "HTTP/1.1", "https://api.sbx.localhost": "HTTP/2.0", "https://127.0.0.1": "HTTP/2.0"} {
		res, err := client.Get(url + "/health")
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, proto, res.Proto)
	}
	client.CloseIdleConnections()
	s.stop()
}
