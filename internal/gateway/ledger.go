package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// ledger is a file that names the open TCP connections of a network, so that who
// adopts it can end them inside: programs there would keep those that are idle
// for hours, and never hear that the other end is gone.
//
// The file holds an entry for each, in any order; zeros are a free place. It is
// written as connections open and close, without a sync: it has to outlive this
// process, not the machine.
type ledger struct {
	mu   sync.Mutex
	file *os.File // nil when closed, or when it could not be made
	free []int64  // places given back
	next int64    // first place never used
}

const (
	ledgerEntry = 8    // bytes: address and port of the gateway's end, port of the sandbox's
	ledgerMost  = 4096 // connections beyond are not noted
	noPlace     = -1
)

func ledgerPath(dir string) string { return filepath.Join(dir, "connections") }

// openLedger begins an empty ledger in dir and returns what the one before said.
func openLedger(dir string) (*ledger, []stack.TransportEndpointID, error) {
	file, err := os.OpenFile(ledgerPath(dir), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return &ledger{}, nil, err
	}
	old, err := io.ReadAll(io.LimitReader(file, ledgerMost*ledgerEntry))
	if err == nil {
		err = file.Truncate(0)
	}
	if err != nil {
		return &ledger{}, nil, errors.Join(err, file.Close())
	}
	var open []stack.TransportEndpointID
	for ; len(old) >= ledgerEntry; old = old[ledgerEntry:] {
		if id := decodeEntry(old); id.LocalPort != 0 {
			open = append(open, id)
		}
	}
	return &ledger{file: file}, open, nil
}

// add notes a connection, its local end the gateway's, and returns its place.
func (l *ledger) add(id stack.TransportEndpointID) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	place := l.next
	if last := len(l.free) - 1; last >= 0 {
		place, l.free = l.free[last], l.free[:last]
	} else if l.next == ledgerMost {
		return noPlace
	} else {
		l.next++
	}
	l.write(place, encodeEntry(id))
	return place
}

// remove takes the connection at a place out; noPlace is none.
func (l *ledger) remove(place int64) {
	if place == noPlace {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.write(place, [ledgerEntry]byte{})
	l.free = append(l.free, place)
}

// write ignores failures: with a full disk a connection is not noted.
func (l *ledger) write(place int64, entry [ledgerEntry]byte) {
	if l.file != nil {
		_, _ = l.file.WriteAt(entry[:], place*ledgerEntry)
	}
}

// close leaves the file as it is.
func (l *ledger) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

func removeLedger(dir string) error {
	if err := os.Remove(ledgerPath(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the ledger of connections: %w", err)
	}
	return nil
}

func encodeEntry(id stack.TransportEndpointID) (entry [ledgerEntry]byte) {
	address := id.LocalAddress.As4()
	copy(entry[:], address[:])
	binary.BigEndian.PutUint16(entry[4:], id.LocalPort)
	binary.BigEndian.PutUint16(entry[6:], id.RemotePort)
	return entry
}

func decodeEntry(b []byte) stack.TransportEndpointID {
	return stack.TransportEndpointID{
		LocalAddress:  tcpip.AddrFrom4([4]byte(b)),
		LocalPort:     binary.BigEndian.Uint16(b[4:]),
		RemoteAddress: tcpip.AddrFrom4(sandbox4),
		RemotePort:    binary.BigEndian.Uint16(b[6:]),
	}
}

// endInside makes the sandbox end connections that this stack knows nothing of.
// It sends segments out of any sequence, which a TCP answers with its own numbers
// (RFC 9293, 3.10.7.4), and the stack answers those with a reset. Of two half the
// number space apart one is out of the window for sure.
func (n *Network) endInside(lost []stack.TransportEndpointID) {
	for _, id := range lost {
		for _, sequence := range []uint32{0, 1 << 31} {
			n.link.sendFrame(bareSegment(id, sequence))
		}
	}
}

func bareSegment(id stack.TransportEndpointID, sequence uint32) []byte {
	frame := make([]byte, header.EthernetMinimumSize+header.IPv4MinimumSize+header.TCPMinimumSize)
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: linkAddress(gatewayMAC), DstAddr: linkAddress(sandboxMAC), Type: header.IPv4ProtocolNumber,
	})
	packet := frame[header.EthernetMinimumSize:]
	encodeIPv4(packet, header.TCPProtocolNumber, id.LocalAddress, id.RemoteAddress)

	segment := header.TCP(packet[header.IPv4MinimumSize:])
	segment.Encode(&header.TCPFields{
		SrcPort: id.LocalPort, DstPort: id.RemotePort, SeqNum: sequence, AckNum: sequence,
		DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagAck,
	})
	pseudo := header.PseudoHeaderChecksum(header.TCPProtocolNumber, id.LocalAddress, id.RemoteAddress, uint16(len(segment)))
	segment.SetChecksum(^segment.CalculateChecksum(pseudo))
	return frame
}
