package gateway

import "time"

// serveUnclear carries a connection whose client waits, for the server to speak or in
// the middle of something. It is judged as it is; but until the server speaks, what the
// client adds is looked at as if it had come at once: waiting must not be a way
// around that.
func (a *arrival) serveUnclear(r Request, f *flight) {
	plain := r
	plain.Protocol = Opaque
	era := a.n.era()
	if d := a.decide(plain); !d.Allowed() {
		a.refuseFlight(plain, f, a.n.needAllow(plain, d))
		return
	}
	outside, err := a.n.dialJudged(a.n.ctx, plain)
	if err != nil {
		a.reset()
		return
	}
	j := judged{request: plain, era: era, dialled: outside.to}
	w := &waitingPair{arrival: a, outside: outside, meter: a.n.meter(plain)}
	if !a.n.track(w) || !a.n.stillAllowed(w, j) {
		a.n.untrack(w)
		w.abort()
		return
	}
	rest, isOpaque := w.untilClear(f, a.n.limits.TCPIdle)
	a.n.untrack(w)
	a.n.forget(w)
	if isOpaque {
		a.join(j, outside, w.meter, rest)
		return
	}
	outside.abort()
	a.inspectFlight(r, f)
}

// waitingPair is a connection of which both sides are open and the server has not
// said anything.
type waitingPair struct {
	arrival *arrival
	outside *outsideConn
	meter   meter
}

func (w *waitingPair) abort() {
	w.outside.abort()
	w.arrival.reset()
}

// untilClear hands on what the client says as long as that is unclear. It returns what
// is left to hand on, or false when what is in f now is TLS or HTTP.
func (w *waitingPair) untilClear(f *flight, patience time.Duration) (rest []byte, isOpaque bool) {
	sent := 0
	for {
		_ = w.meter.out.pass(len(f.kept) - sent)
		if _, err := w.outside.Write(f.kept[sent:]); err != nil {
			return nil, true // the end is passed on by who joins both sides
		}
		sent = len(f.kept)
		if sent >= maxFlight { // it is refused, as if it had come at once
			return nil, false
		}
		if !w.clientSpeaks(f, patience) {
			return f.kept[sent:], true
		}
		switch is := f.sniff(); {
		case is == unclear:
		case is == opaque, is == speaksHTTP && w.arrival.tlsOnly:
			return f.kept[sent:], true
		default:
			return nil, false
		}
	}
}

// clientSpeaks waits for one side to speak or to end, and tells whether only the client
// has spoken. What the server said was written.
func (w *waitingPair) clientSpeaks(f *flight, patience time.Duration) bool {
	inside := w.arrival.inside
	deadline := time.Now().Add(patience)
	_ = w.outside.SetReadDeadline(deadline)
	_ = inside.SetReadDeadline(deadline)
	served := make(chan chunk, 1)
	go func() {
		c := takeChunk()
		c.count, _ = w.outside.Read(c.buffer[:])
		_ = inside.SetReadDeadline(time.Unix(1, 0)) // wakes the other
		served <- c
	}()
	said := f.more() == nil
	if said || inside.endedInside() {
		_ = w.outside.SetReadDeadline(time.Unix(1, 0))
	}
	speech := <-served
	defer speech.putBack()
	_ = w.outside.SetReadDeadline(time.Time{})
	_ = inside.SetDeadline(time.Time{})
	if speech.count > 0 {
		_ = w.meter.in.pass(speech.count)
		_, _ = inside.Write(speech.bytes()) // an error comes again
		return false
	}
	return said
}
