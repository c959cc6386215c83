// Package trust knows where systems keep the certificates that their programs trust.
// Paths are relative to the root of such a system.
package trust

import (
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"iter"
)

// Bundle is the file of Debian and its relatives, PEM.
const Bundle = "etc/ssl/certs/ca-certificates.crt"

// Bundles are the files of all families, one or several to a system: Debian, Alpine and
// Arch; Red Hat and its relatives, old and new; SUSE; Alpine and BSD's libraries.
var Bundles = []string{
	Bundle,
	"etc/pki/tls/certs/ca-bundle.crt",
	"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"etc/ssl/ca-bundle.pem",
	"var/lib/ca-certificates/ca-bundle.pem",
	"etc/ssl/cert.pem",
}

// Anchors are the folders from which the tools of a family make those files anew, so
// that what is there stays, by a file or folder that tells the family.
var Anchors = map[string]string{
	"etc/debian_version":      "usr/local/share/ca-certificates",
	"etc/alpine-release":      "usr/local/share/ca-certificates",
	"etc/pki/ca-trust/source": "etc/pki/ca-trust/source/anchors",
	"etc/pki/trust":           "etc/pki/trust/anchors",
}

// OurAnchors matches the names of [Anchor].
const OurAnchors = "tombolo-*.crt"

// Anchor names the file of a certificate in a folder of anchors.
func Anchor(certificate *pem.Block) string {
	sum := sha256.Sum256(certificate.Bytes)
	return fmt.Sprintf("tombolo-%x.crt", sum[:8])
}

// Certificates goes over those of a bundle. What else is in it is left out.
func Certificates(bundle []byte) iter.Seq[*pem.Block] {
	return func(yield func(*pem.Block) bool) {
		for rest := bundle; ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				return
			}
			if block.Type == "CERTIFICATE" && !yield(&pem.Block{Type: block.Type, Bytes: block.Bytes}) {
				return
			}
		}
	}
}

// Missing returns the certificates of bundle that own has not, each once.
func Missing(bundle, own []byte) []*pem.Block {
	has := map[[sha256.Size]byte]bool{}
	for block := range Certificates(own) {
		has[sha256.Sum256(block.Bytes)] = true
	}
	var missing []*pem.Block
	for block := range Certificates(bundle) {
		if sum := sha256.Sum256(block.Bytes); !has[sum] {
			has[sum] = true
			missing = append(missing, block)
		}
	}
	return missing
}
