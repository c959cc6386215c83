package sandbox

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
	"syscall"
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

// dialFunc connects to a port inside a sandbox.
type dialFunc func(ctx context.Context, port uint16) (net.Conn, error)

// agentClient speaks to the host-only port of the agent in one sandbox.
type agentClient struct {
	dial dialFunc
	http *http.Client
}

func newAgentClient(dial dialFunc) *agentClient {
	return &agentClient{dial: dial, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx, hostapi.HostPort)
		},
		MaxIdleConns:           1,
		MaxResponseHeaderBytes: 16 << 10,
	}}}
}

func (a *agentClient) close() { a.http.CloseIdleConnections() }

// init tells the agent who it is, as soon as it listens or until ctx ends.
func (a *agentClient) init(ctx context.Context, request hostapi.Init) error {
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := a.post(ctx, "/init", request, nil)
		if err == nil || !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

func (a *agentClient) warm(ctx context.Context, languages []string) error {
	return a.post(ctx, "/warm", hostapi.Warm{Languages: languages}, nil)
}

func (a *agentClient) relieve(ctx context.Context, limit int64) (hostapi.Relieved, error) {
	var relieved hostapi.Relieved
	err := a.post(ctx, "/relieve", hostapi.Relieve{LimitBytes: limit}, &relieved)
	return relieved, err
}

func (a *agentClient) post(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := a.http.Do(request)
	if err != nil {
		return fmt.Errorf("agent %s: %w", path, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("agent %s: %w", path, err)
	}
	if response.StatusCode == http.StatusUnprocessableEntity {
		return &InvalidError{Message: string(bytes.TrimSpace(answer))}
	}
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("agent %s: %s: %s", path, response.Status, bytes.TrimSpace(answer))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}

// stream sends a request whose body or answer is long. The error is a *CopyError
// when the agent says that the caller's request is the trouble.
func (a *agentClient) stream(request *http.Request) (io.ReadCloser, error) {
	response, err := a.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("agent %s: %w", request.URL.Path, err)
	}
	if response.StatusCode/100 == 2 {
		return response.Body, nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if response.StatusCode/100 == 4 {
		return nil, &CopyError{string(bytes.TrimSpace(text))}
	}
	return nil, fmt.Errorf("agent %s: %s: %s", request.URL.Path, response.Status, bytes.TrimSpace(text))
}

// tunnel connects to a port that listens on the sandbox's loopback only.
// ErrPortClosed when none does.
func (a *agentClient) tunnel(ctx context.Context, port uint16) (net.Conn, error) {
	conn, err := a.dial(ctx, hostapi.HostPort)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	host := fmt.Sprintf("127.0.0.1:%d", port)
	_, err = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", host, host)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("agent tunnel: %w", err)
	}
	reader := bufio.NewReaderSize(conn, 4<<10)
	response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("agent tunnel: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		conn.Close()
		if response.StatusCode == http.StatusBadGateway {
			return nil, ErrPortClosed
		}
		return nil, fmt.Errorf("agent tunnel: %s", response.Status)
	}
	if !stop() {
		conn.Close()
		return nil, ctx.Err()
	}
	return &tunnelConn{Conn: conn, reader: reader}, nil
}

// tunnelConn reads first what came in the same packet as the answer to CONNECT.
type tunnelConn struct {
	net.Conn
	reader *bufio.Reader
}

func (c *tunnelConn) Read(p []byte) (int, error) { return c.reader.Read(p) }

// CloseWrite half-closes, which a proxy needs to pass on the end of a request.
func (c *tunnelConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}
