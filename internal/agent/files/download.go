package files

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

func (h *Handler) download(w http.ResponseWriter, r *http.Request) error {
	who, err := h.admit(r, read)
	if err != nil {
		return err
	}
	path, err := h.identity.Resolve(r.URL.Query().Get("path"), who)
	if err != nil {
		return err
	}
	compress, err := chooseGzip(r.Header.Values("Accept-Encoding"))
	if err != nil {
		return err
	}
	// Not to block on a pipe that nobody writes to.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("read file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read file: %w", err)
	}
	if info.IsDir() {
		return refuse(http.StatusBadRequest, "path '%s' is a directory", path)
	}
	if !info.Mode().IsRegular() {
		return refuse(http.StatusBadRequest, "path '%s' is not a regular file", path)
	}
	// Some files of /proc open and cannot be read; later it is too late to say so.
	if _, err := f.ReadAt(make([]byte, 1), 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read file: %w", err)
	}

	name := filepath.Base(path)
	w.Header().Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": name}))
	w.Header().Set("Vary", "Accept-Encoding")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case compress && r.Method == http.MethodGet && !aboutPlainBytes(r.Header):
		return sendCompressed(w, f, name)
	case info.Size() == 0:
		// Files of /proc and the like do not tell their size.
		w.Header().Set("Content-Type", contentType(name))
		_, err := pour(w, f)
		return ignoreSent(err)
	}
	w.Header().Set("Content-Type", contentType(name))
	http.ServeContent(w, r, name, info.ModTime(), f)
	return nil
}

// aboutPlainBytes tells whether a request wants a range or has a condition.
// Those are answered without compression.
func aboutPlainBytes(h http.Header) bool {
	for _, name := range []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
		if h.Get(name) != "" {
			return true
		}
	}
	return false
}

func sendCompressed(w http.ResponseWriter, f *os.File, name string) error {
	w.Header().Set("Content-Type", contentType(name))
	w.Header().Set("Content-Encoding", "gzip")
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return fmt.Errorf("compress: %w", err)
	}
	if _, err := pour(z, f); err != nil {
		return ignoreSent(err)
	}
	return ignoreSent(z.Close())
}

// ignoreSent ends an answer whose header is gone already: only breaking the
// connection tells the caller that it is incomplete.
func ignoreSent(err error) error {
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// contentType goes by the name alone; sniffing would read the file twice.
func contentType(name string) string {
	if t := mime.TypeByExtension(filepath.Ext(name)); t != "" {
		return t
	}
	return "application/octet-stream"
}

// chooseGzip reads Accept-Encoding. It compresses when the caller accepts gzip
// and lists no other coding, or does not accept the plain bytes: HTTP libraries
// list all they know with every request, and plain bytes are faster here. The
// error, 406, says that neither is accepted.
func chooseGzip(headers []string) (bool, error) {
	accepted := map[string]bool{}
	others := false
	for item := range strings.SplitSeq(strings.Join(headers, ","), ",") {
		coding, params, _ := strings.Cut(item, ";")
		coding = strings.ToLower(strings.TrimSpace(coding))
		if coding == "" {
			continue
		}
		accepted[coding] = quality(params) > 0
		if accepted[coding] && coding != "gzip" && coding != "identity" {
			others = true
		}
	}
	gzipOK, named := accepted["gzip"]
	if !named {
		gzipOK = accepted["*"]
	}
	plainOK, named := accepted["identity"]
	if !named {
		any, star := accepted["*"]
		plainOK = !star || any
	}
	switch {
	case plainOK && (others || !gzipOK):
		return false, nil
	case gzipOK:
		return true, nil
	}
	return false, refuse(http.StatusNotAcceptable, "no acceptable encoding: the file can be sent as identity or gzip")
}

// quality reads "q=0.5"; 1 when it says nothing.
func quality(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
		if !strings.EqualFold(name, "q") {
			continue
		}
		if q, err := strconv.ParseFloat(value, 64); err == nil {
			return q
		}
	}
	return 1
}
