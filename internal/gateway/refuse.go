package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// refusalPatience is how long a connection that was refused may take to be told.
const refusalPatience = 30 * time.Second

// refuse ends a connection that was denied before it was answered. Where the program
// can read why it is opened for that.
func (a *arrival) refuse(r Request, d Decision) {
	a.n.accounts.refuse(r)
	if !d.Readable || !a.readable() {
		a.reset()
		return
	}
	if a.accept() != nil {
		return
	}
	f := a.look()
	_ = a.inside.SetReadDeadline(time.Now().Add(flightPatience))
	a.tell(r, f, d)
}

// readable tells whether what speaks on the connection's port can be told why it is
// refused.
func (a *arrival) readable() bool {
	return a.destination.Port() == portHTTP || a.destination.Port() == portHTTPS && a.n.interception != nil
}

// refuseFlight ends a connection that was denied by what it said.
func (a *arrival) refuseFlight(r Request, f *flight, d Decision) {
	a.n.accounts.refuse(r)
	if !d.Readable {
		a.reset()
		return
	}
	_ = a.inside.SetReadDeadline(time.Now().Add(flightPatience))
	a.tell(r, f, d)
}

// tell answers HTTP and TLS with the refusal, and resets anything else.
func (a *arrival) tell(r Request, f *flight, d Decision) {
	is, err := f.what()
	switch {
	case err != nil || is == opaque:
		a.reset()
	case a.n.interception != nil:
		a.tellByInterception(r, f, d, is == speaksTLS)
	case is == speaksHTTP:
		_ = a.inside.SetDeadline(time.Now().Add(flightPatience))
		f.at = 0
		answerRefusal(a.inside, f, r, d)
	default:
		a.reset()
	}
}

func (a *arrival) tellByInterception(r Request, f *flight, d Decision, isTLS bool) {
	if isTLS {
		f.at = 0
		h, err := readHello(f)
		if err != nil {
			a.reset()
			return
		}
		r.Name, _ = HostName(h.name)
	} else if !r.Held {
		r.Name = ""
	}
	a.first.release()
	ctx, cancel := context.WithTimeout(a.n.ctx, refusalPatience)
	defer cancel()
	_ = a.inside.SetDeadline(time.Time{})
	_ = a.n.interception.Carry(ctx, Intercepted{
		Conn: &replayed{insideConn: a.inside, first: f.kept, meter: a.n.meterRefused()}, TLS: isTLS,
		Name: r.Name, Names: r.Names, Destination: r.Destination, Held: r.Held, Refused: &d,
	})
}

// refusalWords is what a program inside is told, as JSON.
type refusalWords struct {
	Error  string `json:"error"` // "refused": it is this sandbox's policy that answers
	Reason string `json:"reason"`
	Rule   string `json:"rule,omitempty"`
	ID     string `json:"requestId,omitempty"`
	Ask    string `json:"ask,omitempty"`
	Host   string `json:"host,omitempty"`
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
}

// RefusedHeader is in every answer that refuses a request. It has the id of the
// decision, or "-" when that has none.
const RefusedHeader = "Tombolo-Refused"

// RefusedBy is the value of [RefusedHeader] for a decision.
func RefusedBy(d Decision) string {
	if d.ID == "" {
		return "-"
	}
	return d.ID
}

// RefusalBody is what a program inside gets, with status 403, in place of the answer
// to a request that was denied: JSON with the reason, the rule and the id of the
// decision, and how to ask.
func RefusalBody(r Request, d Decision) []byte {
	host := r.Name
	if host == "" {
		host = r.Destination.Addr().String()
	}
	body, err := json.Marshal(refusalWords{
		Error: "refused", Reason: d.Reason, Rule: d.Rule, ID: d.ID, Ask: d.Ask, Host: host, Method: r.Method, Path: r.Path,
	})
	if err != nil { // never: there are only strings in it
		return []byte(`{"error":"refused"}`)
	}
	return append(body, '\n')
}

// answerRefusal answers one request in the clear.
func answerRefusal(conn *insideConn, from io.Reader, r Request, d Decision) {
	request, err := http.ReadRequest(bufio.NewReader(io.LimitReader(from, maxFlight)))
	if err != nil {
		conn.abort()
		return
	}
	host, _, found := strings.Cut(request.Host, ":")
	if name, err := HostName(host); err == nil && (found || !strings.Contains(host, ":")) {
		r.Name = name
	}
	r.Method, r.Path = request.Method, request.URL.Path
	body := RefusalBody(r, d)
	head := "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nConnection: close\r\n" +
		RefusedHeader + ": " + RefusedBy(d) + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	if request.Method == http.MethodHead {
		body = nil
	}
	if _, err := conn.Write(append([]byte(head), body...)); err != nil {
		return
	}
	// What is unread when a connection is closed would reset it before the answer is read.
	_ = conn.CloseWrite()
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, maxRefusedBody))
}

// maxRefusedBody is how much of the body of a request that was refused is read and
// thrown away, bytes.
const maxRefusedBody = 1 << 20

// replayed is a connection from inside of which something was read already.
type replayed struct {
	*insideConn
	first []byte
	meter meter
	idle  *idleTimer // nil has no limit
}

func (c *replayed) touch(count int) {
	if c.idle != nil && count > 0 {
		c.idle.touch()
	}
}

func (c *replayed) Read(b []byte) (int, error) {
	b = b[:min(len(b), chunkSize)] // as much as may pass at once
	if len(c.first) > 0 {
		count := copy(b, c.first)
		if c.first = c.first[count:]; len(c.first) == 0 {
			c.first = nil // the connection may be open for long
		}
		return count, c.meter.out.pass(count)
	}
	count, err := c.insideConn.Read(b)
	c.touch(count)
	if passed := c.meter.out.pass(count); err == nil {
		err = passed
	}
	return count, err
}

func (c *replayed) Write(b []byte) (int, error) {
	for written := 0; ; {
		next := b[written:min(len(b), written+chunkSize)]
		if err := c.meter.in.pass(len(next)); err != nil {
			return written, err
		}
		count, err := c.insideConn.Write(next)
		c.touch(count)
		if written += count; err != nil || written == len(b) {
			return written, err
		}
	}
}

// NetConn lets who needs it see the connection below.
func (c *replayed) NetConn() net.Conn { return c.insideConn }
