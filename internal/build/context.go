package build

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/tombolo-dev/tombolo/internal/image"
)

// LoginFor finds the login for the registry of an image; nil is none.
type LoginFor func(image string) (*image.Login, error)

// Upload is an archive that a plan copies from.
type Upload struct {
	// Hash is over names, kinds, modes and contents, not over times: equal files give
	// an equal hash.
	Hash string
	// Files and Bytes are how much is in it.
	Files int
	Bytes int64

	context *buildContext
	entries []packedEntry
}

// Limits on what one COPY takes from the context.
const (
	contextFiles = 500_000
	contextBytes = MaxUpload
)

// packing is what one COPY or ADD takes.
type packing struct {
	sources  []string
	contents []instructions.SourceContent
	exclude  []string
	parents  bool // keep the paths of sources
	apart    bool // files that are archives are to be unpacked
}

// packed is the archive of a COPY, and by which names its step copies from it.
type packed struct {
	upload Upload
	names  []string
	notes  []string
}

// packedEntry is one entry of an archive to be written.
type packedEntry struct {
	name string // in the archive
	file string // in the context; empty for contents given here
	data []byte
	mode fs.FileMode
	size int64
	link string
	time time.Time
}

// buildContext is the folder that a Dockerfile copies from. Nothing outside of it
// is read, whatever its links say.
type buildContext struct {
	root    *os.Root
	ignored *patternmatcher.PatternMatcher
	negated bool // some patterns take back others
}

// ignoreFile names what is left out of a context.
const ignoreFile = ".dockerignore"

const ignoreBytes = 1 << 20

func openContext(root *os.Root, ignore []byte) (*buildContext, error) {
	c := &buildContext{root: root}
	if root == nil {
		return c, nil
	}
	if ignore == nil {
		text, err := root.ReadFile(ignoreFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read %s: %w", ignoreFile, err)
		}
		ignore = text
	}
	if len(ignore) > ignoreBytes {
		return nil, fmt.Errorf("%s is longer than %d KiB", ignoreFile, ignoreBytes>>10)
	}
	patterns, err := ignorefile.ReadAll(bytes.NewReader(ignore))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ignoreFile, err)
	}
	if c.ignored, err = patternmatcher.New(patterns); err != nil {
		return nil, fmt.Errorf("%s: %w", ignoreFile, err)
	}
	c.negated = c.ignored.Exclusions()
	return c, nil
}

// pack finds the files of a COPY and hashes them.
func (c *buildContext) pack(p packing) (packed, error) {
	w := &packer{context: c, packing: p}
	for _, content := range p.contents {
		w.things = append(w.things, thing{name: path.Base(content.Path), data: []byte(content.Data)})
	}
	if len(p.sources) > 0 && c.root == nil {
		return packed{}, errors.New("there is no context to copy files from")
	}
	if len(p.exclude) > 0 {
		matcher, err := patternmatcher.New(p.exclude)
		if err != nil {
			return packed{}, fmt.Errorf("--exclude: %w", err)
		}
		w.excluded = matcher
	}
	for _, source := range p.sources {
		if err := w.find(source); err != nil {
			return packed{}, err
		}
	}
	names, err := w.arrange()
	if err != nil {
		return packed{}, err
	}
	upload := Upload{context: c, entries: w.entries, Files: len(w.entries), Bytes: w.bytes}
	sum := sha256.New()
	if err := upload.write(nil, sum); err != nil {
		return packed{}, err
	}
	upload.Hash = hex.EncodeToString(sum.Sum(nil))
	return packed{upload, names, w.notes}, nil
}

// packer collects the entries of one archive.
type packer struct {
	packing
	context  *buildContext
	excluded *patternmatcher.PatternMatcher
	things   []thing
	entries  []packedEntry
	bytes    int64
	notes    []string
}

// thing is a file or folder that a source names, or a content.
type thing struct {
	name   string // it gets, for a file
	file   string // in the context
	folder bool
	data   []byte
}

// find finds what a source names. As in Docker, a link that a source names is
// followed, and a path cannot lead out of the context.
func (w *packer) find(source string) error {
	root := w.context.root
	clean := strings.TrimPrefix(path.Clean("/"+source), "/")
	if clean == "" {
		clean = "."
	}
	found := []string{clean}
	if strings.ContainsAny(clean, `*?[\`) {
		matches, err := fs.Glob(root.FS(), clean)
		if err != nil {
			return fmt.Errorf("%q is not a pattern: %w", source, err)
		}
		found = matches
	}
	some := false
	for _, file := range found {
		real, err := followLinks(root, file)
		if err != nil {
			continue
		}
		info, err := root.Stat(real)
		if err != nil || w.ignored(file, info.IsDir()) || w.ignored(real, info.IsDir()) {
			continue
		}
		some = true
		below := file
		if !w.parents {
			below = path.Base(file)
		}
		if (w.parents || !info.IsDir()) && w.isExcluded(below, info.IsDir()) {
			continue
		}
		if !info.IsDir() && !info.Mode().IsRegular() {
			return fmt.Errorf("%q is neither a file nor a folder", file)
		}
		w.things = append(w.things, thing{name: path.Base(file), file: real, folder: info.IsDir()})
	}
	if !some {
		return fmt.Errorf("%q: the context has no such file, or %s leaves it out", source, ignoreFile)
	}
	return nil
}

// linksMost bounds the links that a path leads over, as Linux does.
const linksMost = 40

// followLinks is the path without links that a path in the context leads to. To links
// the context is all there is: it is what "/" means, and nothing is above it.
func followLinks(root *os.Root, file string) (string, error) {
	done, rest := ".", strings.Split(file, "/")
	for links := 0; len(rest) > 0; {
		next := strings.TrimPrefix(path.Join("/", done, rest[0]), "/")
		rest = rest[1:]
		if next == "" {
			done = "."
			continue
		}
		info, err := root.Lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		link, err := root.Readlink(next)
		if links++; err != nil || links > linksMost {
			return "", errors.Join(err, fs.ErrNotExist)
		}
		if path.IsAbs(link) {
			done = "."
		}
		rest = append(strings.Split(link, "/"), rest...)
	}
	return done, nil
}

// ignored tells whether .dockerignore leaves a file out. A folder that is left out may
// hold files that are not.
func (w *packer) ignored(file string, folder bool) bool {
	if file == "." || w.context.ignored == nil || folder && w.context.negated {
		return false
	}
	left, err := w.context.ignored.MatchesOrParentMatches(file)
	return err == nil && left
}

// isExcluded tells whether --exclude leaves out what has this path below its source.
func (w *packer) isExcluded(below string, folder bool) bool {
	if below == "." || w.excluded == nil || folder && w.excluded.Exclusions() {
		return false
	}
	left, err := w.excluded.MatchesOrParentMatches(below)
	return err == nil && left
}

// arrange lays the things out so that the agent's copy does with them what Docker
// does, and returns the names by which it is to copy.
func (w *packer) arrange() ([]string, error) {
	if w.parents {
		for _, t := range w.things {
			name := t.name
			if t.data == nil {
				name = t.file
			}
			if err := w.add(t, name); err != nil {
				return nil, err
			}
		}
		return w.all(), nil
	}
	if w.apart && slices.ContainsFunc(w.things, w.context.isArchive) {
		var names []string
		for i, t := range w.things {
			name := fmt.Sprint(i)
			if !t.folder {
				name = path.Join(name, t.name)
			}
			if err := w.add(t, name); err != nil {
				return nil, err
			}
			names = append(names, name)
		}
		return names, nil
	}
	if len(w.things) == 1 && !w.things[0].folder {
		return []string{w.things[0].name}, w.add(w.things[0], w.things[0].name)
	}
	for _, t := range w.things {
		name := "."
		if !t.folder {
			name = t.name
		}
		if err := w.add(t, name); err != nil {
			return nil, err
		}
	}
	return w.all(), nil
}

// all are the names of all entries; where there is none an empty folder is one.
func (w *packer) all() []string {
	if len(w.entries) == 0 {
		w.entries = append(w.entries, packedEntry{name: ".", mode: fs.ModeDir | 0o755})
	}
	return []string{"."}
}

// isArchive tells whether ADD unpacks a file, as far as its first bytes tell.
func (c *buildContext) isArchive(t thing) bool {
	if t.folder || t.file == "" {
		return false
	}
	f, err := c.root.Open(t.file)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 512)
	n, _ := io.ReadFull(f, head)
	head = head[:n]
	for _, magic := range []string{"\x1f\x8b", "BZh", "\xfd7zXZ\x00", "\x28\xb5\x2f\xfd"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return true
		}
	}
	return n == 512 && string(head[257:262]) == "ustar"
}

// add adds a thing under a name; the name of a folder's contents begins with it.
func (w *packer) add(t thing, name string) error {
	if t.data != nil || t.file == "" {
		return w.entry(packedEntry{name: name, data: t.data, mode: 0o644, size: int64(len(t.data))})
	}
	if !t.folder {
		info, err := w.context.root.Stat(t.file)
		if err != nil {
			return err
		}
		return w.file(t.file, name, info)
	}
	if name != "." {
		if err := w.entry(packedEntry{name: name, mode: fs.ModeDir | 0o755}); err != nil {
			return err
		}
	}
	below := ""
	if w.parents {
		below = name
	}
	// A link to the folder is followed, what is below is walked by its own names.
	return w.walk(t.file, name, below)
}

// walk adds what is in a folder of the context, which has a name in the archive and a
// path below the source.
func (w *packer) walk(folder, name, below string) error {
	entries, err := fs.ReadDir(w.context.root.FS(), folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		file, as, under := path.Join(folder, e.Name()), path.Join(name, e.Name()), path.Join(below, e.Name())
		if w.ignored(file, e.IsDir()) || w.isExcluded(under, e.IsDir()) {
			continue
		}
		info, err := w.context.root.Lstat(file)
		if err != nil {
			return err
		}
		if info.IsDir() {
			// Of a folder that is left out only what is taken back is copied.
			if !w.context.negated || !w.ignoredItself(file) {
				if err := w.entry(packedEntry{name: as, mode: info.Mode(), time: info.ModTime()}); err != nil {
					return err
				}
			}
			if err := w.walk(file, as, under); err != nil {
				return err
			}
			continue
		}
		if err := w.file(file, as, info); err != nil {
			return err
		}
	}
	return nil
}

func (w *packer) ignoredItself(file string) bool {
	left, err := w.context.ignored.MatchesOrParentMatches(file)
	return err == nil && left
}

func (w *packer) file(file, name string, info fs.FileInfo) error {
	e := packedEntry{name: name, file: file, mode: info.Mode(), time: info.ModTime()}
	switch {
	case info.Mode().IsRegular():
		e.size = info.Size()
	case info.Mode()&fs.ModeSymlink != 0:
		link, err := w.context.root.Readlink(file)
		if err != nil {
			return err
		}
		e.link = link
	default:
		w.notes = append(w.notes, fmt.Sprintf("%s is neither a file, a folder nor a link and is left out", file))
		return nil
	}
	return w.entry(e)
}

func (w *packer) entry(e packedEntry) error {
	w.bytes += e.size
	if len(w.entries) >= contextFiles || w.bytes > contextBytes {
		return fmt.Errorf("it copies more than %d files or %d GiB; leave some out by %s", contextFiles, int64(contextBytes)>>30, ignoreFile)
	}
	w.entries = append(w.entries, e)
	return nil
}

// Write writes the archive, a tar. It fails when the files are no longer those of
// the hash.
func (u Upload) Write(to io.Writer) error {
	out := tar.NewWriter(to)
	sum := sha256.New()
	if err := u.write(out, sum); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != u.Hash {
		return errors.New("files of the context were changed while they were read; build again")
	}
	return out.Close()
}

// write hashes all entries and, unless out is nil, writes them.
func (u Upload) write(out *tar.Writer, sum hash.Hash) error {
	for _, e := range u.entries {
		if err := u.writeEntry(out, sum, e); err != nil {
			return fmt.Errorf("pack %s: %w", e.name, err)
		}
	}
	return nil
}

func (u Upload) writeEntry(out *tar.Writer, sum hash.Hash, e packedEntry) error {
	h := &tar.Header{Name: e.name, Mode: unixMode(e.mode), Format: tar.FormatPAX, ModTime: e.time.Truncate(time.Second)}
	if e.time.IsZero() {
		h.ModTime = time.Unix(0, 0)
	}
	switch {
	case e.mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, e.name+"/"
	case e.mode&fs.ModeSymlink != 0:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
	default:
		h.Typeflag, h.Size = tar.TypeReg, e.size
	}
	fmt.Fprintf(sum, "%c %q %o %d %q\n", h.Typeflag, h.Name, h.Mode, h.Size, h.Linkname)
	to := io.Writer(sum)
	if out != nil {
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		to = io.MultiWriter(sum, out)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	if e.file == "" {
		_, err := to.Write(e.data)
		return err
	}
	f, err := u.context.root.Open(e.file)
	if err != nil {
		return err
	}
	defer f.Close()
	if n, err := io.Copy(to, io.LimitReader(f, e.size)); err != nil || n != e.size {
		return errors.Join(err, fmt.Errorf("it has %d bytes and had %d", n, e.size))
	}
	return nil
}

// unixMode are the permission bits of a mode.
func unixMode(mode fs.FileMode) int64 {
	bits := int64(mode.Perm())
	for special, bit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&special != 0 {
			bits |= bit
		}
	}
	return bits
}
