package host_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"software.sslmate.com/src/go-pkcs12"

	"github.com/tombolo-dev/tombolo/internal/agent/host"
	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/trust"
)

// certificate returns one of its own, as DER and as PEM.
func certificate(t *testing.T, name string) (raw, text []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	about := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	raw, err = x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	require.NoError(t, err)
	return raw, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

// lay writes a file below the root of a system.
func lay(t *testing.T, root, path, content string) {
	path = filepath.Join(root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
}

func TestProgramsWithStoresOfTheirOwnTrustTheBundleToo(t *testing.T) {
	root := t.TempDir()
	system := host.System{Root: root}
	lay(t, root, "opt/java/openjdk/lib/security/cacerts", "theirs")
	lay(t, root, "etc/chromium/master_preferences", "{}")
	one, text := certificate(t, "one")
	two, more := certificate(t, "two")
	require.NoError(t, system.Apply(hostapi.Init{CABundle: append(text, more...)}, ""))

	java, err := os.ReadFile(filepath.Join(root, "opt/java/openjdk/lib/security/cacerts"))
	require.NoError(t, err)
	trusted, err := pkcs12.DecodeTrustStore(java, "")
	require.NoError(t, err)
	require.Len(t, trusted, 2)
	require.Equal(t, one, trusted[0].Raw)

	written, err := os.ReadFile(filepath.Join(root, "etc/chromium/policies/managed/tombolo-certificates.json"))
	require.NoError(t, err)
	var policy struct{ CACertificates [][]byte }
	require.NoError(t, json.Unmarshal(written, &policy))
	require.Equal(t, [][]byte{one, two}, policy.CACertificates)

	require.NoDirExists(t, filepath.Join(root, "etc/opt/chrome"), "stores are made for nobody")
	require.NoFileExists(t, filepath.Join(root, "etc/ssl/certs/java/cacerts"))
}

func TestUpdatesOfTheTrustKeepWhatTheHostGave(t *testing.T) {
	root := t.TempDir()
	system := host.System{Root: root}
	_, common := certificate(t, "of the distribution")
	lay(t, root, trust.Bundle, string(common))
	lay(t, root, "etc/debian_version", "12.0")
	lay(t, root, "usr/local/share/ca-certificates/mine.crt", "of a program inside")
	anchors := func() []string {
		found, err := filepath.Glob(filepath.Join(root, "usr/local/share/ca-certificates/*"))
		require.NoError(t, err)
		for i, path := range found {
			found[i] = filepath.Base(path)
		}
		return found
	}
	anchor := func(text []byte) string {
		block, _ := pem.Decode(text)
		return trust.Anchor(block)
	}
	_, first := certificate(t, "the server's")
	require.NoError(t, system.Apply(hostapi.Init{CABundle: append(common, first...)}, ""))
	require.ElementsMatch(t, []string{"mine.crt", anchor(first)}, anchors())

	_, second := certificate(t, "the server's, made anew")
	require.NoError(t, system.Apply(hostapi.Init{CABundle: append(common, second...)}, ""))
	require.ElementsMatch(t, []string{"mine.crt", anchor(second)}, anchors())
}
