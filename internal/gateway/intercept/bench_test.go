package intercept_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
)

// BenchmarkRequest compares a request that is intercepted with one that is not, over
// TLS on loopback, in a connection that is kept and in a new one.
func BenchmarkRequest(b *testing.B) {
	to := serverFor(b, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }))
	for _, intercepted := range []bool{false, true} {
		for _, http2 := range []bool{false, true} {
			for _, anew := range []bool{false, true} {
				b.Run(fmt.Sprintf("intercepted=%v/http2=%v/new=%v", intercepted, http2, anew), func(b *testing.B) {
					url, client := to.URL, direct(to.Certificate(), to.Listener.Addr(), http2)
					if intercepted {
						w := inWorld(b, to, encrypted, intercept.Config{})
						url, client = w.url("/"), w.client(http2)
					}
					for b.Loop() {
						get(b, client, url)
						if anew {
							client.CloseIdleConnections()
						}
					}
				})
			}
		}
	}
}

// BenchmarkDownload is a long answer: as it is, through, and through a scrubber.
func BenchmarkDownload(b *testing.B) {
	body := bytes.Repeat([]byte("Some words as they stand in an answer, since such are seldom secret.\n"), 1<<20)
	to := serverFor(b, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write(body) }))
	for _, how := range []string{"direct", "intercepted", "scrubbed"} {
		for _, http2 := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/http2=%v", how, http2), func(b *testing.B) {
				url, client := to.URL, direct(to.Certificate(), to.Listener.Addr(), http2)
				if how != "direct" {
					w := inWorld(b, to, encrypted, intercept.Config{})
					url, client = w.url("/"), w.client(http2)
					if how == "scrubbed" {
						w.rewrite = scrubs(secret, placeholder)
					}
				}
				b.SetBytes(int64(len(body)))
				for b.Loop() {
					get(b, client, url)
				}
			})
		}
	}
}

func get(b *testing.B, c *http.Client, url string) {
	res, err := c.Get(url)
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	if err != nil || res.StatusCode != http.StatusOK {
		b.Fatal(res, err)
	}
}

func direct(cert *x509.Certificate, to net.Addr, http2 bool) *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", to.String())
		},
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"},
		Protocols:       protocols, DisableCompression: true,
	}}
}

// BenchmarkLeaf is the making of a certificate that was not made before.
func BenchmarkLeaf(b *testing.B) {
	ca, err := intercept.OpenAuthority(b.TempDir())
	require.NoError(b, err)
	for i := 0; b.Loop(); i++ {
		_, err := ca.Leaf(fmt.Sprintf("h%d.example", i))
		require.NoError(b, err)
	}
}

var _ gateway.Interceptor = (*intercept.Interceptor)(nil)
