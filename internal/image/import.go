package image

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/tombolo-dev/tombolo/internal/image/rootfs"
)

// Source is where an image of somebody else's comes from: exactly one of
// Reference and Path.
type Source struct {
	// Reference names an image in a registry, as Docker's pull takes it:
	// "python:3.13", "ghcr.io/owner/name@sha256:…". Without a registry it is Docker Hub's.
	Reference string
	// Login is for the registry of Reference; nil is anonymous.
	Login *Login
	// Path is a docker-archive or an OCI layout on this machine: a tar file or a folder.
	Path string
}

// Login is a user and password, or token, of a registry.
type Login struct {
	User, Password string
}

// Imported is what an import made.
type Imported struct {
	Image
	// Digest is the image's at its source, "sha256:…": that of its manifest for
	// linux/amd64; for a docker-archive, which has none, that of its config.
	Digest string
	Config Config
}

// Config is what an image says about the programs to run in it.
type Config struct {
	Env        []string // NAME=value
	User       string   // name or number, with a group after a ":"; empty is root
	WorkingDir string
	Shell      []string // runs commands in the shell form; empty is /bin/sh -c
	OnBuild    []string // instructions of a Dockerfile
}

// Progress is how far an import or a commit has come.
type Progress struct {
	// Text is a line for people: what happens now.
	Text string
	// Layer of Layers is downloaded or applied; 0 before that is known.
	Layer, Layers int
	// Bytes of TotalBytes have been downloaded; 0 where nothing is.
	Bytes, TotalBytes int64
}

// Import makes a root image out of an image in a registry or on this machine, adds
// what a sandbox needs (see provision) and puts it into the folder, named after the
// digest. An image that is there is not made again. progress, which may be nil, is
// called from one goroutine at a time. When ctx ends, nothing is left behind.
func (b Builder) Import(ctx context.Context, source Source, progress func(Progress)) (Imported, error) {
	var err error
	if b.Dir, err = filepath.Abs(b.Dir); err != nil {
		return Imported{}, fmt.Errorf("find the folder for images: %w", err)
	}
	tell := newTeller(progress)
	tell.say("looking for " + source.String())
	found, err := b.look(ctx, source)
	if err != nil {
		return Imported{}, err
	}
	defer found.close()
	waiting := func() { tell.say("waiting for another import of " + source.String()) }
	image, err := b.produce(ctx, importName(found.digest), waiting, func(w *work) error {
		if b.MayImport != nil {
			if err := b.MayImport(); err != nil {
				return err
			}
		}
		return b.unpack(ctx, w, found, tell)
	})
	if err != nil {
		return Imported{}, fmt.Errorf("import %s: %w", source, err)
	}
	return Imported{Image: image, Digest: found.digest, Config: configOf(found.config.Config)}, nil
}

func (s Source) String() string {
	if s.Reference != "" {
		return s.Reference
	}
	return s.Path
}

// importName is the name of the image that an import of the digest makes. The
// certificates of this machine are not in it: a sandbox is given them when it starts.
func importName(digest string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", provisionVersion, digest))
	return fmt.Sprintf("%s-%x", importedImages, sum[:16])
}

// found is an image at its source.
type found struct {
	digest string
	config *v1.ConfigFile
	layers []layer
	stop   func() // ends what is being read
	close  func()
}

// layer is one of a found image.
type layer struct {
	digest string // of the blob at the source, for messages
	diffID v1.Hash
	size   int64 // of the blob
	// open reads the blob. What it gives is checked against the digest where the
	// source has one.
	open func(ctx context.Context) (io.ReadCloser, error)
	// remote blobs are worth fetching ahead and reporting.
	remote bool
}

// maxImageLayers is more than Docker can use of one image (127).
const maxImageLayers = 500

func (b Builder) look(ctx context.Context, source Source) (*found, error) {
	var f *found
	var err error
	switch {
	case (source.Reference == "") == (source.Path == ""):
		return nil, errors.New("an image comes from a reference or from a path: one of them must be given")
	case source.Reference != "":
		f, err = b.lookInRegistry(ctx, source)
	default:
		f, err = lookInArchive(source.Path)
	}
	if err != nil {
		return nil, err
	}
	if err := b.check(f); err != nil {
		f.close()
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	return f, nil
}

// check refuses what cannot become a root image before anything of it is fetched.
func (b Builder) check(f *found) error {
	limit := b.Limits.Bytes
	if limit == 0 {
		limit = rootfs.DefaultLimits.Bytes
	}
	if os, arch := f.config.OS, f.config.Architecture; os != "linux" || arch != "amd64" {
		return fmt.Errorf("the image is for %s/%s; sandboxes run linux/amd64", os, arch)
	}
	if len(f.layers) > maxImageLayers {
		return &rootfs.LimitError{What: "layers", Limit: maxImageLayers}
	}
	if len(f.layers) != len(f.config.RootFS.DiffIDs) {
		return fmt.Errorf("the image has %d layers and its config names %d", len(f.layers), len(f.config.RootFS.DiffIDs))
	}
	var total int64
	for i := range f.layers {
		l := &f.layers[i]
		l.diffID = f.config.RootFS.DiffIDs[i]
		if l.size < 0 || l.size > limit-total {
			return &rootfs.LimitError{What: "bytes of layers", Limit: limit}
		}
		total += l.size
	}
	return nil
}

func (f *found) size() (total int64) {
	for _, l := range f.layers {
		total += l.size
	}
	return total
}

// unpacking is about how much larger layers are than compressed.
const unpacking = 3

// unpack makes the image out of what was found.
func (b Builder) unpack(ctx context.Context, w *work, f *found, tell *teller) error {
	if err := b.checkSpace(f.size() * (1 + 2*unpacking)); err != nil {
		return err
	}
	tree, err := w.tree(b)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	fetched := fetch(ctx, w, f.layers, tell)
	defer fetched.wait()
	defer f.stop()
	defer stop(nil)
	for i, l := range f.layers {
		if err := b.apply(ctx, tree, fetched, i, l, tell); err != nil {
			return fmt.Errorf("layer %d of %d (%s): %w", i+1, len(f.layers), l.digest, err)
		}
	}
	certificates, err := b.certificates()
	if err != nil {
		return err
	}
	if err := provision(tree, configOf(f.config.Config), certificates); err != nil {
		return fmt.Errorf("add what sandboxes need: %w", err)
	}
	tell.say(fmt.Sprintf("writing the image, %d files", tree.Entries()))
	return w.write(ctx, tree, imageID(filepath.Base(w.dir)), f.config.Created.Unix())
}

func (b Builder) apply(ctx context.Context, tree *rootfs.Tree, fetched *fetching, i int, l layer, tell *teller) error {
	blob, err := fetched.open(ctx, i)
	if err != nil {
		return err
	}
	defer blob.Close()
	tell.layer(i+1, fmt.Sprintf("unpacking layer %d of %d", i+1, len(fetched.layers)))
	plain, err := decompress(blob)
	if err != nil {
		return err
	}
	defer plain.Close()
	sum := sha256.New()
	if err := tree.ApplyLayer(ctx, io.TeeReader(plain, sum)); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != l.diffID.Hex {
		return fmt.Errorf("it is not what the image's config says: its content is sha256:%s and not %s", got, l.diffID)
	}
	return nil
}

// certificates are those this machine trusts.
func (b Builder) certificates() ([]byte, error) {
	bundle := b.CABundle
	if bundle == "" {
		bundle = DefaultCABundle
	}
	text, err := os.ReadFile(bundle)
	if errors.Is(err, fs.ErrNotExist) && b.CABundle == "" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the CA bundle: %w", err)
	}
	return text, nil
}

// maxWindow is how far back a zstd layer may refer, bytes: what zstd itself takes
// without being asked to.
const maxWindow = 128 << 20

// decompress finds out how a layer is compressed by its first bytes.
func decompress(r io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(r, 1<<20)
	magic, _ := buffered.Peek(4)
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(buffered)
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		d, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	default:
		return io.NopCloser(buffered), nil
	}
}

func configOf(c v1.Config) Config {
	return Config{
		Env: slices.DeleteFunc(slices.Clone(c.Env), func(v string) bool {
			name, _, ok := strings.Cut(v, "=")
			return !ok || name == "" || strings.ContainsRune(v, 0)
		}),
		User: c.User, WorkingDir: c.WorkingDir, Shell: c.Shell, OnBuild: c.OnBuild,
	}
}
