package secret

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// MaxBody is how large a body may be that placeholders are looked for in, bytes.
const MaxBody = 1 << 20

// errNoText: the body is of no type that values are put into.
var errNoText = errors.New("no text")

// body is that of a request, or its first MaxBody bytes.
type body struct {
	text   string
	whole  bool
	encode func(string) string // a value as it stands in such a text
}

// readBody reads the body of a request and puts it back.
func readBody(req *http.Request) (*body, error) {
	encode := encoder(req.Header)
	if req.Body == nil || req.Body == http.NoBody || encode == nil {
		return nil, errNoText
	}
	text, err := io.ReadAll(io.LimitReader(req.Body, MaxBody+1))
	if err != nil {
		return nil, err
	}
	b := &body{text: string(text), whole: len(text) <= MaxBody, encode: encode}
	req.Body = rest{io.MultiReader(bytes.NewReader(text), req.Body), req.Body}
	return b, nil
}

// rest is a body of which some was read already.
type rest struct {
	io.Reader
	io.Closer
}

// encoder is how a value is written within a body of the type that headers say, nil when
// values are not put into such a body.
func encoder(h http.Header) func(string) string {
	if coding := h.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return nil
	}
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || len(h.Values("Content-Type")) != 1 {
		return nil
	}
	switch {
	case kind == "application/json", kind == "application/x-ndjson", strings.HasSuffix(kind, "+json"):
		return func(value string) string { return jsonText(value, false) }
	case kind == "application/x-www-form-urlencoded":
		return url.QueryEscape
	case kind == "text/plain", kind == "application/graphql":
		return plain
	}
	return nil
}

func (b *body) has(placeholder string) bool { return strings.Contains(b.text, placeholder) }

// swap puts values into the body of a request, which was read.
func (b *body) swap(req *http.Request, values map[*entry]string) {
	text := replacer(values, b.encode).Replace(b.text)
	req.Body = rest{strings.NewReader(text), req.Body}
	req.GetBody = nil
	req.ContentLength = int64(len(text))
	req.TransferEncoding = nil
	if req.Header.Get("Content-Length") != "" {
		req.Header.Set("Content-Length", strconv.Itoa(len(text)))
	}
}
