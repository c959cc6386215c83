package intercept

import (
	"bufio"
	"compress/zlib"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	// maxEncodings bounds how often a body may be encoded.
	maxEncodings = 3
	// maxWindow bounds what decoding zstd holds, bytes: what RFC 9659 allows on the web.
	maxWindow = 8 << 20
)

// decoded is the body of an answer without its encodings, which are taken out of
// its headers.
func decoded(res *http.Response) (io.ReadCloser, error) {
	var encodings []string
	for _, value := range res.Header["Content-Encoding"] {
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.ToLower(strings.TrimSpace(name)); name != "" && name != "identity" {
				encodings = append(encodings, name)
			}
		}
	}
	if encoding := messageEncoding(res.Header); encoding != "" {
		return nil, fmt.Errorf("the messages of its answer are encoded (%s), which cannot be looked through for secrets, and it was asked not to", encoding)
	}
	if len(encodings) == 0 {
		return res.Body, nil
	}
	if len(encodings) > maxEncodings || res.StatusCode == http.StatusPartialContent {
		return nil, fmt.Errorf("its answer is encoded (%s) in a way that cannot be looked through for secrets, and it was asked not to", strings.Join(encodings, ", "))
	}
	body := res.Body
	for len(encodings) > 0 {
		last := len(encodings) - 1
		open := decoders[encodings[last]]
		if open == nil {
			return nil, fmt.Errorf("its answer is encoded as %q, which cannot be looked through for secrets, and it was asked not to", encodings[last])
		}
		body = &decoder{src: body, open: open}
		encodings = encodings[:last]
	}
	for _, name := range []string{"Content-Encoding", "Content-Length", "Content-Md5", "Digest", "Content-Digest"} {
		res.Header.Del(name)
	}
	res.ContentLength = -1
	return body, nil
}

var decoders = map[string]func(io.Reader) (io.Reader, error){
	"gzip":    openGzip,
	"x-gzip":  openGzip,
	"deflate": openDeflate,
	"br":      func(r io.Reader) (io.Reader, error) { return brotli.NewReader(r), nil },
	"zstd": func(r io.Reader) (io.Reader, error) {
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	},
}

func openGzip(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }

// openDeflate takes both that the name is used for: with the header of zlib, as RFC
// 9110 has it, and without.
func openDeflate(r io.Reader) (io.Reader, error) {
	buffered := bufio.NewReader(r)
	head, err := buffered.Peek(2)
	if err != nil && len(head) < 2 {
		return nil, err
	}
	if head[0]&0x0f == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 {
		return zlib.NewReader(buffered)
	}
	return flate.NewReader(buffered), nil
}

// decoder opens itself at the first read: what opens it waits for the first bytes.
type decoder struct {
	src  io.ReadCloser
	open func(io.Reader) (io.Reader, error)
	r    io.Reader
	err  error
}

// Read implements io.Reader.
func (d *decoder) Read(p []byte) (int, error) {
	if d.r == nil && d.err == nil {
		d.r, d.err = d.open(d.src)
	}
	if d.err != nil {
		return 0, d.err
	}
	return d.r.Read(p)
}

// Close implements io.Closer.
func (d *decoder) Close() error {
	if z, ok := d.r.(*zstd.Decoder); ok {
		z.Close()
	}
	return d.src.Close()
}
