package gateway

import "time"

// Limits bound what one sandbox may use of the host. A zero field takes the
// default in its comment.
type Limits struct {
	Connections    int           // open TCP connections out: 2560
	NewConnections int           // TCP connections out that are begun, a second, twice that at once: 2000
	Pending        int           // TCP connections out that are being judged or dialled: 256
	Held           int           // connections, flows and requests that wait for an answer: 64
	UDPFlows       int           // pairs of a UDP address inside and one outside: 512
	NewFlows       int           // flows that are begun, a second, twice that at once: 500
	DNSInFlight    int           // questions being answered: 64
	Questions      int           // questions for names, a second, twice that at once: 500
	Names          int           // pairs of an address and a name asked for that are remembered: 4096
	BufferBytes    int           // shared by the buffers of TCP connections out: 64 MiB
	BandwidthOut   int           // of what connections and flows carry out, bytes a second: none
	BandwidthIn    int           // the same inwards: none
	DialTimeout    time.Duration // of a connection out: 30 s
	TCPIdle        time.Duration // without a byte in either direction: 2 h
	UDPIdle        time.Duration // the same for a flow: 60 s
}

func (l Limits) withDefaults() Limits {
	setDefault(&l.Connections, 2560)
	setDefault(&l.NewConnections, 2000)
	setDefault(&l.Pending, 256)
	setDefault(&l.Held, 64)
	setDefault(&l.UDPFlows, 512)
	setDefault(&l.NewFlows, 500)
	setDefault(&l.DNSInFlight, 64)
	setDefault(&l.Questions, 500)
	setDefault(&l.Names, 4096)
	setDefault(&l.BufferBytes, 64<<20)
	setDefault(&l.DialTimeout, 30*time.Second)
	setDefault(&l.TCPIdle, 2*time.Hour)
	setDefault(&l.UDPIdle, time.Minute)
	return l
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}
