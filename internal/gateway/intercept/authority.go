package intercept

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/wholefile"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	// authorityRenew is how long before its end an authority is renewed: the new
	// certificate has the key of the old one, so what trusts either trusts both.
	authorityRenew = 2 * 365 * 24 * time.Hour
	// backdate allows for clocks that go slow.
	backdate = 24 * time.Hour
)

// Authority is the certificate authority in whose name TLS is ended. Only sandboxes
// are made to trust it, and its key never leaves the data folder. Safe for concurrent use.
type Authority struct {
	cert   *x509.Certificate
	key    crypto.Signer
	leaves *leaves
}

// AuthorityFile is the authority's certificate in a data folder.
func AuthorityFile(dataDir string) string { return filepath.Join(dataDir, "egress-ca.pem") }

func authorityKeyFile(dataDir string) string {
	return filepath.Join(dataDir, "keys", "egress-ca.key")
}

// OpenAuthority reads the authority of a data folder, and makes it when there is
// none. Several processes may do so at once.
func OpenAuthority(dataDir string) (*Authority, error) { return openAuthority(dataDir, time.Now()) }

func openAuthority(dataDir string, now time.Time) (*Authority, error) {
	// Whoever may use the machine may read the certificate, and nobody the key.
	if err := os.MkdirAll(dataDir, 0o711); err != nil {
		return nil, err
	}
	keys := filepath.Dir(authorityKeyFile(dataDir))
	if err := os.MkdirAll(keys, 0o700); err != nil {
		return nil, err
	}
	unlock, err := lock(filepath.Join(keys, ".egress-ca.lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	key, err := authorityKey(dataDir)
	if err != nil {
		return nil, err
	}
	cert, err := authorityCert(dataDir, key, now)
	if err != nil {
		return nil, err
	}
	leaves, err := newLeaves(cert, key)
	if err != nil {
		return nil, err
	}
	return &Authority{cert: cert, key: key, leaves: leaves}, nil
}

// lock waits for a lock that ends with the process at the latest.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { file.Close() }, nil
}

// authorityKey reads the key, or makes it when there is no certificate that it
// would not belong to.
func authorityKey(dataDir string) (crypto.Signer, error) {
	path := authorityKeyFile(dataDir)
	der, err := readPEM(path, "PRIVATE KEY")
	if errors.Is(err, fs.ErrNotExist) {
		return makeAuthorityKey(dataDir)
	}
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("read the key %s: %w", path, err)
	}
	signer, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the key %s is a %T, not ECDSA", path, key)
	}
	return signer, nil
}

func makeAuthorityKey(dataDir string) (crypto.Signer, error) {
	path := authorityKeyFile(dataDir)
	if _, err := os.Lstat(AuthorityFile(dataDir)); err == nil {
		return nil, fmt.Errorf("%s is there and its key %s is not: put the key back, or remove the certificate to have a new authority made, which sandboxes that run do not trust", AuthorityFile(dataDir), path)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, wholefile.Write(path, 0o600, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// authorityCert reads the certificate, and makes it when there is none or its end is near.
func authorityCert(dataDir string, key crypto.Signer, now time.Time) (*x509.Certificate, error) {
	path := AuthorityFile(dataDir)
	der, err := readPEM(path, "CERTIFICATE")
	if errors.Is(err, fs.ErrNotExist) {
		return makeAuthorityCert(path, key, now)
	}
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the certificate %s: %w", path, err)
	}
	if public, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(key.Public()) || !cert.IsCA {
		return nil, fmt.Errorf("%s is not the authority's certificate for the key %s: put back the one that is, or remove it to have it made again", path, authorityKeyFile(dataDir))
	}
	if cert.NotAfter.Sub(now) < authorityRenew {
		return makeAuthorityCert(path, key, now)
	}
	return cert, nil
}

func makeAuthorityCert(path string, key crypto.Signer, now time.Time) (*x509.Certificate, error) {
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	// The name tells installs apart, and stays the same when the certificate is renewed.
	id := sha256.Sum256(public)
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: "Tombolo egress CA " + hex.EncodeToString(id[:4]), Organization: []string{"Tombolo on this machine"}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if err := wholefile.Write(path, 0o644, encodeCert(der)); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// PEM is the authority's certificate, for the bundle that sandboxes trust.
func (a *Authority) PEM() []byte {
	return encodeCert(a.cert.Raw)
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// Leaf returns a certificate for a host: a name in lower case without a final dot,
// or an address.
func (a *Authority) Leaf(host string) (*tls.Certificate, error) {
	return a.leaves.get(host, time.Now())
}

func newSerial() *big.Int {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand does not fail
	}
	return serial.Add(serial, big.NewInt(1))
}

func readPEM(path, kind string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("%s holds no %s in PEM", path, kind)
	}
	return block.Bytes, nil
}
