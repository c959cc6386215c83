package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/tombolo-dev/tombolo/internal/image/rootfs"
)

// maxManifest bounds a manifest or index on this machine, bytes; maxMembers the
// members of an archive.
const (
	maxManifest = 4 << 20
	maxMembers  = 100_000
)

// blobs are the files of an image on this machine.
type blobs interface {
	// open opens a file by its path in the image. The error is fs.ErrNotExist.
	open(name string) (io.ReadCloser, int64, error)
	close()
}

// lookInArchive finds the image in a docker-archive or an OCI layout.
func lookInArchive(at string) (*found, error) {
	files, err := openBlobs(at)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	f, err := lookInBlobs(files)
	if err != nil {
		files.close()
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	f.stop, f.close = func() {}, files.close
	return f, nil
}

func lookInBlobs(files blobs) (*found, error) {
	text, err := readBlob(files, "index.json", maxManifest)
	if err == nil {
		return lookInLayout(files, text)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	text, err = readBlob(files, "manifest.json", maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("is neither an OCI layout nor a docker-archive: there is no index.json and no manifest.json in it")
	}
	if err != nil {
		return nil, err
	}
	return lookInDockerArchive(files, text)
}

// lookInLayout follows an index to the image, through other indexes in it.
func lookInLayout(files blobs, text []byte) (*found, error) {
	for range maxNested {
		index, err := v1.ParseIndexManifest(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("its index cannot be read: %w", err)
		}
		d, err := pick(index)
		if err != nil {
			return nil, err
		}
		if text, err = readVerified(files, d, maxManifest); err != nil {
			return nil, err
		}
		if !d.MediaType.IsIndex() {
			return lookInManifest(files, d.Digest, text)
		}
	}
	return nil, fmt.Errorf("more than %d indexes in one another", maxNested)
}

func lookInManifest(files blobs, digest v1.Hash, text []byte) (*found, error) {
	manifest, err := v1.ParseManifest(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("its manifest cannot be read: %w", err)
	}
	if err := checkManifest(manifest); err != nil {
		return nil, err
	}
	if text, err = readVerified(files, manifest.Config, maxConfig); err != nil {
		return nil, err
	}
	f := &found{digest: digest.String()}
	if f.config, err = v1.ParseConfigFile(bytes.NewReader(text)); err != nil {
		return nil, fmt.Errorf("its config cannot be read: %w", err)
	}
	for _, d := range manifest.Layers {
		l, err := localLayer(files, blobPath(d.Digest))
		if err != nil {
			return nil, err
		}
		f.layers = append(f.layers, l)
	}
	return f, nil
}

// lookInDockerArchive reads what `docker save` wrote before it wrote OCI layouts.
func lookInDockerArchive(files blobs, text []byte) (*found, error) {
	var images []struct {
		Config string
		Layers []string
	}
	if err := json.Unmarshal(text, &images); err != nil {
		return nil, fmt.Errorf("its manifest.json cannot be read: %w", err)
	}
	if len(images) != 1 {
		return nil, fmt.Errorf("there are %d images in it; save one alone", len(images))
	}
	text, err := readBlob(files, images[0].Config, maxConfig)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	f := &found{digest: "sha256:" + hex.EncodeToString(sum[:])}
	if f.config, err = v1.ParseConfigFile(bytes.NewReader(text)); err != nil {
		return nil, fmt.Errorf("its config cannot be read: %w", err)
	}
	for _, file := range images[0].Layers {
		l, err := localLayer(files, file)
		if err != nil {
			return nil, err
		}
		f.layers = append(f.layers, l)
	}
	return f, nil
}

// localLayer is checked against the config's hash of its content alone, when it is
// unpacked.
func localLayer(files blobs, file string) (layer, error) {
	blob, size, err := files.open(file)
	if err != nil {
		return layer{}, fmt.Errorf("layer %s: %w", file, err)
	}
	blob.Close()
	return layer{digest: file, size: size, open: func(context.Context) (io.ReadCloser, error) {
		blob, _, err := files.open(file)
		return blob, err
	}}, nil
}

func blobPath(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

func readVerified(files blobs, d v1.Descriptor, limit int64) ([]byte, error) {
	if d.Digest.Algorithm != "sha256" {
		return nil, fmt.Errorf("%s: only sha256 is known", d.Digest)
	}
	text, err := readBlob(files, blobPath(d.Digest), limit)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != d.Digest.Hex {
		return nil, fmt.Errorf("%s is not what its name says: the archive is damaged", blobPath(d.Digest))
	}
	return text, nil
}

func readBlob(files blobs, name string, limit int64) ([]byte, error) {
	f, size, err := files.open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer f.Close()
	if size > limit {
		return nil, fmt.Errorf("%s: %w", name, &rootfs.LimitError{What: "bytes", Limit: limit})
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

func openBlobs(at string) (blobs, error) {
	info, err := os.Stat(at)
	var wrong *fs.PathError
	if errors.As(err, &wrong) {
		return nil, wrong.Err // the caller names the file
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return openTar(at)
	}
	folder, err := os.OpenRoot(at)
	if err != nil {
		return nil, err
	}
	return blobFolder{folder}, nil
}

// blobFolder reads within its folder, whatever is a link there.
type blobFolder struct{ root *os.Root }

func (b blobFolder) open(name string) (io.ReadCloser, int64, error) {
	info, err := b.root.Stat(name)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, errors.New("is no file")
	}
	f, err := b.root.Open(name)
	return f, info.Size(), err
}

func (b blobFolder) close() { b.root.Close() }

// blobTar knows where each file is in an archive that is not compressed.
type blobTar struct {
	file  *os.File
	spans map[string][2]int64 // offset and size by name
	links map[string]string   // symbolic links, as old docker-archives have to equal layers
}

func openTar(at string) (blobs, error) {
	f, err := os.Open(at)
	if err != nil {
		return nil, err
	}
	b := &blobTar{file: f, spans: map[string][2]int64{}, links: map[string]string{}}
	if err := b.index(); err != nil {
		f.Close()
		return nil, err
	}
	return b, nil
}

func (b *blobTar) index() error {
	var magic [4]byte
	if _, err := b.file.ReadAt(magic[:], 0); err == nil && (magic[0] == 0x1f && magic[1] == 0x8b || magic[0] == 0x28 && magic[1] == 0xb5) {
		return errors.New("is compressed; unpack it first")
	}
	archive := tar.NewReader(b.file)
	for members := 0; ; members++ {
		h, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("is not a tar archive that can be read: %w", err)
		}
		if members > maxMembers {
			return &rootfs.LimitError{What: "files in the archive", Limit: maxMembers}
		}
		name := strings.Clone(path.Clean(h.Name)) // not a part of an extended header, which it would keep
		switch h.Typeflag {
		case tar.TypeReg:
			// The reader reads the file itself, so that is where the content begins.
			offset, err := b.file.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			b.spans[name] = [2]int64{offset, h.Size}
		case tar.TypeSymlink:
			b.links[name] = strings.Clone(path.Join(path.Dir(name), h.Linkname))
		case tar.TypeLink:
			b.links[name] = strings.Clone(path.Clean(h.Linkname))
		}
	}
}

func (b *blobTar) open(name string) (io.ReadCloser, int64, error) {
	name = strings.TrimPrefix(path.Clean(name), "/")
	if to, ok := b.links[name]; ok {
		name = to
	}
	span, ok := b.spans[name]
	if !ok {
		return nil, 0, fs.ErrNotExist
	}
	return io.NopCloser(io.NewSectionReader(b.file, span[0], span[1])), span[1], nil
}

func (b *blobTar) close() { b.file.Close() }
