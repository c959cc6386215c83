package host

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"runtime/debug"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/agent/transfer"
)

func (s *Server) copy(w http.ResponseWriter, r *http.Request) {
	var req hostapi.Copy
	if err := json.Unmarshal([]byte(r.URL.Query().Get("copy")), &req); err != nil {
		http.Error(w, "decode the query's copy: "+err.Error(), http.StatusBadRequest)
		return
	}
	err := transfer.Copy(r.Context(), r.Body, req, s.opts.Identity.Accounts())
	debug.FreeOSMemory() // a snapshot may follow
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) archive(w http.ResponseWriter, r *http.Request) {
	req, ok := decode[hostapi.Archive](w, r)
	if !ok {
		return
	}
	picked, err := transfer.Select(req.Patterns)
	if errors.Is(err, fs.ErrNotExist) {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-tar")
	if err := picked.Write(r.Context(), w); err != nil {
		s.opts.Log.Error("archive", "error", err)
		panic(http.ErrAbortHandler) // so that nobody takes it for whole
	}
}
