// Package control is the server's own API, for the machine's owner: it is served
// on a Unix socket in the data folder, and who may open that socket (root) may do
// everything to every sandbox, whoever's key made it. Package control has both
// ends: the handler and the client of the command line.
package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/api/record"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Server is what a server tells about itself.
type Server struct {
	Address string `json:"address"`          // http://host:port
	Domain  string `json:"domain,omitempty"` // of sandboxes' https names, with :port
	CAFile  string `json:"caFile,omitempty"` // of the private authority, if that certifies them
	PID     int    `json:"pid"`
	Version string `json:"version"`
}

// maxBody bounds a request body, bytes.
const maxBody = 1 << 20

type handler struct {
	core   sandbox.Sandboxes
	server Server
	log    *slog.Logger
}

// New returns the handler.
//
//	GET    /server                        Server
//	GET    /sandboxes                     []sandbox.Info
//	POST   /sandboxes                     sandbox.CreateRequest -> sandbox.Info
//	GET    /sandboxes/{id}                sandbox.Info
//	DELETE /sandboxes/{id}
//	POST   /sandboxes/{id}/pause          PauseRequest
//	POST   /sandboxes/{id}/resume         sandbox.ResumeRequest -> Resumed
//	POST   /sandboxes/{id}/timeout        TimeoutRequest -> sandbox.Info
//	POST   /sandboxes/{id}/fork           sandbox.ForkRequest -> []Fork
//	POST   /sandboxes/{id}/snapshots      sandbox.SnapshotRequest -> store.Template
//	GET    /sandboxes/{id}/logs           []sandbox.LogLine
//	GET    /sandboxes/{id}/metrics?from=  []sandbox.Metric; from is RFC 3339
//	POST   /sandboxes/{id}/ports/{port}   101, then the bytes of a connection
//	DELETE /templates/{id or name}
func New(core sandbox.Sandboxes, server Server, log *slog.Logger) http.Handler {
	h := &handler{core: core, server: server, log: log}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /server", func(w http.ResponseWriter, _ *http.Request) { h.answer(w, h.server, nil) })
	mux.HandleFunc("GET /sandboxes", func(w http.ResponseWriter, _ *http.Request) {
		h.answer(w, h.core.List(sandbox.Filter{}), nil)
	})
	mux.HandleFunc("POST /sandboxes", takes(h, func(r *http.Request, req sandbox.CreateRequest) (any, error) {
		info, err := h.core.Create(r.Context(), req)
		record.Sandbox(r.Context(), info.ID)
		return info, err
	}))
	mux.HandleFunc("GET /sandboxes/{id}", func(w http.ResponseWriter, r *http.Request) {
		info, err := h.core.Get(r.PathValue("id"))
		h.answer(w, info, err)
	})
	mux.HandleFunc("DELETE /sandboxes/{id}", func(w http.ResponseWriter, r *http.Request) {
		h.answer(w, struct{}{}, h.core.Kill(r.Context(), r.PathValue("id"), "killed on the command line"))
	})
	mux.HandleFunc("POST /sandboxes/{id}/pause", takes(h, func(r *http.Request, req PauseRequest) (any, error) {
		return struct{}{}, h.core.Pause(r.Context(), r.PathValue("id"), req.DiskOnly)
	}))
	mux.HandleFunc("POST /sandboxes/{id}/resume", takes(h, func(r *http.Request, req sandbox.ResumeRequest) (any, error) {
		info, resumed, err := h.core.Resume(r.Context(), r.PathValue("id"), req)
		return Resumed{Info: info, Resumed: resumed}, err
	}))
	mux.HandleFunc("POST /sandboxes/{id}/timeout", takes(h, func(r *http.Request, req TimeoutRequest) (any, error) {
		return h.core.SetTimeout(r.Context(), r.PathValue("id"), req.Timeout, false)
	}))
	mux.HandleFunc("POST /sandboxes/{id}/fork", takes(h, func(r *http.Request, req sandbox.ForkRequest) (any, error) {
		forks, err := h.core.Fork(r.Context(), r.PathValue("id"), req)
		for i, f := range forks {
			record.Note(r.Context(), fmt.Sprintf("fork %d", i+1), f.Info.ID)
		}
		return encodeForks(forks), err
	}))
	mux.HandleFunc("POST /sandboxes/{id}/snapshots", takes(h, h.snapshot))
	mux.HandleFunc("GET /sandboxes/{id}/logs", func(w http.ResponseWriter, r *http.Request) {
		lines, err := h.core.Logs(r.PathValue("id"))
		h.answer(w, lines, err)
	})
	mux.HandleFunc("GET /sandboxes/{id}/metrics", h.metrics)
	mux.HandleFunc("POST /sandboxes/{id}/ports/{port}", h.connect)
	mux.HandleFunc("DELETE /templates/{id}", func(w http.ResponseWriter, r *http.Request) {
		h.answer(w, struct{}{}, h.core.DeleteTemplate(r.Context(), r.PathValue("id")))
	})
	return mux
}

// PauseRequest says how a sandbox is paused.
type PauseRequest struct {
	DiskOnly bool `json:"diskOnly,omitempty"` // without its memory
}

// TimeoutRequest says when a running sandbox ends, or is paused: so long from now.
type TimeoutRequest struct {
	Timeout time.Duration `json:"timeout"`
}

// Resumed is a sandbox that runs. Resumed is false when it ran before.
type Resumed struct {
	Info    sandbox.Info `json:"info"`
	Resumed bool         `json:"resumed"`
}

// Fork is one copy, or why it was not made.
type Fork struct {
	Info  sandbox.Info `json:"info,omitzero"`
	Error string       `json:"error,omitempty"`
}

func encodeForks(forks []sandbox.Fork) []Fork {
	encoded := make([]Fork, len(forks))
	for i, f := range forks {
		if f.Err != nil {
			encoded[i].Error = f.Err.Error()
			continue
		}
		encoded[i].Info = f.Info
	}
	return encoded
}

// takes makes a handler of a function from a decoded body to an answer.
func takes[T any](h *handler, do func(r *http.Request, body T) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var body T
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body); err != nil {
			h.answer(w, nil, &sandbox.InvalidError{Message: "the request is not valid JSON: " + err.Error()})
			return
		}
		answer, err := do(r, body)
		h.answer(w, answer, err)
	}
}

func (h *handler) snapshot(r *http.Request, req sandbox.SnapshotRequest) (any, error) {
	if req.Name != "" {
		name := store.SplitName(req.Name)
		if err := name.Check(); err != nil {
			return nil, &sandbox.InvalidError{Message: err.Error()}
		}
		req.Name = name.String()
	}
	return h.core.Snapshot(r.Context(), r.PathValue("id"), req)
}

func (h *handler) metrics(w http.ResponseWriter, r *http.Request) {
	var from time.Time
	if s := r.URL.Query().Get("from"); s != "" {
		var err error
		if from, err = time.Parse(time.RFC3339Nano, s); err != nil {
			h.answer(w, nil, &sandbox.InvalidError{Message: "from must be a time like 2026-01-02T03:04:05Z"})
			return
		}
	}
	points, err := h.core.Metrics(r.PathValue("id"), from, time.Time{})
	h.answer(w, points, err)
}

// connect turns the request's connection into one to a port of the sandbox.
func (h *handler) connect(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil {
		h.answer(w, nil, &sandbox.InvalidError{Message: "the port must be a number from 1 to 65535"})
		return
	}
	inside, err := h.core.Dial(r.Context(), r.PathValue("id"), uint16(port))
	if err != nil {
		h.answer(w, nil, err)
		return
	}
	defer inside.Close()
	outside, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		h.answer(w, nil, err)
		return
	}
	defer outside.Close()
	if _, err := io.WriteString(outside, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"); err != nil {
		return
	}
	var directions sync.WaitGroup
	directions.Go(func() { carry(inside, buffered, inside, outside) })
	directions.Go(func() { carry(outside, inside, inside, outside) })
	directions.Wait()
}

// carry copies until from ends and passes the end on; each direction ends on its
// own. After a failure neither can go on.
func carry(to net.Conn, from io.Reader, both ...net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		half.CloseWrite()
		return
	}
	for _, conn := range both {
		conn.Close()
	}
}

// failure is the body of an error.
type failure struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// kinds are the errors that cross the socket as themselves.
var kinds = map[string]error{
	"not-found":          sandbox.ErrNotFound,
	"port-closed":        sandbox.ErrPortClosed,
	"template-not-found": sandbox.ErrTemplateNotFound,
	"paused":             sandbox.ErrPaused,
	"busy":               sandbox.ErrBusy,
}

func (h *handler) answer(w http.ResponseWriter, body any, err error) {
	status := http.StatusOK
	if err != nil {
		f := failure{Message: err.Error()}
		var limit *sandbox.LimitError
		var invalid *sandbox.InvalidError
		var denied *sandbox.DeniedError
		switch {
		case errors.As(err, &limit):
			status = http.StatusTooManyRequests
		case errors.As(err, &invalid):
			status = http.StatusBadRequest
		case errors.As(err, &denied):
			status, f.Message = http.StatusForbidden, denied.Error()
		default:
			status = http.StatusInternalServerError
		}
		for kind, known := range kinds {
			if errors.Is(err, known) {
				f.Kind, status = kind, http.StatusNotFound
			}
		}
		if errors.Is(err, sandbox.ErrPaused) || errors.Is(err, sandbox.ErrBusy) {
			status = http.StatusConflict
		}
		body = f
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		h.log.Debug("control answer not sent", "error", err)
	}
}
