package intercept

import (
	"bytes"
	"io"
	"net/http"
	"strconv"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// maxWhole is how long a body may be, bytes, of which the length is found out before it is sent
// on. Others are sent without.
const maxWhole = 64 << 10

// askReadable changes a request so that its answer can be read.
func askReadable(h http.Header) {
	h.Set("Accept-Encoding", "identity")
	if h.Get("Grpc-Accept-Encoding") != "" {
		h.Set("Grpc-Accept-Encoding", "identity")
	}
	h.Del("Sec-Websocket-Extensions") // compression
}

// scrub has everything of an answer scrubbed.
func scrub(res *http.Response, s gateway.Scrubber) error {
	scrubHeader(res.Header, s)
	if res.StatusCode == http.StatusSwitchingProtocols {
		return scrubWebSocket(res, s)
	}
	if res.Body == http.NoBody || res.ContentLength == 0 {
		scrubHeader(res.Trailer, s)
		return nil
	}
	if res.Request.Method == http.MethodHead {
		return nil
	}
	plain, err := decoded(res)
	if err != nil {
		return err
	}
	body := &scrubbed{Reader: s.Reader(plain), Closer: plain, res: res, by: s}
	res.Body = body
	if res.ContentLength < 0 || res.ContentLength > maxWhole {
		res.ContentLength = -1
		res.Header.Del("Content-Length")
		return nil
	}
	return readWhole(res)
}

// readWhole reads the body of res and says how long it is.
func readWhole(res *http.Response) error {
	all, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if err := res.Body.Close(); err != nil {
		return err
	}
	res.Body = io.NopCloser(bytes.NewReader(all))
	res.ContentLength = int64(len(all))
	res.Header.Set("Content-Length", strconv.Itoa(len(all)))
	return nil
}

func scrubHeader(h http.Header, s gateway.Scrubber) {
	for _, values := range h {
		for i, v := range values {
			values[i] = s.String(v)
		}
	}
}

// scrubbed is a body whose trailers are scrubbed when they are there.
type scrubbed struct {
	io.Reader
	io.Closer
	res *http.Response
	by  gateway.Scrubber
}

func (b *scrubbed) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		scrubHeader(b.res.Trailer, b.by)
	}
	return n, err
}
