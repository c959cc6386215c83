package intercept_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
)

// ways are the protocols that a client may speak.
var ways = []struct {
	name       string
	tls, http2 bool
}{
	{"HTTP/1.1 over TLS", true, false},
	{"HTTP/2 over TLS", true, true},
	{"HTTP/1.1 in the clear", false, false},
	{"HTTP/2 in the clear", false, true},
}

func eachWay(t *testing.T, h http.HandlerFunc, do func(t *testing.T, w *world, c *http.Client)) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			to := serverFor(t, way.tls, h)
			w := inWorld(t, to, gateway.Intercepted{TLS: way.tls, Name: "localhost"}, intercept.Config{})
			do(t, w, w.client(way.http2))
		})
	}
}

func TestRequestAndAnswerPassAsTheyAre(t *testing.T) {
	eachWay(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		w.Header()["Date"] = nil
		w.Header().Set("X-Seen", r.Method+" "+r.Host+" "+r.RequestURI)
		w.Header()["X-Headers"] = []string{r.Header.Get("X-Forwarded-For"), r.Header.Get("User-Agent"), r.Header.Get("Accept-Encoding")}
		w.Header()["Content-Type"] = nil
		w.WriteHeader(http.StatusTeapot)
		w.Write(append([]byte("<html>"), body...))
	}, func(t *testing.T, w *world, c *http.Client) {
		req, err := http.NewRequest("PUT", w.url("/a%20b/{c}?q=%zz;x"), strings.NewReader("body"))
		require.NoError(t, err)
		req.Header["X-Forwarded-For"] = []string{"9.9.9.9"}
		req.Header["User-Agent"] = nil
		res, err := c.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, "<html>body", string(body))
		require.Equal(t, http.StatusTeapot, res.StatusCode)
		require.Equal(t, "PUT "+req.URL.Host+" "+req.URL.RequestURI(), res.Header.Get("X-Seen"))
		require.Equal(t, []string{"9.9.9.9", "", ""}, res.Header["X-Headers"])
		for _, name := range []string{"Content-Type", "Date", "Via", intercept.FailedHeader, gateway.RefusedHeader} {
			require.NotContains(t, res.Header, name, "nothing is put in")
		}
		require.Equal(t, gateway.Request{
			Protocol: gateway.HTTP, Destination: w.addr, Name: "localhost",
			Method: "PUT", Path: "/a b/{c}", Query: "q=%zz;x", Encrypted: w.conn.TLS,
		}, w.lastJudged())
	})
}

func TestRefusalIsReadable(t *testing.T) {
	eachWay(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent on") }, func(t *testing.T, w *world, c *http.Client) {
		w.judge = denies(gateway.Decision{Reason: "no uploads", Rule: "key/uploads", ID: "dec_1", Ask: "wait"})
		res, err := c.Post(w.url("/x?secret"), "text/plain", strings.NewReader("body"))
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusForbidden, res.StatusCode)
		require.Equal(t, "application/json", res.Header.Get("Content-Type"))
		require.Equal(t, "dec_1", res.Header.Get(gateway.RefusedHeader))
		require.JSONEq(t, `{"error":"refused","reason":"no uploads","rule":"key/uploads","requestId":"dec_1","ask":"wait","host":"localhost","method":"POST","path":"/x"}`, string(body))
		require.Zero(t, w.dials())
	})
}
