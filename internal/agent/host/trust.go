package host

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"software.sslmate.com/src/go-pkcs12"

	"github.com/tombolo-dev/tombolo/internal/trust"
)

// javaStores are where Java keeps what it trusts, which is no bundle: in Debian, Alpine
// and Red Hat, and in each installation that came as an archive or in an image of its own.
var javaStores = [...]string{
	"etc/ssl/certs/java/cacerts",
	"etc/pki/java/cacerts",
	"usr/lib/jvm/*/lib/security/cacerts",
	"usr/lib/jvm/*/jre/lib/security/cacerts",
	"usr/java/*/lib/security/cacerts",
	"usr/local/*/lib/security/cacerts",
	"opt/*/lib/security/cacerts",
	"opt/java/*/lib/security/cacerts",
}

// chromiumFolders are the settings of Chromium and of Chrome, which trust what they come
// with and what a policy of the machine adds (chromeenterprise.google/policies, CACertificates).
var chromiumFolders = [...]string{"etc/chromium", "etc/opt/chrome"}

const chromiumPolicy = "policies/managed/tombolo-certificates.json"

// bundleStamp is the file with the hash of the bundle that the host gave last.
const bundleStamp = "run/e2b/.ca_bundle"

// setBundle replaces the trust stores when the host gives another bundle than last time.
func (s System) setBundle(bundle []byte) error {
	if len(bundle) == 0 {
		return nil
	}
	hash := fmt.Sprintf("%x", sha256.Sum256(bundle))
	stamp := filepath.Join(s.Root, bundleStamp)
	if last, err := os.ReadFile(stamp); err == nil && string(last) == hash {
		return nil
	}
	if err := s.setAnchors(bundle); err != nil {
		return err
	}
	if err := s.replace(s.Bundle(), bundle); err != nil { // the variables name it
		return err
	}
	if err := s.replaceThose(trust.Bundles, bundle); err != nil {
		return err
	}
	if err := s.setOtherStores(certificatesOf(bundle)); err != nil {
		return err
	}
	return s.write(stamp, hash)
}

// setAnchors lays what the system does not trust by itself where its tools find it, so
// that an update of its trust, which packages start, keeps it; and removes what was laid
// before and is trusted no more.
func (s System) setAnchors(bundle []byte) error {
	own, err := os.ReadFile(s.Bundle())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the trust store: %w", err)
	}
	missing := trust.Missing(bundle, own)
	trusted := map[string]bool{}
	for block := range trust.Certificates(bundle) {
		trusted[trust.Anchor(block)] = true
	}
	for family, folder := range trust.Anchors {
		if _, err := os.Stat(filepath.Join(s.Root, family)); err != nil {
			continue
		}
		folder = filepath.Join(s.Root, folder)
		laid, err := filepath.Glob(filepath.Join(folder, trust.OurAnchors))
		if err != nil {
			return err // never: the pattern is ours
		}
		for _, path := range laid {
			if trusted[filepath.Base(path)] {
				continue
			}
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("remove a certificate that is trusted no more: %w", err)
			}
		}
		for _, block := range missing {
			if err := s.replace(filepath.Join(folder, trust.Anchor(block)), pem.EncodeToMemory(block)); err != nil {
				return err
			}
		}
	}
	return nil
}

// setOtherStores is for programs that read no bundle.
func (s System) setOtherStores(trusted []*x509.Certificate) error {
	if len(trusted) == 0 {
		return nil
	}
	// Java asks for what it trusts without a password.
	store, err := pkcs12.Passwordless.EncodeTrustStore(trusted, "")
	if err != nil {
		return fmt.Errorf("write the certificates as Java's: %w", err)
	}
	if err := s.replaceThose(javaStores[:], store); err != nil {
		return err
	}
	policy, err := json.Marshal(struct{ CACertificates [][]byte }{rawOf(trusted)})
	if err != nil {
		return err
	}
	for _, folder := range chromiumFolders {
		folder = filepath.Join(s.Root, folder)
		if _, err := os.Stat(folder); err != nil {
			continue
		}
		if err := s.replace(filepath.Join(folder, chromiumPolicy), policy); err != nil {
			return err
		}
	}
	return nil
}

// replaceThose replaces the files of these patterns that there are.
func (s System) replaceThose(patterns []string, content []byte) error {
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(s.Root, pattern))
		if err != nil {
			return err // never: the patterns are ours
		}
		for _, path := range found {
			if _, err := os.Stat(path); err != nil {
				continue // a link to nowhere
			}
			if err := s.replace(path, content); err != nil {
				return err
			}
		}
	}
	return nil
}

func certificatesOf(bundle []byte) []*x509.Certificate {
	var found []*x509.Certificate
	for block := range trust.Certificates(bundle) {
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
			found = append(found, certificate)
		}
	}
	return found
}

func rawOf(certificates []*x509.Certificate) [][]byte {
	raw := make([][]byte, len(certificates))
	for i, certificate := range certificates {
		raw[i] = certificate.Raw
	}
	return raw
}
