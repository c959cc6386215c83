package intercept

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// maxWhole is how long a body may be, bytes, of which the length is found out before it is sent
// on. Others are sent without.
const maxWhole = 64 << 10

// askReadable changes a request so that its answer can be read: whole, as a part could
// end within a value, and without an encoding.
func askReadable(h http.Header) {
	h.Set("Accept-Encoding", "identity")
	for _, name := range []string{"Grpc-Accept-Encoding", "Connect-Accept-Encoding"} {
		if len(h[name]) > 0 {
			h.Set(name, "identity")
		}
	}
	h.Del("Sec-Websocket-Extensions") // compression
	h.Del("Range")
	h.Del("If-Range")
}

// messageEncoding is how the messages of gRPC and of Connect's streams are encoded, each by
// itself; empty when they are not.
func messageEncoding(h http.Header) string {
	for _, name := range []string{"Grpc-Encoding", "Connect-Content-Encoding"} {
		for _, encoding := range h[name] {
			if encoding = strings.TrimSpace(encoding); encoding != "" && !strings.EqualFold(encoding, "identity") {
				return encoding
			}
		}
	}
	return ""
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
