package edge

import (
	"net/http"
	"net/http/httputil"
	"sync"
)

// Bodies are passed on in pieces, bytes. Each piece wakes the other side, which
// costs more than moving it; but a stream keeps its buffer however long it lives,
// so only a body known to be large gets a large one.
const (
	copyBuffer      = 64 << 10
	largeCopyBuffer = 256 << 10
	largeBody       = 1 << 20
)

// proxy is the reverse proxy for one request.
func (e *edge) proxy(up *upstream, t target) http.Handler {
	p := &httputil.ReverseProxy{
		Transport:     up.transport,
		FlushInterval: -1, // every write at once: most answers are streams
		BufferPool:    e.buffers,
		ErrorLog:      e.proxyLog,
		Rewrite:       func(pr *httputil.ProxyRequest) { rewrite(pr, t) },
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
	p.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) {
		if r.Context().Err() != nil {
			return // the client left
		}
		refuse(w, r, refusalFor(e.explain(err, t), t))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			p.ServeHTTP(w, r)
			return
		}
		// An answer may begin while the request still streams, as in a client stream
		// or an early refusal. HTTP/2 can anyway, and says ErrNotSupported.
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		body := &requestBody{ReadCloser: r.Body}
		defer body.finish(rc)
		r = r.WithContext(r.Context()) // a copy: the server keeps its own body
		r.Body = body
		p.ServeHTTP(w, r)
	})
}

func rewrite(pr *httputil.ProxyRequest, t target) {
	pr.SetXForwarded() // what the client sent of these is gone already
	pr.Out.Header.Del("X-Api-Key")
	pr.Out.URL.Scheme = "http"
	pr.Out.URL.Host = localHost(t.port)
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery // also where it is malformed
	if t.host != "" {
		pr.Out.Host = t.host
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

// explain replaces an error that comes of the sandbox's end by that end.
func (e *edge) explain(err error, t target) error {
	if _, gone := e.sandboxes.Get(t.id); gone != nil {
		return gone
	}
	return err
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
