package host

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
)

// tunnel carries bytes between the host and a port of the loopback. Each
// direction ends on its own, as TCP's do.
func (s *Server) tunnel(w http.ResponseWriter, r *http.Request) {
	_, port, err := net.SplitHostPort(r.Host)
	if n, numErr := strconv.ParseUint(port, 10, 16); err != nil || numErr != nil || n == 0 {
		http.Error(w, "CONNECT needs host:port, got "+strconv.Quote(r.Host), http.StatusBadRequest)
		return
	}
	// The request's context ends when the host closes its half, which it may do
	// after it has sent all it has to say.
	inside, err := dialLoopback(context.WithoutCancel(r.Context()), port)
	if err != nil {
		http.Error(w, "nothing listens on port "+port, http.StatusBadGateway)
		return
	}
	defer inside.Close()
	outside, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.fail(w, "tunnel", err)
		return
	}
	defer outside.Close()
	if _, err := io.WriteString(outside, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	early, err := buffered.Reader.Peek(buffered.Reader.Buffered())
	if err != nil {
		return
	}
	if _, err := inside.Write(early); err != nil {
		return
	}
	var directions sync.WaitGroup
	directions.Go(func() { carry(inside, outside) })
	directions.Go(func() { carry(outside, inside) })
	directions.Wait()
}

func dialLoopback(ctx context.Context, port string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", port))
	if err == nil {
		return conn, nil
	}
	return dialer.DialContext(ctx, "tcp6", net.JoinHostPort("::1", port))
}

// carry copies until from ends and passes the end on. After a failure neither
// side can go on.
func carry(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	_ = to.Close()
	_ = from.Close()
}
