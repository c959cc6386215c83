package edge

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// maxConns bounds what strangers may hold open, idle connections among it. More
	// wait to be accepted.
	maxConns = 32_768
	// helloTimeout bounds the wait for the first byte of a connection.
	helloTimeout = 10 * time.Second
	// tlsHandshake is the first byte of every TLS connection (RFC 8446, 5.1: the
	// content type of a handshake record) and of no HTTP request.
	tlsHandshake = 22
)

// Listener bounds the connections of l. With config it takes TLS beside plain
// HTTP on the same port, told apart by the first byte, so that one port is enough
// for https names and for http on the machine itself. Closing it closes l.
func Listener(l net.Listener, config *tls.Config) net.Listener {
	bounded := &boundedListener{Listener: l, places: make(chan struct{}, maxConns), closed: make(chan struct{})}
	if config == nil {
		return bounded
	}
	b := &bothListener{Listener: bounded, config: config, ready: make(chan net.Conn), closed: make(chan struct{}), waiting: map[net.Conn]struct{}{}}
	b.work.Go(b.acceptAll)
	return b
}

// boundedListener accepts a connection when there is a place for it.
type boundedListener struct {
	net.Listener
	places chan struct{} // holds one for each connection
	once   sync.Once
	closed chan struct{}
}

func (b *boundedListener) Accept() (net.Conn, error) {
	select {
	case b.places <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	conn, err := b.Listener.Accept()
	if err != nil {
		<-b.places
		return nil, err
	}
	return &placed{Conn: conn, leave: sync.OnceFunc(func() { <-b.places })}, nil
}

func (b *boundedListener) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

// placed is a connection that gives its place back.
type placed struct {
	net.Conn
	leave func()
}

func (c *placed) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite lets the server end an answer before it closes the connection, so
// that a client that still sends gets to read it.
func (c *placed) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// bothListener waits for the first byte of each connection apart from Accept, so
// that a silent client holds nobody up.
type bothListener struct {
	net.Listener
	config *tls.Config
	ready  chan net.Conn
	work   sync.WaitGroup

	mu      sync.Mutex
	failed  error         // why accepting ended
	closed  chan struct{} // when accepting has ended
	waiting map[net.Conn]struct{}
}

func (b *bothListener) acceptAll() {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			b.fail(err)
			return
		}
		b.mu.Lock()
		b.waiting[conn] = struct{}{}
		b.mu.Unlock()
		b.work.Go(func() { b.sort(conn) })
	}
}

// sort hands a connection over once its first byte says what it is.
func (b *bothListener) sort(raw net.Conn) {
	first := &firstByte{Conn: raw}
	_ = raw.SetReadDeadline(time.Now().Add(helloTimeout))
	_, err := raw.Read(first.byte[:])
	_ = raw.SetReadDeadline(time.Time{})
	b.mu.Lock()
	delete(b.waiting, raw)
	b.mu.Unlock()
	if err != nil {
		raw.Close()
		return
	}
	var conn net.Conn = first
	if first.byte[0] == tlsHandshake {
		conn = tls.Server(first, b.config)
	}
	select {
	case b.ready <- conn:
	case <-b.closed:
		raw.Close()
	}
}

func (b *bothListener) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = err
	close(b.closed)
	for conn := range b.waiting {
		conn.Close()
	}
}

// Accept implements net.Listener. What it returns is a *tls.Conn or plain.
func (b *bothListener) Accept() (net.Conn, error) {
	select {
	case conn := <-b.ready:
		return conn, nil
	case <-b.closed:
		b.mu.Lock()
		defer b.mu.Unlock()
		return nil, b.failed
	}
}

// Close implements net.Listener. Nothing of the listener runs when it returns.
func (b *bothListener) Close() error {
	err := b.Listener.Close()
	b.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// firstByte gives back the byte that was read of a connection.
type firstByte struct {
	net.Conn
	byte [1]byte
	read bool // by the one reader that a connection has
}

func (c *firstByte) Read(p []byte) (int, error) {
	if c.read || len(p) == 0 {
		return c.Conn.Read(p)
	}
	c.read = true
	p[0] = c.byte[0]
	return 1, nil
}

// CloseWrite is what placed has.
func (c *firstByte) CloseWrite() error { return closeWrite(c.Conn) }
