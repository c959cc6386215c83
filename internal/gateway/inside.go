package gateway

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// InsideName is the name by which a sandbox reaches Config.Inside, as
// "http://tombolo.internal/".
const InsideName = "tombolo.internal"

const (
	insidePort = 80
	// insideConnections are open at once at most, of one sandbox.
	insideConnections = 16
	insideHeader      = 16 << 10 // bytes
	insideHeaderTime  = 10 * time.Second
	insideReadTime    = 30 * time.Second
	insideAnswerTime  = 5 * time.Minute // an answer may wait for a person
	insideIdle        = 30 * time.Second
)

// insideServer serves what programs inside ask the gateway itself.
type insideServer struct {
	http  *http.Server
	conns chan net.Conn
	slots chan struct{}
	ended chan struct{}
	once  sync.Once
}

func newInsideServer(handler http.Handler) *insideServer {
	if handler == nil {
		return nil
	}
	s := &insideServer{conns: make(chan net.Conn), slots: make(chan struct{}, insideConnections), ended: make(chan struct{})}
	s.http = &http.Server{
		Handler: handler, MaxHeaderBytes: insideHeader, ReadHeaderTimeout: insideHeaderTime,
		ReadTimeout: insideReadTime, WriteTimeout: insideAnswerTime, IdleTimeout: insideIdle,
	}
	return s
}

// start serves until stop.
func (s *insideServer) start() { go func() { _ = s.http.Serve(s) }() }

func (s *insideServer) stop() { _ = s.http.Close() }

// Accept, Close and Addr make it the listener of its http server.
func (s *insideServer) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.ended:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (s *insideServer) Close() error {
	s.once.Do(func() { close(s.ended) })
	return nil
}

// Addr is the gateway's.
func (s *insideServer) Addr() net.Addr {
	return &net.TCPAddr{IP: gatewayAddr.AsSlice(), Port: insidePort}
}

// insideRequest tells who waits when the server is done with a connection.
type insideRequest struct {
	*insideConn
	done chan struct{}
	once sync.Once
}

// Close ends the connection.
func (c *insideRequest) Close() error {
	err := c.insideConn.Close()
	c.once.Do(func() { close(c.done) })
	return err
}

// serveInside has a connection to the gateway served, or refuses it like any other
// to the gateway.
func (a *arrival) serveInside() {
	s := a.n.inside
	if s == nil {
		a.serve()
		return
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		a.n.counters.overLimit.Add(1)
		return
	}
	a.fixedSize = minBuffer
	if a.accept() != nil {
		return
	}
	c := &insideRequest{insideConn: a.inside, done: make(chan struct{})}
	select {
	case s.conns <- c:
		<-c.done
	case <-s.ended:
		a.reset()
	}
}
