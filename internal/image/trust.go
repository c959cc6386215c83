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
	"strings"
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
	var added int
	err = b.inTree(func(tree *os.Root) error {
		added, err = addCertificates(tree, text)
		return err
	})
	if err != nil || added == 0 {
		return err
	}
	return b.inside(ctx, fmt.Sprintf("adding %d certificates of this machine", added), "update-ca-certificates")
}

// addCertificates puts those of the bundle that the tree does not trust where
// update-ca-certificates finds them.
func addCertificates(tree *os.Root, bundle []byte) (added int, err error) {
	own, err := tree.ReadFile(strings.TrimPrefix(DefaultCABundle, "/"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // no ca-certificates in it: nothing there reads a bundle
	}
	if err != nil {
		return 0, fmt.Errorf("read the tree's CA bundle: %w", err)
	}
	missing := certificatesNotIn(bundle, own)
	if len(missing) == 0 {
		return 0, nil
	}
	if err := layFile(tree, file{Path: hostCertificates, Dir: true, Mode: 0o755}); err != nil {
		return 0, err
	}
	for _, block := range missing {
		sum := sha256.Sum256(block.Bytes)
		name := fmt.Sprintf("%s/%x.crt", hostCertificates, sum[:8])
		if err := layFile(tree, file{Path: name, Mode: 0o644, Content: pem.EncodeToMemory(block)}); err != nil {
			return 0, fmt.Errorf("add a certificate: %w", err)
		}
	}
	return len(missing), nil
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
