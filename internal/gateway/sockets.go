package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// What is kept of sockets to name servers. Whoever wants to forge an answer must guess the
// port of the socket and the id of the question, so a socket is not used for long.
const (
	maxSockets    = 32 // to one server, that nobody uses
	maxSocketUses = 1000
	maxSocketAge  = 30 * time.Second
	maxSocketIdle = 10 * time.Second
)

// sockets are connected UDP sockets to name servers, kept from one question to the next:
// to open and to close one costs more than to ask. One question at a time uses a socket.
// The zero value has none.
type sockets struct {
	mu    sync.Mutex
	idle  map[netip.AddrPort][]*askingSocket // used last is last
	sweep *time.Timer                        // nil: none is idle
}

type askingSocket struct {
	dns.Conn
	since, used time.Time
	uses        int
}

// exchange asks a server and waits until ctx ends, which has a deadline. An old socket may
// have an error of a time when the server was away, so a new one is tried then.
func (s *sockets) exchange(ctx context.Context, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	for {
		socket, err := s.take(ctx, server)
		if err != nil {
			return nil, err
		}
		answer, clean, err := socket.exchange(ctx, query)
		switch {
		case clean:
			s.give(server, socket)
			return answer, nil
		case err != nil && socket.uses > 1 && ctx.Err() == nil && !isTimeout(err):
			_ = socket.Close()
			continue
		}
		_ = socket.Close()
		return answer, err
	}
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

func (s *sockets) take(ctx context.Context, server netip.AddrPort) (*askingSocket, error) {
	if socket := s.kept(server); socket != nil {
		return socket, nil
	}
	conn, err := new(net.Dialer).DialUDP(ctx, "udp", netip.AddrPort{}, server)
	if err != nil {
		return nil, err
	}
	return &askingSocket{Conn: dns.Conn{Conn: conn, UDPSize: upstreamSize}, since: time.Now()}, nil
}

// kept returns the socket that was used last, or nil.
func (s *sockets) kept(server netip.AddrPort) *askingSocket {
	s.mu.Lock()
	defer s.mu.Unlock()
	for idle := s.idle[server]; len(idle) > 0; idle = s.idle[server] {
		socket := idle[len(idle)-1]
		s.idle[server] = idle[:len(idle)-1]
		if !socket.old(time.Now()) {
			return socket
		}
		_ = socket.Close()
	}
	return nil
}

func (k *askingSocket) old(now time.Time) bool {
	return k.uses >= maxSocketUses || now.Sub(k.since) > maxSocketAge || now.Sub(k.used) > maxSocketIdle
}

func (s *sockets) give(server netip.AddrPort, socket *askingSocket) {
	socket.used = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle[server]) >= maxSockets || socket.old(socket.used) {
		_ = socket.Close()
		return
	}
	if s.idle == nil {
		s.idle = map[netip.AddrPort][]*askingSocket{}
	}
	s.idle[server] = append(s.idle[server], socket)
	if s.sweep == nil {
		s.sweep = time.AfterFunc(maxSocketIdle, s.closeOld)
	}
}

// closeOld closes what nobody used for a while, and comes again while any are kept.
func (s *sockets) closeOld() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sweep == nil {
		return // closed meanwhile
	}
	now := time.Now()
	for server, idle := range s.idle {
		var young []*askingSocket
		for _, socket := range idle {
			if socket.old(now) {
				_ = socket.Close()
			} else {
				young = append(young, socket)
			}
		}
		if s.idle[server] = young; len(young) == 0 {
			delete(s.idle, server)
		}
	}
	if s.sweep = nil; len(s.idle) > 0 {
		s.sweep = time.AfterFunc(maxSocketIdle, s.closeOld)
	}
}

func (s *sockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, idle := range s.idle {
		for _, socket := range idle {
			_ = socket.Close()
		}
	}
	s.idle = nil
	if s.sweep != nil {
		s.sweep.Stop()
		s.sweep = nil
	}
}

// maxStray is how many datagrams that are not the answer are read before one is given up.
const maxStray = 64

// exchange asks once. A socket is clean if nothing came but the answer, and may be used
// again then.
func (k *askingSocket) exchange(ctx context.Context, query *dns.Msg) (answer *dns.Msg, clean bool, err error) {
	k.uses++
	deadline, _ := ctx.Deadline()
	if err := k.SetDeadline(deadline); err != nil {
		return nil, false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = k.SetDeadline(time.Unix(1, 0)) })
	defer func() { clean = stop() && clean }()
	query.Id = dns.Id()
	if err := k.WriteMsg(query); err != nil {
		return nil, false, err
	}
	for stray := range maxStray {
		answer, err = k.ReadMsg()
		var network net.Error
		if errors.As(err, &network) {
			return nil, false, err
		}
		if answer != nil && answer.Id == query.Id {
			return answer, stray == 0 && err == nil, err
		}
	}
	return nil, false, errors.New("the answers are to other questions")
}
