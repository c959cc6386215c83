package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
	"github.com/tombolo-dev/tombolo/internal/agent/filesystem"
)

// composeLimit bounds the request, bytes.
const composeLimit = 4 << 20

// compose joins files, in their order, to one and removes them.
func (h *Handler) compose(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		SourcePaths []string `json:"source_paths"`
		Destination string   `json:"destination"`
		Username    string   `json:"username"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, composeLimit)).Decode(&req); err != nil {
		return refuse(http.StatusBadRequest, "decode the body: %s", err)
	}
	who, err := h.composeAccount(req.Username, r)
	if err != nil {
		return err
	}
	if len(req.SourcePaths) == 0 || len(req.SourcePaths) > filesLimit {
		return refuse(http.StatusBadRequest, "source_paths has %d paths; 1 to %d are allowed", len(req.SourcePaths), filesLimit)
	}
	if req.Destination == "" {
		return refuse(http.StatusBadRequest, "destination is missing")
	}
	destination, err := h.identity.Resolve(req.Destination, who)
	if err != nil {
		return err
	}
	sources := make([]string, len(req.SourcePaths))
	for i, path := range req.SourcePaths {
		if sources[i], err = h.identity.Resolve(path, who); err != nil {
			return err
		}
	}
	if err := join(sources, destination, who); err != nil {
		return err
	}
	return writeJSON(w, written{Path: destination, Name: filepath.Base(destination), Type: "file"})
}

func (h *Handler) composeAccount(name string, r *http.Request) (account.Account, error) {
	if name != "" {
		return h.identity.Account(name)
	}
	return h.identity.RequestAccount(r.Header)
}

// join gathers the sources in a temporary file beside the destination and
// renames it, so a failure leaves everything as it was, and a destination may be
// a source too.
func join(sources []string, destination string, who account.Account) (err error) {
	if info, err := os.Stat(destination); err == nil && !info.Mode().IsRegular() {
		return refuse(http.StatusBadRequest, "destination is not a regular file: %s", destination)
	}
	for _, source := range sources {
		info, err := os.Stat(source)
		if err != nil {
			return fmt.Errorf("read the source: %w", err)
		}
		if !info.Mode().IsRegular() {
			return refuse(http.StatusBadRequest, "source is not a regular file: %s", source)
		}
	}
	if err := filesystem.MakeDirs(filepath.Dir(destination), who); err != nil {
		return fmt.Errorf("make the folder of %s: %w", destination, err)
	}
	whole, err := os.CreateTemp(filepath.Dir(destination), ".compose-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", destination, err)
	}
	defer func() {
		_ = whole.Close()
		if err != nil {
			_ = os.Remove(whole.Name())
		}
	}()
	for _, source := range sources {
		if err := appendFile(whole, source); err != nil {
			return describeSpace(destination, err)
		}
	}
	const mode = 0o644
	if err := errors.Join(whole.Chmod(mode), filesystem.Own(whole.Name(), who)); err != nil {
		return err
	}
	if err := os.Rename(whole.Name(), destination); err != nil {
		return fmt.Errorf("write %s: %w", destination, err)
	}
	for _, source := range sources {
		if source == destination {
			continue
		}
		if err := os.Remove(source); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove a source: %w", err)
		}
	}
	return nil
}

func appendFile(to *os.File, source string) error {
	f, err := os.Open(source)
	if err != nil {
		return fmt.Errorf("read the source: %w", err)
	}
	defer f.Close()
	_, err = pour(to, f)
	return err
}
