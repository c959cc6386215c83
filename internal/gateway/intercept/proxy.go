package intercept

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

const (
	// copyBuffer is how much of a body is passed on at once, bytes.
	copyBuffer = 64 << 10
	// flushAfter is how long a part of a body may wait for the next.
	flushAfter = 5 * time.Millisecond
)

// exchange is one request and its answer.
type exchange struct {
	session  *session
	request  gateway.Request
	upstream *upstream
	scrubber gateway.Scrubber // nil: nothing to take out
	// webSocket: the request asks for one.
	webSocket bool
	ahead     *readAhead
	err       error // of rewriting: the request is not sent
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

// serve is the handler of every request from inside.
func (i *Interceptor) serve(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(carriedKey{}).(*carried)
	request, wrong := requestOf(&c.Intercepted, r)
	if c.Refused != nil {
		refuse(w, http.StatusForbidden, request, *c.Refused)
		return
	}
	if wrong != nil {
		refuse(w, wrong.status, request, c.session.warden.Deny(request, wrong.words))
		return
	}
	select {
	case c.session.slots <- struct{}{}:
		defer func() { <-c.session.slots }()
	default:
		w.Header().Set("Retry-After", "1")
		fail(w, http.StatusServiceUnavailable, tooMany, "this sandbox has too many requests under way")
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	defer context.AfterFunc(c.session.ctx, cancel)()
	x := &exchange{session: c.session, request: request, webSocket: asksForWebSocket(r)}
	i.exchange(w, r.WithContext(context.WithValue(ctx, exchangeKey{}, x)), x)
}

// exchange has a request judged and answers it.
func (i *Interceptor) exchange(w http.ResponseWriter, r *http.Request, x *exchange) {
	x.ahead = watchClient(r)
	defer x.ahead.stop()
	decision := x.session.warden.Judge(r.Context(), x.request)
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // nobody is there to be answered
	}
	if !decision.Allowed() {
		refuse(w, http.StatusForbidden, x.request, decision)
		return
	}
	up, err := x.session.upstreams.take(x.request, r.ProtoMajor == 2)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	x.upstream = up
	defer x.session.upstreams.give(up)
	if r.ProtoMajor == 1 {
		// The destination may answer while it is still sent to. The server supports it.
		_ = http.NewResponseController(w).EnableFullDuplex()
	}
	// What the destination leaves out is not put in.
	w.Header()["Content-Type"] = nil
	w.Header()["Date"] = nil
	i.proxy.ServeHTTP(w, r)
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		finishBody(w, r)
	}
}

// finishBody reads what was not sent of a body, a little of it, and ends the connection
// after the answer where there is more. The server would do so itself, but too late
// where EnableFullDuplex was called: what it then starts to read collides with the next
// request, which is lost.
func finishBody(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).Flush() // the answer does not wait for the rest
	_ = r.Body.Close()
}

func newProxy(log *slog.Logger) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:   rewrite,
		Transport: transport{},
		// Of a length that is known; others are sent as they come, write by write.
		FlushInterval:  flushAfter,
		ModifyResponse: func(res *http.Response) error { return receive(exchangeOf(res.Request.Context()), res) },
		ErrorHandler:   answerError,
		BufferPool:     &buffers{},
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug), // sandboxes can fill it
	}
}

// rewrite makes what is sent of what came.
func rewrite(pr *httputil.ProxyRequest) {
	x := exchangeOf(pr.In.Context())
	out := pr.Out
	out.URL.Scheme, out.URL.Host = x.upstream.scheme, x.upstream.host
	out.URL.RawQuery = pr.In.URL.RawQuery // also where it is malformed
	keepPath(pr)
	keepHeaders(pr)
	if !x.webSocket {
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
	passTrailers(pr)
	request := x.request
	if encoding := messageEncoding(out.Header); encoding != "" { // servers answer in the same
		request.Unreadable = errEncodedMessages(encoding)
	}
	x.scrubber, x.err = x.session.warden.Rewrite(out.Context(), request, out)
	x.ahead.stop() // what is sent is read from now on
	if x.err != nil || x.scrubber == nil {
		return
	}
	askReadable(out.Header)
	if encoding := messageEncoding(out.Header); encoding != "" {
		x.err = errEncodedMessages(encoding)
	}
}

// errEncodedMessages is the encoding of the messages of a request whose answer could not be
// looked through.
type errEncodedMessages string

func (e errEncodedMessages) Error() string {
	return fmt.Sprintf("messages encoded as %s cannot be looked through for secrets: turn compression off for this host", string(e))
}

// keepPath has the path sent that the request was judged by.
func keepPath(pr *httputil.ProxyRequest) {
	if p := sentPath(pr.In); p != pr.Out.URL.EscapedPath() {
		pr.Out.URL.Opaque = p
	}
}

// keepHeaders puts back what ReverseProxy takes out: it is for the destination, and
// says nothing about us.
func keepHeaders(pr *httputil.ProxyRequest) {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := pr.In.Header[name]; ok && !namedByConnection(pr.In.Header, name) {
			pr.Out.Header[name] = values
		}
	}
}

func namedByConnection(h http.Header, name string) bool {
	return httpguts.HeaderValuesContainsToken(h["Connection"], name)
}

// passTrailers gives the trailers of a request to what is sent, which has a copy from
// before they came.
func passTrailers(pr *httputil.ProxyRequest) {
	if len(pr.In.Trailer) > 0 && pr.Out.Body != nil {
		pr.Out.Body = &trailing{ReadCloser: pr.Out.Body, from: pr.In, to: pr.Out}
	}
}

type trailing struct {
	io.ReadCloser
	from, to *http.Request
}

func (t *trailing) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF {
		for name, values := range t.from.Trailer {
			t.to.Trailer[name] = values
		}
	}
	return n, err
}

// asksForWebSocket: other protocols are not switched to, since requests would pass
// unseen in them.
func asksForWebSocket(r *http.Request) bool {
	return r.Method == http.MethodGet && r.ProtoMajor == 1 && r.ContentLength == 0 &&
		httpguts.HeaderValuesContainsToken(r.Header["Connection"], "Upgrade") &&
		strings.EqualFold(r.Header.Get("Upgrade"), "websocket") && r.Header.Get("Sec-Websocket-Key") != ""
}

// transport sends a request to the destination of its exchange.
type transport struct{}

func (transport) RoundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r.Context())
	if x.err != nil {
		return nil, x.err
	}
	if x.scrubber != nil {
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
				scrubHeader(http.Header(h), x.scrubber)
				return nil
			},
		}))
	}
	return x.upstream.transport.RoundTrip(r)
}

// receive prepares an answer for the client.
func receive(x *exchange, res *http.Response) error {
	if res.StatusCode == http.StatusSwitchingProtocols && !x.webSocket {
		return errUnaskedSwitch
	}
	res.Header.Del("Alt-Svc") // leads to where connections are not let
	if len(res.Trailer) > 0 {
		res.Header.Del("Content-Length") // HTTP/1 has trailers only where the length is not said
	}
	if x.scrubber == nil {
		return nil
	}
	return scrub(res, x.scrubber)
}

var errUnaskedSwitch = errors.New("it switched to another protocol without being asked to")

// buffers is an httputil.BufferPool.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, copyBuffer)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
