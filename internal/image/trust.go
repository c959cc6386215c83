package image

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/trust"
)

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
	missing := trust.Missing(bundle, own)
	if len(missing) == 0 {
		return 0, nil
	}
	folder := trust.Anchors["etc/debian_version"] // the recipes' system
	for _, block := range missing {
		name := path.Join(folder, trust.Anchor(block))
		if err := layFile(tree, file{Path: name, Mode: 0o644, Content: pem.EncodeToMemory(block)}); err != nil {
			return 0, fmt.Errorf("add a certificate: %w", err)
		}
	}
	return len(missing), nil
}
