package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Socket is where the server of a data folder listens.
func Socket(dataDir string) string { return filepath.Join(dataDir, "control.sock") }

// Listen opens the socket; only root may connect. The caller holds the lock that
// makes its server the only one, so what another left is removed.
func Listen(dataDir string) (net.Listener, error) {
	path := Socket(dataDir)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on the control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		return nil, err
	}
	return listener, nil
}

// Client speaks to the server of a data folder.
type Client struct {
	socket string
	http   *http.Client
}

// ErrNoServer: no server runs on the data folder.
var ErrNoServer = errors.New("no server runs on this data folder")

// Dial finds the server of a data folder. ErrNoServer when there is none.
func Dial(ctx context.Context, dataDir string) (*Client, Server, error) {
	c := &Client{socket: Socket(dataDir)}
	c.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return c.connect(ctx)
	}}}
	conn, err := c.connect(ctx)
	if errors.Is(err, os.ErrPermission) {
		return nil, Server{}, fmt.Errorf("the socket %s is for root only: run it with sudo", c.socket)
	}
	if err != nil {
		return nil, Server{}, fmt.Errorf("%w: %s", ErrNoServer, dataDir)
	}
	conn.Close()
	var server Server
	return c, server, c.do(ctx, http.MethodGet, "/server", nil, &server)
}

// HTTP is the client of the socket, for the other API that is served on it. Whatever
// host it is told, it goes there.
func (c *Client) HTTP() *http.Client { return c.http }

func (c *Client) connect(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", c.socket)
}

// Create makes a sandbox.
func (c *Client) Create(ctx context.Context, req sandbox.CreateRequest) (info sandbox.Info, err error) {
	return info, c.do(ctx, http.MethodPost, "/sandboxes", req, &info)
}

// List lists the live sandboxes of all keys.
func (c *Client) List(ctx context.Context) (infos []sandbox.Info, err error) {
	return infos, c.do(ctx, http.MethodGet, "/sandboxes", nil, &infos)
}

// Get finds a live sandbox.
func (c *Client) Get(ctx context.Context, id string) (info sandbox.Info, err error) {
	return info, c.do(ctx, http.MethodGet, of(id), nil, &info)
}

// Kill ends a sandbox, running or paused.
func (c *Client) Kill(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodDelete, of(id), nil, nil)
}

// Pause saves a sandbox and ends its processes.
func (c *Client) Pause(ctx context.Context, id string, req PauseRequest) error {
	return c.do(ctx, http.MethodPost, of(id)+"/pause", req, nil)
}

// Resume brings a paused sandbox back, and gives a running one more time.
func (c *Client) Resume(ctx context.Context, id string, req sandbox.ResumeRequest) (resumed Resumed, err error) {
	return resumed, c.do(ctx, http.MethodPost, of(id)+"/resume", req, &resumed)
}

// SetTimeout makes a running sandbox end, or be paused, so long from now.
func (c *Client) SetTimeout(ctx context.Context, id string, d time.Duration) (info sandbox.Info, err error) {
	return info, c.do(ctx, http.MethodPost, of(id)+"/timeout", TimeoutRequest{d}, &info)
}

// Fork copies a running sandbox.
func (c *Client) Fork(ctx context.Context, id string, req sandbox.ForkRequest) (forks []Fork, err error) {
	return forks, c.do(ctx, http.MethodPost, of(id)+"/fork", req, &forks)
}

// Snapshot saves a running sandbox as a template.
func (c *Client) Snapshot(ctx context.Context, id string, req sandbox.SnapshotRequest) (t store.Template, err error) {
	return t, c.do(ctx, http.MethodPost, of(id)+"/snapshots", req, &t)
}

// Logs returns what is kept of a sandbox's log.
func (c *Client) Logs(ctx context.Context, id string) (lines []sandbox.LogLine, err error) {
	return lines, c.do(ctx, http.MethodGet, of(id)+"/logs", nil, &lines)
}

// Metrics returns what was measured of a sandbox since a time.
func (c *Client) Metrics(ctx context.Context, id string, from time.Time) (points []sandbox.Metric, err error) {
	query := url.Values{"from": {from.UTC().Format(time.RFC3339Nano)}}
	return points, c.do(ctx, http.MethodGet, of(id)+"/metrics?"+query.Encode(), nil, &points)
}

// DeleteTemplate deletes a template, or what a ref with a tag means of it.
func (c *Client) DeleteTemplate(ctx context.Context, ref string) error {
	return c.do(ctx, http.MethodDelete, "/templates/"+url.PathEscape(ref), nil, nil)
}

// of is the path of a sandbox.
func of(id string) string { return "/sandboxes/" + url.PathEscape(id) }

// Dial connects to a port inside a sandbox.
func (c *Client) Dial(ctx context.Context, id string, port uint16) (net.Conn, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	// The answer comes when the sandbox's port has answered, which may be never.
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	reader, err := upgrade(conn, fmt.Sprintf("%s/ports/%d", of(id), port))
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &upgraded{UnixConn: conn.(*net.UnixConn), reader: reader}, nil
}

// upgrade makes an HTTP connection one of bytes, to be read from the reader.
func upgrade(conn net.Conn, path string) (*bufio.Reader, error) {
	_, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: tombolo\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n", path)
	if err != nil {
		return nil, err
	}
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		return nil, readFailure(response)
	}
	return reader, nil
}

// upgraded reads first what came together with the answer's head. It can be
// half-closed, as the connection inside can.
type upgraded struct {
	*net.UnixConn
	reader *bufio.Reader
}

func (u *upgraded) Read(p []byte) (int, error) { return u.reader.Read(p) }

// WriteTo of the connection would pass by what is buffered.
func (u *upgraded) WriteTo(w io.Writer) (int64, error) { return u.reader.WriteTo(w) }

func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://tombolo"+path, body)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return readFailure(response)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(out)
}

// readFailure makes the error of an answer that the server's own code made.
func readFailure(response *http.Response) error {
	var f failure
	if err := json.NewDecoder(io.LimitReader(response.Body, maxBody)).Decode(&f); err != nil {
		return fmt.Errorf("the server answered %s", response.Status)
	}
	if known, ok := kinds[f.Kind]; ok {
		return &remoteError{message: f.Message, kind: known}
	}
	return errors.New(f.Message)
}

type remoteError struct {
	message string
	kind    error
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.kind }
