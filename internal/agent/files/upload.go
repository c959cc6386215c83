package files

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
	"github.com/tombolo-dev/tombolo/internal/agent/filesystem"
)

// written is the answer for one file; the names are E2B's.
type written struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// filesLimit is how many files one request may write.
const filesLimit = 10_000

func (h *Handler) upload(w http.ResponseWriter, r *http.Request) error {
	who, err := h.admit(r, write)
	if err != nil {
		return err
	}
	metadata, err := metadataOf(r.Header)
	if err != nil {
		return err
	}
	body, err := plainBody(r)
	if err != nil {
		return err
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return refuse(http.StatusBadRequest, "the Content-Type %q cannot be read: %s", r.Header.Get("Content-Type"), err)
	}
	u := upload{h: h, who: who, path: r.URL.Query().Get("path"), named: r.URL.Query().Has("path"), metadata: metadata}
	switch kind {
	case "multipart/form-data":
		err = u.parts(body, params["boundary"])
	case "application/octet-stream":
		if u.path == "" {
			return refuse(http.StatusBadRequest, "the query parameter path is missing")
		}
		err = u.file(u.path, body)
	default:
		return refuse(http.StatusBadRequest, "send multipart/form-data or application/octet-stream, not %q", kind)
	}
	if err != nil {
		return err
	}
	return writeJSON(w, u.written)
}

// plainBody undoes the Content-Encoding.
func plainBody(r *http.Request) (io.Reader, error) {
	switch coding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); coding {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "the body is not gzip: %s", err)
		}
		return z, nil
	default:
		return nil, refuse(http.StatusBadRequest, "the Content-Encoding %q is not known; send gzip or plain bytes", coding)
	}
}

// upload is the work of one request.
type upload struct {
	h        *Handler
	who      account.Account
	path     string // of the query
	named    bool   // whether the query has one
	metadata map[string]string
	written  []written
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, bufferSize) }}

// parts writes the fields named "file" of a form as they come. Other fields are
// skipped.
func (u *upload) parts(body io.Reader, boundary string) error {
	if boundary == "" {
		return refuse(http.StatusBadRequest, "the multipart body has no boundary")
	}
	// The form reads 4 KiB at a time; each would be a system call.
	ahead := readers.Get().(*bufio.Reader)
	ahead.Reset(body)
	defer func() {
		ahead.Reset(nil)
		readers.Put(ahead)
	}()
	form := multipart.NewReader(ahead, boundary)
	for {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return refuse(http.StatusBadRequest, "read the form: %s", err)
		}
		if part.FormName() != "file" {
			continue
		}
		if len(u.written) == filesLimit {
			return refuse(http.StatusBadRequest, "there are more than %d files in one request", filesLimit)
		}
		path, err := u.partPath(part.Header.Get("Content-Disposition"))
		if err != nil {
			return err
		}
		if err := u.file(path, part); err != nil {
			return err
		}
	}
	if len(u.written) == 0 {
		return refuse(http.StatusBadRequest, "the form has no field named file")
	}
	return nil
}

// partPath is where a part goes: to the path of the query, which can serve one
// part only, or to the part's own name.
func (u *upload) partPath(disposition string) (string, error) {
	if u.named && u.path != "" {
		if len(u.written) > 0 {
			return "", refuse(http.StatusBadRequest, "the query parameter path serves one file; leave it out and name each part to send several")
		}
		return u.path, nil
	}
	return fileName(disposition)
}

// fileName reads the whole path from a part's Content-Disposition; the standard
// library gives its last element only.
func fileName(disposition string) (string, error) {
	_, params, err := mime.ParseMediaType(disposition)
	if err != nil {
		return "", refuse(http.StatusBadRequest, "the Content-Disposition %q cannot be read: %s", disposition, err)
	}
	name := params["filename"]
	if name == "" {
		return "", refuse(http.StatusBadRequest, "a part has no file name, and the query no path")
	}
	return name, nil
}

// file writes one file, and notes it for the answer.
func (u *upload) file(path string, content io.Reader) error {
	resolved, err := u.h.identity.Resolve(path, u.who)
	if err != nil {
		return err
	}
	if err := u.write(resolved, content); err != nil {
		return err
	}
	u.written = append(u.written, written{
		Path: resolved, Name: filepath.Base(resolved), Type: "file", Metadata: u.metadata,
	})
	return nil
}

// write puts content at path. An existing file is written in place, as E2B does:
// it keeps its mode, its links and who has it open. A failure removes what was
// not there before.
func (u *upload) write(path string, content io.Reader) error {
	if err := filesystem.MakeDirs(filepath.Dir(path), u.who); err != nil {
		return fmt.Errorf("make the folder of %s: %w", path, err)
	}
	f, isNew, err := open(path)
	if err != nil {
		return err
	}
	err = u.fill(f, path, content)
	if closeErr := f.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("write %s: %w", path, closeErr)
	}
	if err != nil && isNew {
		_ = os.Remove(path)
	}
	return err
}

func (u *upload) fill(f *os.File, path string, content io.Reader) error {
	if os.Geteuid() == 0 {
		if err := f.Chown(int(u.who.UID), int(u.who.GID)); err != nil {
			return fmt.Errorf("give %s to %s: %w", path, u.who.Name, err)
		}
	}
	if _, err := pour(f, content); err != nil {
		return describeSpace(path, err)
	}
	return filesystem.SetMetadata(int(f.Fd()), path, u.metadata)
}

// describeSpace says what to do about a full disk.
func describeSpace(path string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return refuse(http.StatusInsufficientStorage, "not enough disk space for %s; remove files or give the sandbox a larger disk", path)
	}
	return err
}

// open opens a file to be overwritten and tells whether it made it. A path that
// is something else than a file is refused before it is touched.
func open(path string) (*os.File, bool, error) {
	const mode = 0o666 // less the umask
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err == nil {
		return f, true, nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return nil, false, fmt.Errorf("write file: %w", err)
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil, false, refuse(http.StatusBadRequest, "path is a directory: %s", path)
	case err == nil && !info.Mode().IsRegular():
		return nil, false, refuse(http.StatusBadRequest, "path is not a regular file: %s", path)
	}
	// Without a file here it is a link to a place where one will be.
	f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NONBLOCK, mode)
	if err != nil {
		return nil, false, fmt.Errorf("write file: %w", err)
	}
	return f, false, nil
}
