package gateway

import (
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Hold lets no frame pass between the sandbox and the gateway, in either
// direction, from its return until Release. What the sandbox sent before is
// carried on. To both sides it is a short delay: frames wait, in the device and
// here, and beyond their room they are lost, which TCP makes good. Dialling into
// the sandbox waits too. Holding what is held, or closed, does nothing.
//
// A sandbox that is saved and then ended is held in between, so that nothing it
// does after the saved moment is seen outside.
func (n *Network) Hold() { n.link.gate.shut() }

// Release lets frames pass again, those that waited first. It does nothing
// unless the network is held.
func (n *Network) Release() { n.link.gate.open(n.link.write) }

// Room for frames to the sandbox that wait while its network is held. The
// device has room for a thousand from it.
const (
	heldPackets = 1024
	heldBytes   = 4 << 20
)

// gate is what every frame passes.
type gate struct {
	// entering is held for reading while a frame from the sandbox is taken in, and
	// for writing while the gate is shut.
	entering sync.RWMutex

	// leaving guards what follows. It is held for reading while a frame is written.
	leaving sync.RWMutex
	held    bool
	silent  bool // held for ever, and nothing waits
	waiting stack.PacketBufferList
	bytes   int // of waiting

	changing sync.Mutex // one shut, open or destroy at a time, before the others
	isShut   bool
	gone     bool
}

func (g *gate) shut() {
	g.changing.Lock()
	defer g.changing.Unlock()
	if g.isShut || g.gone {
		return
	}
	g.isShut = true
	g.entering.Lock() // waits for the frames under way
	g.leaving.Lock()
	defer g.leaving.Unlock()
	g.held = true
}

func (g *gate) open(write func(*stack.PacketBuffer) tcpip.Error) {
	g.changing.Lock()
	defer g.changing.Unlock()
	if !g.isShut {
		return
	}
	g.isShut = false
	g.leaving.Lock()
	for _, packet := range g.waiting.AsSlice() {
		_ = write(packet) // lost like any frame
	}
	g.waiting.Reset()
	g.held, g.waiting, g.bytes = false, stack.PacketBufferList{}, 0
	g.leaving.Unlock()
	g.entering.Unlock()
}

// destroy lets readers in for good, which are to end, and drops what waits. With
// silent nothing is sent to the sandbox any more.
func (g *gate) destroy(silent bool) {
	g.changing.Lock()
	defer g.changing.Unlock()
	g.gone = true
	g.leaving.Lock()
	g.waiting.Reset()
	g.held, g.silent, g.waiting = silent, silent, stack.PacketBufferList{}
	g.leaving.Unlock()
	if g.isShut {
		g.isShut = false
		g.entering.Unlock()
	}
}

// pass runs write while the gate is open. It reports false when it is shut.
func (g *gate) pass(write func() tcpip.Error) (tcpip.Error, bool) {
	g.leaving.RLock()
	defer g.leaving.RUnlock()
	if g.held {
		return nil, false
	}
	return write(), true
}

// keep lets a packet wait, if there is room. It reports false when the gate is
// open again.
func (g *gate) keep(packet *stack.PacketBuffer) bool {
	g.leaving.Lock()
	defer g.leaving.Unlock()
	if !g.held {
		return false
	}
	if !g.silent && g.waiting.Len() < heldPackets && g.bytes+packet.Size() <= heldBytes {
		g.waiting.PushBack(packet.IncRef())
		g.bytes += packet.Size()
	}
	return true
}
