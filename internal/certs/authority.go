package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/wholefile"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	// leafLife is below what browsers allow, and leaves renew themselves.
	leafLife   = 90 * 24 * time.Hour
	renewAhead = 30 * 24 * time.Hour
	// backdate allows for clocks that go slow.
	backdate = time.Hour
)

// ErrNoAuthority: the data folder has no private authority.
var ErrNoAuthority = errors.New("no private certificate authority")

// Authority is a certificate authority of our own for one domain. Whoever trusts
// it trusts it for the names below that domain and for this machine only: its
// certificate says so, and clients hold it to that.
type Authority struct {
	domain string
	cert   *x509.Certificate
	key    crypto.Signer

	mu   sync.Mutex
	leaf *tls.Certificate
}

// AuthorityFile is the authority's certificate in a data folder, for whoever is
// to trust it.
func AuthorityFile(dataDir string) string { return filepath.Join(dataDir, "ca.pem") }

func authorityKeyFile(dataDir string) string { return filepath.Join(dataDir, "keys", "ca.key") }

// InitAuthority makes an authority in a data folder. One that is there for the
// same domain is left as it is, and for another replaced only when replace says
// so: whoever trusted it must trust the new one. made tells whether it is new.
func InitAuthority(dataDir string, domain Domain, replace bool) (made bool, err error) {
	old, err := OpenAuthority(dataDir)
	switch {
	case err == nil && old.domain == domain.Name && time.Until(old.cert.NotAfter) > renewAhead:
		return false, nil
	case err == nil && !replace:
		return false, fmt.Errorf("%s is an authority for %s already; --replace makes a new one, and whoever trusted the old one has to trust the new one", AuthorityFile(dataDir), old.domain)
	case err != nil && !errors.Is(err, ErrNoAuthority) && !replace:
		return false, fmt.Errorf("%w; --replace makes a new one", err)
	}
	return true, makeAuthority(dataDir, domain, time.Now())
}

func makeAuthority(dataDir string, domain Domain, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: "Tombolo CA for " + shorten(domain.Name), Organization: []string{"Tombolo on this machine"}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},

		PermittedDNSDomainsCritical: true,
		PermittedDNSDomains:         []string{domain.Name, "localhost"},
		PermittedIPRanges:           loopback(),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	// Whoever may use the machine may read the certificate, and nobody the key.
	if err := os.MkdirAll(dataDir, 0o711); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(authorityKeyFile(dataDir)), 0o700); err != nil {
		return err
	}
	// The certificate goes first and comes last, so that it never stands beside
	// another one's key.
	if err := os.Remove(AuthorityFile(dataDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := wholefile.Write(authorityKeyFile(dataDir), 0o600, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})); err != nil {
		return err
	}
	return wholefile.Write(AuthorityFile(dataDir), 0o644, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// shorten keeps a name within the 64 characters of a common name.
func shorten(name string) string { return name[max(0, len(name)-45):] }

func loopback() []*net.IPNet {
	return []*net.IPNet{
		{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)},
		{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)},
	}
}

func newSerial() *big.Int {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand does not fail
	}
	return serial.Add(serial, big.NewInt(1))
}

// OpenAuthority reads the authority of a data folder. ErrNoAuthority when there
// is none.
func OpenAuthority(dataDir string) (*Authority, error) {
	pair, err := tls.LoadX509KeyPair(AuthorityFile(dataDir), authorityKeyFile(dataDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s; `tombolo tls init` makes one", ErrNoAuthority, dataDir)
	}
	if err != nil {
		return nil, fmt.Errorf("read the certificate authority %s: %w", AuthorityFile(dataDir), err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA || len(pair.Leaf.PermittedDNSDomains) == 0 {
		return nil, fmt.Errorf("%s is no authority that `tombolo tls init` made", AuthorityFile(dataDir))
	}
	return &Authority{domain: pair.Leaf.PermittedDNSDomains[0], cert: pair.Leaf, key: key}, nil
}

// Domain is the domain that the authority is for.
func (a *Authority) Domain() Domain { return Domain{Name: a.domain} }

// GetCertificate implements Source with one certificate for the domain, what is
// below it, and this machine. It lives in memory and is made anew before it ends.
func (a *Authority) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return a.certificate(time.Now())
}

func (a *Authority) certificate(now time.Time) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaf != nil && now.Before(a.leaf.Leaf.NotAfter.Add(-renewAhead)) {
		return a.leaf, nil
	}
	leaf, err := a.issue(now)
	if err != nil {
		return nil, err
	}
	a.leaf = leaf
	return leaf, nil
}

func (a *Authority) issue(now time.Time) (*tls.Certificate, error) {
	if now.After(a.cert.NotAfter) {
		return nil, fmt.Errorf("the certificate authority for %s ended on %s; `tombolo tls init --replace` makes a new one", a.domain, a.cert.NotAfter.Format(time.DateOnly))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	end := now.Add(leafLife)
	if end.After(a.cert.NotAfter) {
		end = a.cert.NotAfter
	}
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: shorten(a.domain)},
		NotBefore:             now.Add(-backdate),
		NotAfter:              end,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:              []string{a.domain, "*." + a.domain, "localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}
