package gateway

import "time"

// serveSilent carries a connection whose client waits for the server to speak. It is
// judged as it is; but if the client speaks first after all, what it says is looked
// at as if it had come at once: waiting must not be a way around that.
func (a *arrival) serveSilent(r Request, f *flight) {
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
	j := judged{request: plain, era: era}
	w := &waitingPair{arrival: a, outside: outside}
	if !a.n.track(w) {
		w.abort()
		return
	}
	defer a.n.untrack(w)
	if !a.n.stillAllowed(w, j) {
		w.abort()
		return
	}
	speech, clientFirst := w.first(f, a.n.limits.TCPIdle)
	a.n.forget(w)
	if clientFirst {
		speech.putBack()
		outside.abort()
		a.inspectFlight(r, f)
		return
	}
	if speech.count > 0 {
		_, err = a.inside.Write(speech.bytes())
	}
	speech.putBack()
	if err != nil {
		w.abort()
		return
	}
	a.join(j, outside, f.kept)
}

// waitingPair is a connection of which both sides are open and neither has said
// anything.
type waitingPair struct {
	arrival *arrival
	outside *outsideConn
}

func (w *waitingPair) abort() {
	w.outside.abort()
	w.arrival.reset()
}

// first waits for one side to speak or to end. It returns what the server said, or
// true when only the client did, which is then in f. The caller puts the chunk back.
func (w *waitingPair) first(f *flight, patience time.Duration) (speech chunk, clientFirst bool) {
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
	speech = <-served
	_ = w.outside.SetReadDeadline(time.Time{})
	_ = inside.SetReadDeadline(time.Time{})
	return speech, said && speech.count == 0
}
