package edge

import (
	"net/http"
	"net/http/httputil"
	"slices"
	"sync"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Bodies are passed on in pieces, bytes. Each piece wakes the other side, which
// costs more than moving it; but a stream keeps its buffer however long it lives,
// so only a body known to be large gets a large one.
const (
	copyBuffer      = 64 << 10
	largeCopyBuffer = 256 << 10
	largeBody       = 1 << 20
)

// pass takes one request into a sandbox that runs and streams both ways. An error
// means that nothing was answered yet: errNotSent when nothing was sent either.
func (e *edge) pass(w http.ResponseWriter, r *http.Request, t target, info sandbox.Info) error {
	up, err := e.upstreams.get(info)
	if err != nil {
		return err
	}
	p := &httputil.ReverseProxy{
		Transport:     up.transportFor(r),
		FlushInterval: -1, // every write at once: most answers are streams
		BufferPool:    e.buffers,
		ErrorLog:      e.proxyLog,
		Rewrite:       func(pr *httputil.ProxyRequest) { rewrite(pr, t, info.Network) },
	}
	p.ModifyResponse = func(res *http.Response) error {
		if res.ContentLength >= largeBody {
			p.BufferPool = large
		}
		if t.ourOrigin {
			disarm(res.Header)
		}
		return nil
	}
	var failed error
	p.ErrorHandler = func(_ http.ResponseWriter, _ *http.Request, err error) { failed = up.explain(err) }
	p.ServeHTTP(w, r)
	return failed
}

func rewrite(pr *httputil.ProxyRequest, t target, options sandbox.NetworkOptions) {
	pr.SetXForwarded() // what the client sent of these is gone already
	pr.Out.Header.Del("X-Api-Key")
	pr.Out.Header.Del(trafficTokenHeader)
	dropToken(pr.Out.Header)
	pr.Out.URL.Scheme = "http"
	if slices.Contains(options.HTTPSPorts, t.port) {
		pr.Out.URL.Scheme = "https"
	}
	pr.Out.URL.Host = localHost(t.port)
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery // also where it is malformed
	if t.host != "" {
		pr.Out.Host = t.host
	}
	if options.MaskRequestHost != "" && t.port != hostapi.AgentPort {
		pr.Out.Host = sandbox.MaskHost(options.MaskRequestHost, t.port)
	}
}

// disarm makes an answer harmless to the origin a browser shows it on: without
// cookies and orders to the browser, and, should it be a page, with no rights.
func disarm(h http.Header) {
	for _, name := range []string{"Set-Cookie", "Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc", "Service-Worker-Allowed"} {
		h.Del(name)
	}
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("X-Content-Type-Options", "nosniff")
}

// buffers is an httputil.BufferPool.
type buffers struct{ pool sync.Pool }

// large serves one large body at a time each.
var large = newBuffers(largeCopyBuffer)

func newBuffers(size int) *buffers {
	return &buffers{sync.Pool{New: func() any {
		b := make([]byte, size)
		return &b
	}}}
}

func (b *buffers) Get() []byte  { return *b.pool.Get().(*[]byte) }
func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
