// Package control is the server's own API, for the machine's owner: it is served
// on a Unix socket in the data folder, and who may open that socket (root) may do
// everything to every sandbox, whoever's key made it. Package control has both
// ends: the handler and the client of the command line.
package control

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Server is what a server tells about itself.
type Server struct {
	Address string `json:"address"` // http://host:port
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
//	GET    /sandboxes/{id}/logs           []sandbox.LogLine
//	POST   /sandboxes/{id}/ports/{port}   101, then the bytes of a connection
func New(core sandbox.Sandboxes, server Server, log *slog.Logger) http.Handler {
	h := &handler{core: core, server: server, log: log}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /server", func(w http.ResponseWriter, _ *http.Request) { h.answer(w, h.server, nil) })
	mux.HandleFunc("GET /sandboxes", func(w http.ResponseWriter, _ *http.Request) {
		h.answer(w, h.core.List(sandbox.Filter{}), nil)
	})
	mux.HandleFunc("POST /sandboxes", h.create)
	mux.HandleFunc("GET /sandboxes/{id}", func(w http.ResponseWriter, r *http.Request) {
		info, err := h.core.Get(r.PathValue("id"))
		h.answer(w, info, err)
	})
	mux.HandleFunc("DELETE /sandboxes/{id}", func(w http.ResponseWriter, r *http.Request) {
		h.answer(w, struct{}{}, h.core.Kill(r.Context(), r.PathValue("id"), "killed on the command line"))
	})
	mux.HandleFunc("GET /sandboxes/{id}/logs", func(w http.ResponseWriter, r *http.Request) {
		lines, err := h.core.Logs(r.PathValue("id"))
		h.answer(w, lines, err)
	})
	mux.HandleFunc("POST /sandboxes/{id}/ports/{port}", h.connect)
	return mux
}

func (h *handler) create(w http.ResponseWriter, r *http.Request) {
	var req sandbox.CreateRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&req); err != nil {
		h.answer(w, nil, &sandbox.InvalidError{Message: "the request is not valid JSON: " + err.Error()})
		return
	}
	info, err := h.core.Create(r.Context(), req)
	h.answer(w, info, err)
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
}

func (h *handler) answer(w http.ResponseWriter, body any, err error) {
	status := http.StatusOK
	if err != nil {
		f := failure{Message: err.Error()}
		var limit *sandbox.LimitError
		var invalid *sandbox.InvalidError
		switch {
		case errors.As(err, &limit):
			status = http.StatusTooManyRequests
		case errors.As(err, &invalid):
			status = http.StatusBadRequest
		default:
			status = http.StatusInternalServerError
		}
		for kind, known := range kinds {
			if errors.Is(err, known) {
				f.Kind, status = kind, http.StatusNotFound
			}
		}
		body = f
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		h.log.Debug("control answer not sent", "error", err)
	}
}
