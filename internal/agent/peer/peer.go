// Package peer keeps the connections that callers have to the agent. A sandbox
// that is saved and restored finds them dead: nobody is at their other end. The
// package ends them, and tells a caller lost that way from one that left.
package peer

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Set is the connections that are open. The zero Set is empty. Safe for
// concurrent use.
type Set struct {
	mu    sync.Mutex
	count uint64 // accepted so far
	open  map[*conn]struct{}
}

// conn is a connection with its number in the order of acceptance.
type conn struct {
	*net.TCPConn
	set    *Set
	number uint64
	lost   atomic.Bool
}

// Listen returns l with its connections in the set until they are closed.
func (s *Set) Listen(l net.Listener) net.Listener { return &listener{l, s} }

type listener struct {
	net.Listener
	set *Set
}

// Accept panics unless the listener is one of TCP.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.set.add(c.(*net.TCPConn)), nil
}

func (s *Set) add(tcp *net.TCPConn) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	c := &conn{TCPConn: tcp, set: s, number: s.count}
	if s.open == nil {
		s.open = map[*conn]struct{}{}
	}
	s.open[c] = struct{}{}
	return c
}

// Read notes a connection that the sandbox's restore has ended.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if err == io.EOF && c.unconnected() {
		c.lost.Store(true)
	}
	return n, err
}

// unconnected tells that a connection which has come to its end has no other
// side. gVisor makes it so at a restore; when a caller ends its half, the
// connection still has a peer, and when it resets the connection, there is no
// polite end.
func (c *conn) unconnected() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var peerErr error
	err = raw.Control(func(fd uintptr) { _, peerErr = unix.Getpeername(int(fd)) })
	return err == nil && peerErr == unix.ENOTCONN
}

func (c *conn) Close() error {
	c.set.mu.Lock()
	delete(c.set.open, c)
	c.set.mu.Unlock()
	return c.TCPConn.Close()
}

type connKey struct{}

// Attach lets the handlers of a server ask about the connection of a request.
func Attach(server *http.Server) {
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, c)
	}
}

func connOf(ctx context.Context) (*conn, bool) {
	c, ok := ctx.Value(connKey{}).(*conn)
	return c, ok
}

// EndOlder ends every connection that was accepted before that of the request.
func (s *Set) EndOlder(request context.Context) {
	own, ok := connOf(request)
	if !ok {
		return
	}
	s.mu.Lock()
	var older []*conn
	for c := range s.open {
		if c.number < own.number {
			older = append(older, c)
		}
	}
	s.mu.Unlock()
	for _, c := range older {
		c.lost.Store(true)
		_ = c.Close()
	}
}

// Lost tells that the connection of a request ended because the sandbox was
// restored, not because the caller ended it.
func Lost(request context.Context) bool {
	c, ok := connOf(request)
	return ok && c.lost.Load()
}
