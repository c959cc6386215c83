package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// MaxUpload bounds one uploaded archive, bytes.
const MaxUpload = 8 << 30

// uploadKept is how long an archive nobody used stays.
const uploadKept = 30 * 24 * time.Hour

var hashPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ErrTooLarge says that an upload is larger than MaxUpload.
var ErrTooLarge = fmt.Errorf("an archive may have %d GiB", int64(MaxUpload)>>30)

// ErrFull says that the server's disk has no room for an upload.
var ErrFull = errors.New("the server's disk is too full to take files; `tombolo prune` may help")

// ErrUploads says that a key has as much uploaded as it may.
var ErrUploads = fmt.Errorf("the key's uploads take %d GiB, or are %d files; those that no build used for an hour make room for others", int64(uploadsMost)>>30, uploadFiles)

// uploadsOf is how much a key may have uploaded, bytes: what its templates and snapshots
// leave of its quota.
func (b *Builds) uploadsOf(ctx context.Context, q sandbox.Quota, keyID string) (int64, error) {
	left, err := b.keptRoom(ctx, q, store.Template{KeyID: keyID})
	if err != nil || left >= uploadsMost {
		return uploadsMost, err
	}
	return max(0, min(uploadsMost, left+sandbox.DiskBytes(sandbox.UploadsDir(b.config.DataDir, keyID)))), nil
}

// uploadsKept is how much of the uploads stays where a key may have so many bytes of
// them: the rest is for those that come.
func uploadsKept(most int64) int64 { return max(most-MaxUpload, most/2) }

// uploadRoom sees that a key may upload one more archive, of so many bytes in all: what
// it used longest ago gives way.
func (b *Builds) uploadRoom(dir string, most int64) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) < uploadFiles && sandbox.DiskBytes(dir) <= uploadsKept(most) {
		return nil
	}
	// Half of the files, so that it need not be done each time.
	keep := kept{bytes: uploadsKept(most), entries: uploadFiles / 2, time: uploadKept}
	if _, err := pruneFolder(dir, keep, b.filesWanted(), false); err != nil {
		return err
	}
	if entries, err = os.ReadDir(dir); err == nil && len(entries) >= uploadFiles {
		err = ErrUploads
	}
	return err
}

// machineUploads is the folder of those that are no key's.
const machineUploads = "machine"

// HasUpload tells whether a key has uploaded the archive with this hash.
func (b *Builds) HasUpload(keyID, hash string) bool {
	path, err := b.uploadPath(keyID, hash)
	if err != nil {
		return false
	}
	now := time.Now()
	return os.Chtimes(path, now, now) == nil // it is about to be used
}

// Upload keeps an archive, tar or tar.gz, for the steps of a key's builds. The
// hash is the client's, over what it has packed (E2B's clients hash the files, not
// the archive), so it is taken as a name, and each key has names of its own. All
// of the archive or nothing is kept.
func (b *Builds) Upload(ctx context.Context, keyID, hash string, archive io.Reader) error {
	path, err := b.uploadPath(keyID, hash)
	if err != nil {
		return err
	}
	q, _, err := b.keyQuota(ctx, keyID)
	if err != nil {
		return err
	}
	most, err := b.uploadsOf(ctx, q, keyID)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := b.uploadRoom(filepath.Dir(path), most); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), partialPrefix)
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	// Another process that starts must not take it for what a dead one left.
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("lock the uploaded archive: %w", err), file.Close())
	}
	room := func() error {
		if sandbox.DiskBytes(filepath.Dir(path)) > most {
			if most < uploadsMost {
				return q.KeptLimit()
			}
			return ErrUploads
		}
		if b.freeBytes() < spareBytes {
			return ErrFull
		}
		return nil
	}
	n, err := io.Copy(file, &uploadReader{ctx: ctx, r: io.LimitReader(archive, MaxUpload+1), room: room})
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("keep the uploaded archive: %w", err)
	}
	if n > MaxUpload {
		return ErrTooLarge
	}
	if err := room(); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// UploadAll keeps those archives of a Dockerfile that are not there yet.
func (b *Builds) UploadAll(ctx context.Context, keyID string, uploads []Upload) error {
	for _, u := range uploads {
		if b.HasUpload(keyID, u.Hash) {
			continue
		}
		archive, to := io.Pipe()
		go func() { to.CloseWithError(u.Write(to)) }()
		err := b.Upload(ctx, keyID, u.Hash, archive)
		archive.Close() // or the writer waits forever
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *Builds) openUpload(keyID, hash string) (*os.File, error) {
	path, err := b.uploadPath(keyID, hash)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the files with the hash %s were not uploaded", hash)
	}
	return file, err
}

func (b *Builds) uploadPath(keyID, hash string) (string, error) {
	if !hashPattern.MatchString(hash) {
		return "", fmt.Errorf("%.80q is not a hash of files: 64 hex digits are", hash)
	}
	return filepath.Join(sandbox.UploadsDir(b.config.DataDir, cmp.Or(keyID, machineUploads)), hash), nil
}

// uploadReader stops reading when its context ends or the disk has no room.
type uploadReader struct {
	ctx  context.Context
	r    io.Reader
	room func() error // says that there is none
	left int64        // until the room is looked at again, bytes
}

// roomEvery is after how many bytes of an upload the room is looked at.
const roomEvery = 16 << 20

func (r *uploadReader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	if r.left <= 0 {
		if err := r.room(); err != nil {
			return 0, err
		}
		r.left = roomEvery
	}
	n, err := r.r.Read(p)
	r.left -= int64(n)
	return n, err
}
