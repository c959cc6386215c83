package kernel

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Limits of a request.
const (
	maxBody     = 8 << 20   // bytes
	maxCode     = 4 << 20   // bytes
	maxEnvVars  = 512       // per run
	maxEnvBytes = 256 << 10 // names and values of a run together
)

// Handler serves E2B's code port.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, "OK") })
	mux.HandleFunc("POST /execute", s.handleExecute)
	mux.HandleFunc("GET /contexts", s.handleList)
	mux.HandleFunc("POST /contexts", s.handleCreate)
	mux.HandleFunc("DELETE /contexts/{id}", s.handleRemove)
	mux.HandleFunc("POST /contexts/{id}/restart", s.handleRestart)
	return mux
}

type executeRequest struct {
	Code      string            `json:"code"`
	ContextID string            `json:"context_id"`
	Language  string            `json:"language"`
	EnvVars   map[string]string `json:"env_vars"`
}

func (s *Server) handleExecute(w http.ResponseWriter, r *http.Request) {
	if want := s.opts.Token(); want != "" {
		got := r.Header.Get("X-Access-Token")
		if subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 {
			s.fail(w, r, &userError{401, "missing or wrong X-Access-Token"})
			return
		}
	}
	var req executeRequest
	if err := decode(w, r, &req); err != nil {
		s.fail(w, r, err)
		return
	}
	if err := req.check(); err != nil {
		s.fail(w, r, err)
		return
	}
	c, err := s.contextOf(req)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.execute(w, r, c, req)
}

func (s *Server) contextOf(req executeRequest) (*codeContext, error) {
	if req.ContextID != "" {
		return s.contextByID(req.ContextID)
	}
	return s.defaultContext(req.Language)
}

func (r executeRequest) check() error {
	if r.ContextID != "" && r.Language != "" {
		return &userError{400, "Only one of context_id or language can be provided"}
	}
	if len(r.Code) > maxCode {
		return &userError{413, fmt.Sprintf("the code has %d bytes; at most %d are allowed: write it to a file and run that", len(r.Code), maxCode)}
	}
	if len(r.EnvVars) > maxEnvVars {
		return &userError{400, fmt.Sprintf("env_vars has %d entries; at most %d are allowed", len(r.EnvVars), maxEnvVars)}
	}
	size := 0
	for name, value := range r.EnvVars {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return &userError{400, fmt.Sprintf("env_vars: %.40q is not a name and value an environment can hold", name)}
		}
		size += len(name) + len(value)
	}
	if size > maxEnvBytes {
		return &userError{400, fmt.Sprintf("env_vars has %d bytes; at most %d are allowed", size, maxEnvBytes)}
	}
	return nil
}

// contextBody is a context as clients know it.
type contextBody struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

func (s *Server) handleList(w http.ResponseWriter, _ *http.Request) {
	list := []contextBody{}
	for _, c := range s.listContexts() {
		list = append(list, contextBody{c.id, c.language, c.dir})
	}
	writeJSON(w, list)
}

func (s *Server) handleCreate(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Cwd      string `json:"cwd"`
		Language string `json:"language"`
	}
	if err := decode(w, r, &req); err != nil {
		s.fail(w, r, err)
		return
	}
	c, err := s.createContext(req.Language, req.Cwd)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if err := s.startContext(r, c); err != nil {
		_ = s.removeContext(c.id)
		s.fail(w, r, err)
		return
	}
	writeJSON(w, contextBody{c.id, c.language, c.dir})
}

// startContext has the kernel running before the client hears of its context,
// so that what the template lacks is said here.
func (s *Server) startContext(r *http.Request, c *codeContext) error {
	if err := c.acquire(r.Context()); err != nil {
		return err
	}
	defer c.release()
	_, err := s.kernel(r.Context(), c)
	return err
}

func (s *Server) handleRemove(w http.ResponseWriter, r *http.Request) {
	if err := s.removeContext(r.PathValue("id")); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) handleRestart(w http.ResponseWriter, r *http.Request) {
	if err := s.restartContext(r.Context(), r.PathValue("id")); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func decode(w http.ResponseWriter, r *http.Request, into any) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	err := json.NewDecoder(r.Body).Decode(into)
	if err == nil {
		return nil
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return &userError{413, fmt.Sprintf("the request has more than %d bytes", maxBody)}
	}
	return &userError{400, fmt.Sprintf("the request is not the JSON expected: %v", err)}
}

// fail answers with a plain text, which is what the clients show.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusInternalServerError
	var mistake *userError
	if errors.As(err, &mistake) {
		status = mistake.status
	}
	if errors.Is(err, errRemoved) {
		status = http.StatusNotFound
	}
	if status == http.StatusInternalServerError {
		s.opts.Log.Error("code request failed", "path", r.URL.Path, "error", err)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(err.Error()))
}

func writeJSON(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}
