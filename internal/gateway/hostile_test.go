package gateway_test

import (
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// rawSocket sends whole frames on the device, as a sandbox's engine could.
func rawSocket(t testing.TB, n *gateway.Network) (send func(frame []byte)) {
	t.Helper()
	var fd int
	require.NoError(t, inside(t, n, func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: device.Index})
	}))
	t.Cleanup(func() { unix.Close(fd) })
	return func(frame []byte) { _, _ = unix.Write(fd, frame) }
}

type packet struct {
	source, destination [4]byte
	port                uint16 // source
	protocol            tcpip.TransportProtocolNumber
	flags               header.TCPFlags
}

// frame makes a frame with a TCP segment, or a UDP datagram, or an echo.
func (p packet) frame() []byte {
	frame := make([]byte, header.EthernetMinimumSize+header.IPv4MinimumSize+header.TCPMinimumSize)
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: "\x02\x00\x0a\x00\x00\x02", DstAddr: "\x02\x00\x0a\x00\x00\x01", Type: header.IPv4ProtocolNumber,
	})
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(ip)), TTL: 64, Protocol: uint8(p.protocol),
		SrcAddr: tcpip.AddrFrom4(p.source), DstAddr: tcpip.AddrFrom4(p.destination),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	switch body := ip[header.IPv4MinimumSize:]; p.protocol {
	case header.TCPProtocolNumber:
		header.TCP(body).Encode(&header.TCPFields{
			SrcPort: p.port, DstPort: 80, SeqNum: rand.Uint32(), DataOffset: header.TCPMinimumSize, Flags: p.flags, WindowSize: 1000,
		})
	case header.UDPProtocolNumber:
		header.UDP(body).Encode(&header.UDPFields{SrcPort: p.port, DstPort: 9, Length: uint16(len(body))})
	case header.ICMPv4ProtocolNumber:
		header.ICMPv4(body).SetType(header.ICMPv4Echo)
		binary.BigEndian.PutUint16(body[2:], ^checksum.Checksum(body, 0))
	}
	return frame
}

var (
	me     = [4]byte{10, 0, 0, 2}
	public = [4]byte{198, 51, 100, 1}
)

func TestSpoofedAndForeignFramesAreRefused(t *testing.T) {
	n := newNetwork(t, withPolicy(gateway.NewPublic()))
	send := rawSocket(t, n)
	for what, frame := range map[string][]byte{
		"another source":     packet{source: [4]byte{10, 0, 0, 3}, destination: public, protocol: 6, flags: header.TCPFlagSyn}.frame(),
		"the gateway's":      packet{source: [4]byte{10, 0, 0, 1}, destination: me, protocol: 6, flags: header.TCPFlagSyn}.frame(),
		"loopback's":         packet{source: [4]byte{127, 0, 0, 1}, destination: [4]byte{127, 0, 0, 1}, protocol: 6}.frame(),
		"echo outside":       packet{source: me, destination: public, protocol: 1}.frame(),
		"multicast":          packet{source: me, destination: [4]byte{224, 0, 0, 1}, protocol: 17}.frame(),
		"broadcast":          packet{source: me, destination: [4]byte{255, 255, 255, 255}, protocol: 17}.frame(),
		"another protocol":   packet{source: me, destination: public, protocol: 47}.frame(),
		"IPv6":               append(make([]byte, 12), append([]byte{0x86, 0xdd}, make([]byte, 60)...)...),
		"VLAN":               append(make([]byte, 12), append([]byte{0x81, 0x00}, make([]byte, 60)...)...),
		"a short ARP":        append(make([]byte, 12), 8, 6, 0, 1),
		"an IPv4 of 4 bytes": append(make([]byte, 12), 8, 0, 0x45, 0, 0, 4),
	} {
		before := n.Stats()
		send(frame)
		require.Eventually(t, func() bool { return n.Stats().FramesRefused > before.FramesRefused }, 20*time.Second, time.Millisecond, what)
	}
}

func TestFloodsAreBoundedAndTheNetworkLives(t *testing.T) {
	const connections, pending, flows = 64, 16, 16
	n := newNetwork(t, func(c *gateway.Config) {
		c.Limits = gateway.Limits{Connections: connections, Pending: pending, UDPFlows: flows, DialTimeout: time.Second, UDPIdle: time.Second}
		c.OnDecision = func(gateway.Event) { time.Sleep(time.Millisecond) } // slower than the flood
	})
	send := rawSocket(t, n)
	quiet := runtime.NumGoroutine()
	most := 0
	for i := range 20000 {
		p := packet{source: me, destination: public, port: uint16(i), protocol: header.TCPProtocolNumber, flags: header.TCPFlagSyn}
		if i%2 == 1 {
			p.protocol = header.UDPProtocolNumber
		}
		p.destination[3] = byte(i)
		send(p.frame())
		most = max(most, runtime.NumGoroutine())
	}
	require.Less(t, most-quiet, 3*(pending+flows)+50)
	require.NotZero(t, n.Stats().OverLimit)
	require.Zero(t, n.Stats().Panics)

	listener := listenInside(t, n)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn, err := n.DialContext(ctx, uint16(listener.Addr().(*net.TCPAddr).Port))
		if err != nil {
			return false
		}
		conn.Close()
		return true
	}, 10*time.Second, time.Millisecond)
}

func TestRandomFramesDoNoHarm(t *testing.T) {
	n := newNetwork(t)
	send := rawSocket(t, n)
	random := rand.New(rand.NewPCG(1, 2))
	valid := []packet{
		{source: me, destination: public, port: 5, protocol: 6, flags: header.TCPFlagSyn},
		{source: me, destination: [4]byte{10, 0, 0, 1}, port: 5, protocol: 17},
		{source: me, destination: [4]byte{10, 0, 0, 1}, protocol: 1},
	}
	for range 20000 {
		frame := valid[random.IntN(len(valid))].frame()
		for range random.IntN(4) {
			frame[14+random.IntN(len(frame)-14)] = byte(random.Uint32())
		}
		send(frame[:14+random.IntN(len(frame)-13)])
	}
	require.Zero(t, n.Stats().Panics)
	listener := listenInside(t, n)
	conn, err := n.DialContext(context.Background(), uint16(listener.Addr().(*net.TCPAddr).Port))
	require.NoError(t, err)
	conn.Close()
}

func TestConnectionsBeyondTheLimitAreReset(t *testing.T) {
	const limit = 4
	n := newNetwork(t, func(c *gateway.Config) { c.Limits.Connections = limit })
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer listener.Close()
	for range limit {
		_, err := dialFromInside(t, n, "tcp4", listener.Addr().String())
		require.NoError(t, err)
	}
	_, err = dialFromInside(t, n, "tcp4", listener.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestIdleConnectionsEnd(t *testing.T) {
	n := newNetwork(t, func(c *gateway.Config) { c.Limits.TCPIdle = 100 * time.Millisecond })
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer listener.Close()
	conn, err := dialFromInside(t, n, "tcp4", listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Eventually(t, func() bool { return n.Stats().OpenConnections == 0 }, 20*time.Second, time.Millisecond)
}

func TestResetOutsideIsResetInside(t *testing.T) {
	n := newNetwork(t)
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer listener.Close()
	conn, err := dialFromInside(t, n, "tcp4", listener.Addr().String())
	require.NoError(t, err)
	peer, err := listener.Accept()
	require.NoError(t, err)
	require.NoError(t, peer.(*net.TCPConn).SetLinger(0))
	peer.Close()
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestCloseEndsEveryConnection(t *testing.T) {
	n := newNetwork(t)
	listener := listenInside(t, n)
	conn, err := n.DialContext(context.Background(), uint16(listener.Addr().(*net.TCPAddr).Port))
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		ended <- err
	}()
	send := rawSocket(t, n) // and a handshake that nobody completes
	outside, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer outside.Close()
	send(packet{source: me, destination: [4]byte(net.ParseIP(hostAddress(t)).To4()), port: 7, protocol: 6, flags: header.TCPFlagSyn}.frame())
	start := time.Now()
	require.NoError(t, n.Close())
	require.Less(t, time.Since(start), 20*time.Second)
	require.Error(t, <-ended)
	_, err = n.DialContext(context.Background(), 80)
	require.ErrorIs(t, err, gateway.ErrClosed)
	_, err = io.ReadAll(conn)
	require.Error(t, err)
}

func TestRecheckEndsWhatTheNewPolicyDenies(t *testing.T) {
	n := newNetwork(t)
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer listener.Close()
	conn, err := dialFromInside(t, n, "tcp4", listener.Addr().String())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return n.Stats().ConnectionsOut == 1 }, 20*time.Second, time.Millisecond)
	require.NoError(t, n.Recheck(context.Background()))
	require.EqualValues(t, 1, n.Stats().OpenConnections)
	n.SetPolicy(gateway.DenyAll{})
	require.NoError(t, n.Recheck(context.Background()))
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// A connection whose rest the sandbox does not take counts until it is gone.
func TestDataNotTakenKeepsItsPlace(t *testing.T) {
	n := newNetwork(t)
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer listener.Close()
	conn, err := dialFromInside(t, n, "tcp4", listener.Addr().String())
	require.NoError(t, err)
	peer, err := listener.Accept()
	require.NoError(t, err)
	const size = 2 << 20
	go func() {
		_, _ = peer.Write(make([]byte, size))
		peer.Close()
	}()
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	require.Eventually(t, func() bool { return n.Stats().BytesIn > size/64 }, 20*time.Second, time.Millisecond)
	require.EqualValues(t, 1, n.Stats().OpenConnections)
	all, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Len(t, all, size)
	require.Eventually(t, func() bool { return n.Stats().OpenConnections == 0 }, 20*time.Second, time.Millisecond)
}

func TestDeadlinesAndEndsAreThoseOfPackageNet(t *testing.T) {
	n := newNetwork(t)
	listener := listenInside(t, n)
	conn, err := n.DialContext(context.Background(), uint16(listener.Addr().(*net.TCPAddr).Port))
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Unix(1, 0)))
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, conn.Close())
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = n.DialContext(ctx, 1)
	require.Error(t, err)
}

func TestCloseUnderLoad(t *testing.T) {
	outside, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer outside.Close()
	go func() {
		for {
			conn, err := outside.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{conn})
			}()
		}
	}()
	server := echoDatagrams(t).LocalAddr().String()
	for range 10 {
		n := newNetwork(t)
		var clients sync.WaitGroup
		var conns []net.Conn
		for i := range 8 {
			network, address := "tcp4", outside.Addr().String()
			if i%4 == 0 {
				network, address = "udp4", server
			}
			conn, err := dialFromInside(t, n, network, address)
			require.NoError(t, err)
			conns = append(conns, conn)
			clients.Go(func() { _, _ = io.Copy(io.Discard, struct{ io.Reader }{conn}) })
			clients.Go(func() {
				chunk := make([]byte, 32<<10)
				for {
					if _, err := conn.Write(chunk); err != nil {
						return
					}
				}
			})
		}
		require.Eventually(t, func() bool { return n.Stats().BytesIn > 1<<20 }, 20*time.Second, time.Millisecond)
		start := time.Now()
		require.NoError(t, n.Close())
		require.Less(t, time.Since(start), 20*time.Second)
		require.Zero(t, n.Stats().Panics)
		for _, conn := range conns {
			conn.Close()
		}
		clients.Wait()
	}
}

func TestDatagramFloodDoesNotShutOutConnections(t *testing.T) {
	n := newNetwork(t, withPolicy(gateway.NewPublic()))
	listener := listenInside(t, n)
	send := rawSocket(t, n)
	stop := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		frame := packet{source: me, destination: public, port: 9, protocol: header.UDPProtocolNumber}.frame()
		frame = append(frame, make([]byte, 8<<10)...)
		for {
			select {
			case <-stop:
				return
			default:
				send(frame)
			}
		}
	})
	defer flood.Wait()
	defer close(stop)
	late := 0
	for range 50 {
		ctx, cancel := context.WithTimeout(context.Background(), 900*time.Millisecond) // a lost segment is sent again after 1 s
		conn, err := n.DialContext(ctx, uint16(listener.Addr().(*net.TCPAddr).Port))
		cancel()
		if err != nil {
			late++
			continue
		}
		conn.Close()
	}
	require.Less(t, late, 10, "a busy machine may make some late")
}

// stuffed is a connection out whose server reads nothing and whose client has
// written until no more was taken.
func stuffed(t *testing.T, n *gateway.Network) (client, server *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer listener.Close()
	conn, err := dialFromInside(t, n, "tcp4", listener.Addr().String())
	require.NoError(t, err)
	peer, err := listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { peer.Close() })
	chunk := make([]byte, 1<<20)
	for {
		require.NoError(t, conn.SetWriteDeadline(time.Now().Add(200*time.Millisecond)))
		if _, err := conn.Write(chunk); err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			return conn.(*net.TCPConn), peer.(*net.TCPConn)
		}
	}
}

func TestCloseDoesNotWaitForAServerThatTakesNothing(t *testing.T) {
	n := newNetwork(t)
	stuffed(t, n)
	start := time.Now()
	require.NoError(t, n.Close())
	require.Less(t, time.Since(start), 20*time.Second)
}

func TestResetInsideEndsAConnectionThatIsStuck(t *testing.T) {
	n := newNetwork(t)
	client, server := stuffed(t, n)
	require.NoError(t, client.SetLinger(0))
	require.NoError(t, client.Close())
	require.Eventually(t, func() bool { return n.Stats().OpenConnections == 0 }, 20*time.Second, time.Millisecond)
	_, err := io.Copy(io.Discard, struct{ io.Reader }{server})
	require.ErrorIs(t, err, syscall.ECONNRESET)
}
