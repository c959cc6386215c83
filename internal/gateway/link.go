package gateway

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// vnetHeaderLen is the size of struct virtio_net_hdr (linux/virtio_net.h),
	// which the kernel puts before each frame of a TAP with IFF_VNET_HDR.
	vnetHeaderLen = 10
	// firstChunk holds a whole frame of most traffic that is no bulk; what is
	// longer goes on in a chunk of lastChunk. Together they hold the longest
	// IP packet with its Ethernet header.
	firstChunk = 2 << 10
	lastChunk  = 64 << 10
)

// link is the stack's link endpoint over the TAP device. It reads with the Go
// runtime's poller, so an idle network holds a goroutine a queue and no OS
// thread, and no buffer.
type link struct {
	queues  [queueCount]syscall.RawConn
	limiter *rate.Limiter   // of the queue that is not TCP's
	ctx     context.Context // ends with the network
	guard   func(what string)
	gate    gate
	stale   *stale // nil for none

	readers sync.WaitGroup
	started bool

	attaching  sync.Mutex
	dispatcher atomic.Pointer[stack.NetworkDispatcher] // nil: nobody gets frames

	bytesOut, bytesIn, refused atomic.Uint64
}

var _ stack.LinkEndpoint = (*link)(nil)

// newLink does not own the queues; the readers end when they are closed.
func newLink(ctx context.Context, queues [queueCount]*os.File, guard func(string)) (*link, error) {
	l := &link{limiter: newRestLimiter(), ctx: ctx, guard: guard}
	for i, queue := range queues {
		raw, err := queue.SyscallConn()
		if err != nil {
			return nil, err
		}
		l.queues[i] = raw
	}
	return l, nil
}

// Attach starts the readers; with nil (the stack ends) it only stops delivery.
func (l *link) Attach(dispatcher stack.NetworkDispatcher) {
	l.attaching.Lock()
	defer l.attaching.Unlock()
	if dispatcher == nil {
		l.dispatcher.Store(nil)
		return
	}
	l.dispatcher.Store(&dispatcher)
	if l.started {
		return
	}
	l.started = true
	l.readers.Go(func() { l.readLoop(l.queues[queueTCP], func(int) error { return nil }) })
	l.readers.Go(func() { l.readLoop(l.queues[queueRest], l.waitForRest) })
}

// readLoop reads until the queue is closed, or wait fails, which is called
// with the size of each frame.
func (l *link) readLoop(queue syscall.RawConn, wait func(size int) error) {
	var r frameReader
	for {
		frame, err := r.next(queue)
		if err != nil {
			return
		}
		size := int(frame.Size())
		l.admit(frame)
		if err := wait(size); err != nil {
			r.release()
			return
		}
	}
}

func (l *link) waitForRest(size int) error { return l.limiter.WaitN(l.ctx, 1+size/restUnit) }

// admit takes a frame in, when the gate is open. What waits until the network
// is closed is dropped: its sandbox was to be unable to send it.
func (l *link) admit(frame *buffer.Buffer) {
	l.gate.entering.RLock()
	defer l.gate.entering.RUnlock()
	if l.ctx.Err() != nil {
		frame.Release()
		return
	}
	l.receive(frame)
}

// receive hands one frame from the sandbox to the stack, if it is one the
// stack should see.
func (l *link) receive(frame *buffer.Buffer) {
	defer l.guard("frame")
	size := frame.Size()
	l.bytesOut.Add(uint64(size))
	first, _ := frame.PullUp(0, int(min(size, maxHeaders)))
	protocol, ok := checkFrame(first.AsSlice(), int(size))
	if !ok {
		l.refused.Add(1)
		if answer := refusal(first.AsSlice()); answer != nil {
			l.sendFrame(answer)
		}
		frame.Release()
		return
	}
	if l.stale != nil && l.stale.has(first.AsSlice()) {
		frame.Release()
		return
	}
	packet := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: *frame})
	defer packet.DecRef()
	packet.LinkHeader().Consume(header.EthernetMinimumSize)
	packet.NetworkProtocolNumber = protocol
	packet.PktType = tcpip.PacketHost
	packet.RXChecksumValidated = true // it never left this machine

	if dispatcher := l.dispatcher.Load(); dispatcher != nil {
		(*dispatcher).DeliverNetworkPacket(protocol, packet)
	}
}

// frameReader reads frames off the device. It keeps the chunks a frame did not
// fill for the next one, and none while it waits.
type frameReader struct {
	header      [vnetHeaderLen]byte
	first, last *buffer.View
	// scratch is in the place of last while frames are short: a chunk is cleared when it
	// is made, and a frame that comes alone, as all of a new connection do, would pay for
	// 64 KiB.
	scratch       *[lastChunk]byte
	long, wasLong bool // a frame was, since there was none to read or in the time before
}

var scratches = sync.Pool{New: func() any { return new([lastChunk]byte) }}

// next returns one frame, which the caller releases. It blocks until there is
// one; the error means that the device was closed.
func (r *frameReader) next(raw syscall.RawConn) (*buffer.Buffer, error) {
	var n int
	var readErr error
	err := raw.Read(func(fd uintptr) bool {
		n, readErr = r.readOnce(int(fd))
		if readErr == unix.EAGAIN {
			r.release()
			return false
		}
		return true
	})
	if err != nil || readErr != nil {
		r.release()
		return nil, firstError(err, readErr)
	}
	return r.take(n - vnetHeaderLen), nil
}

func (r *frameReader) readOnce(fd int) (int, error) {
	if r.first == nil {
		r.first = buffer.NewViewSize(firstChunk)
	}
	rest := r.rest()
	for {
		n, err := readv3(fd, r.header[:], r.first.AsSlice(), rest)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// rest is where a frame goes on that is longer than the first chunk.
func (r *frameReader) rest() []byte {
	if r.long || r.wasLong {
		if r.last == nil {
			r.last = buffer.NewViewSize(lastChunk)
		}
		return r.last.AsSlice()
	}
	if r.scratch == nil {
		r.scratch = scratches.Get().(*[lastChunk]byte)
	}
	return r.scratch[:]
}

// take makes a frame of the first n bytes of the chunks.
func (r *frameReader) take(n int) *buffer.Buffer {
	n = max(n, 0)
	first := r.first
	r.first = nil
	if n <= firstChunk {
		first.CapLength(n)
		frame := buffer.MakeWithView(first)
		return &frame
	}
	r.long = true
	frame := buffer.MakeWithView(first)
	last := r.last
	r.last = nil
	if last == nil {
		last = buffer.NewViewWithData(r.scratch[:n-firstChunk])
	}
	last.CapLength(n - firstChunk)
	if err := frame.Append(last); err != nil { // never: it is no view twice
		last.Release()
	}
	return &frame
}

func (r *frameReader) release() {
	if r.first != nil {
		r.first.Release()
	}
	if r.last != nil {
		r.last.Release()
	}
	if r.scratch != nil {
		scratches.Put(r.scratch)
	}
	r.first, r.last, r.scratch = nil, nil, nil
	r.long, r.wasLong = false, r.long
}

// WritePackets sends to the sandbox.
func (l *link) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) {
	for i, packet := range packets.AsSlice() {
		if err := l.send(packet); err != nil {
			return i, err
		}
	}
	return packets.Len(), nil
}

func (l *link) send(packet *stack.PacketBuffer) tcpip.Error {
	for {
		if err, passed := l.gate.pass(func() tcpip.Error { return l.write(packet) }); passed {
			return err
		}
		if l.gate.keep(packet) {
			return nil
		}
	}
}

func (l *link) write(packet *stack.PacketBuffer) tcpip.Error {
	var head [vnetHeaderLen]byte
	if packet.TransportProtocolNumber == header.TCPProtocolNumber {
		leaveTCPChecksum(&head, len(packet.NetworkHeader().Slice()))
	}
	var sendErr error
	err := l.queues[queueTCP].Write(func(fd uintptr) bool {
		sendErr = writePacket(int(fd), head[:], packet)
		return sendErr != unix.EAGAIN
	})
	if err != nil {
		return &tcpip.ErrClosedForSend{}
	}
	if sendErr != nil {
		return &tcpip.ErrNoBufferSpace{}
	}
	l.bytesIn.Add(uint64(packet.Size()))
	return nil
}

// leaveTCPChecksum says in a virtio_net_hdr that the checksum of a TCP segment
// over IPv4 is still to be computed, which on one machine nobody then does.
func leaveTCPChecksum(head *[vnetHeaderLen]byte, ipHeaderLen int) {
	start := header.EthernetMinimumSize + ipHeaderLen
	head[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	nativeEndian.PutUint16(head[6:], uint16(start)) // csum_start
	nativeEndian.PutUint16(head[8:], header.TCPChecksumOffset)
}

// AddHeader puts the Ethernet header before a packet to the sandbox.
func (l *link) AddHeader(packet *stack.PacketBuffer) {
	header.Ethernet(packet.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: linkAddress(gatewayMAC),
		DstAddr: linkAddress(sandboxMAC),
		Type:    packet.NetworkProtocolNumber,
	})
}

// ParseHeader is not needed: receive has done it.
func (l *link) ParseHeader(*stack.PacketBuffer) bool { return true }

// MTU is the device's.
func (l *link) MTU() uint32 { return deviceMTU }

// SetMTU does nothing: the device's is fixed.
func (l *link) SetMTU(uint32) {}

// MaxHeaderLength is the Ethernet header's.
func (l *link) MaxHeaderLength() uint16 { return header.EthernetMinimumSize }

// LinkAddress is the gateway's.
func (l *link) LinkAddress() tcpip.LinkAddress { return linkAddress(gatewayMAC) }

// SetLinkAddress does nothing: the address is fixed.
func (l *link) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities leave checksums out in both directions: frames stay on this
// machine.
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload | stack.CapabilityResolutionRequired
}

// IsAttached reports whether a stack listens.
func (l *link) IsAttached() bool { return l.dispatcher.Load() != nil }

// Wait returns when the readers have ended.
func (l *link) Wait() { l.readers.Wait() }

// ARPHardwareType is Ethernet.
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// Close does nothing: the namespace owns the device.
func (l *link) Close() {}

// SetOnCloseAction does nothing, see Close.
func (l *link) SetOnCloseAction(func()) {}

func linkAddress(mac []byte) tcpip.LinkAddress { return tcpip.LinkAddress(mac) }

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
