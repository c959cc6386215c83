package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// hostCertificates is where the certificates of this machine go, in the tree:
// update-ca-certificates collects from there, so a later run of it keeps them.
const hostCertificates = "usr/local/share/ca-certificates/host"

// trust makes the tree trust what this machine trusts.
func (b *build) trust(ctx context.Context) error {
	bundle := b.CABundle
	if bundle == "" {
		bundle = DefaultCABundle
	}
	text, err := os.ReadFile(bundle)
	if errors.Is(err, fs.ErrNotExist) && b.CABundle == "" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("build template %s: read the CA bundle: %w", b.recipe.Name, err)
	}
	inTree := filepath.Join(b.root, DefaultCABundle)
	own, err := os.ReadFile(inTree)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no ca-certificates in it: nothing there reads a bundle
	}
	if err != nil {
		return fmt.Errorf("build template %s: read the tree's CA bundle: %w", b.recipe.Name, err)
	}
	missing := certificatesNotIn(text, own)
	if len(missing) == 0 {
		return nil
	}
	dir := filepath.Join(b.root, hostCertificates)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, block := range missing {
		name := fmt.Sprintf("%x.crt", sha256.Sum256(block.Bytes))[:16] + ".crt"
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o644); err != nil {
			return err
		}
	}
	return b.inside(ctx, fmt.Sprintf("adding %d certificates of this machine", len(missing)), "update-ca-certificates")
}

// certificatesNotIn returns the certificates of bundle that own has not.
func certificatesNotIn(bundle, own []byte) []*pem.Block {
	has := map[[32]byte]bool{}
	eachCertificate(own, func(block *pem.Block) { has[sha256.Sum256(block.Bytes)] = true })
	var missing []*pem.Block
	eachCertificate(bundle, func(block *pem.Block) {
		if sum := sha256.Sum256(block.Bytes); !has[sum] {
			has[sum] = true
			missing = append(missing, block)
		}
	})
	return missing
}

func eachCertificate(bundle []byte, fn func(*pem.Block)) {
	for rest := bytes.TrimSpace(bundle); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return
		}
		if block.Type == "CERTIFICATE" {
			fn(&pem.Block{Type: block.Type, Bytes: block.Bytes})
		}
	}
}
