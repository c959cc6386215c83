package gateway_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
)

// webServer answers each request with its Host and target.
func webServer(conn net.Conn) {
	reader := bufio.NewReader(conn)
	for {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, request.Body)
		body := "served " + request.Host + " " + request.RequestURI + "\n"
		_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
		if err != nil {
			return
		}
	}
}

// interception is an authority that sandboxes trust, and what is trusted outside.
type interception struct {
	inside  *tls.Config // of clients in a sandbox
	outside *tls.Config // of servers
	config  intercept.Config
}

// newInterception has servers outside with a certificate for every name of example.
func newInterception(t testing.TB) *interception {
	t.Helper()
	authority, err := intercept.OpenAuthority(t.TempDir())
	require.NoError(t, err)
	outer, err := intercept.OpenAuthority(t.TempDir())
	require.NoError(t, err)
	trusted := func(a *intercept.Authority) *x509.CertPool {
		pool := x509.NewCertPool()
		require.True(t, pool.AppendCertsFromPEM(a.PEM()))
		return pool
	}
	return &interception{
		inside:  &tls.Config{RootCAs: trusted(authority)},
		outside: &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return outer.Leaf(h.ServerName) }},
		config:  intercept.Config{Authority: authority, Roots: trusted(outer)},
	}
}

func (i *interception) with(t testing.TB) func(*gateway.Config) {
	all := intercept.New(i.config)
	t.Cleanup(func() { _ = all.Close() })
	return func(c *gateway.Config) { c.Interceptor = all }
}

// secureWeb is webServer over TLS.
func (i *interception) secureWeb(conn net.Conn) { webServer(tls.Server(conn, i.outside)) }

func withInterceptor(t testing.TB) func(*gateway.Config) { return newInterception(t).with(t) }

// askOver sends requests over one connection and returns all that is answered.
func askOver(t testing.TB, conn net.Conn, requests ...string) []*http.Response {
	t.Helper()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	reader := bufio.NewReader(conn)
	var answers []*http.Response
	for _, request := range requests {
		_, err := io.WriteString(conn, request)
		require.NoError(t, err)
		answer, err := http.ReadResponse(reader, nil)
		require.NoError(t, err)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		answer.Body = io.NopCloser(strings.NewReader(string(body)))
		answers = append(answers, answer)
	}
	return answers
}

func bodyOf(answer *http.Response) string {
	body, _ := io.ReadAll(answer.Body)
	return string(body)
}

// throughTLS begins TLS inside, in a name, as a client that trusts the authority.
func (i *interception) throughTLS(t testing.TB, conn net.Conn, name string) net.Conn {
	t.Helper()
	config := i.inside.Clone()
	config.ServerName = name
	secure := tls.Client(conn, config)
	require.NoError(t, secure.Handshake())
	return secure
}

func TestRequestsInTheClearAreJudgedEach(t *testing.T) {
	i := newInternet(t)
	i.name("allowed.example", allowedIP)
	i.name("evil.example", evilIP)
	i.serve(allowedIP+":80", webServer)
	n := i.network(&rules{allow: []string{"allowed.example"}}, withInterceptor(t))
	conn, err := connect(t, n, "allowed.example", "80")
	require.NoError(t, err)
	answers := askOver(t, conn,
		"GET /1 HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
		"GET /2 HTTP/1.1\r\nHost: ALLOWED.example.:80\r\n\r\n",
		"GET /3 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET /4 HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
	)
	for k, want := range []int{200, 200, 403, 200} {
		require.Equal(t, want, answers[k].StatusCode, "request %d", k+1)
	}
	require.Contains(t, bodyOf(answers[2]), "not on the list")
	require.Equal(t, "served allowed.example /4\n", bodyOf(answers[3]))
}

// during waits before it judges addresses.
type during struct {
	*rules
	at, on chan struct{}
}

func (p during) Decide(ctx context.Context, r gateway.Request) gateway.Decision {
	if r.Protocol == gateway.DNSAnswer {
		p.at <- struct{}{}
		<-p.on
	}
	return p.rules.Decide(ctx, r)
}

func TestRulesThatChangeAfterARequestWasAllowedReachItBeforeItIsSent(t *testing.T) {
	i := newInternet(t)
	i.name("slow.example", allowedIP)
	i.serve(allowedIP+":80", webServer)
	p := during{&rules{ask: map[string]chan int{"slow.example": make(chan int, 1)}}, make(chan struct{}), make(chan struct{})}
	n := i.network(p, withInterceptor(t))
	conn, err := dialFromInside(t, n, "tcp4", allowedIP+":80")
	require.NoError(t, err)
	answered := make(chan *http.Response, 1)
	go func() { answered <- askOver(t, conn, "GET / HTTP/1.1\r\nHost: slow.example\r\n\r\n")[0] }()
	p.ask["slow.example"] <- 1 // a person allows it, and then it is looked up
	<-p.at
	n.SetPolicy(&rules{})
	require.NoError(t, n.Recheck(t.Context()))
	close(p.on)
	answer := <-answered
	require.Equal(t, http.StatusForbidden, answer.StatusCode)
	require.Contains(t, bodyOf(answer), "not on the list")
	require.Empty(t, i.wasDialled())
}

func TestRequestInWhichNothingMovesEndsUnlessAPersonIsWaitedFor(t *testing.T) {
	i := newInternet(t)
	i.name("silent.example", allowedIP)
	i.serve(allowedIP+":80", func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	p := &rules{allow: []string{"silent.example"}, ask: map[string]chan int{"slow.example": make(chan int)}}
	n := i.network(p, withInterceptor(t), func(c *gateway.Config) { c.Limits = gateway.Limits{TCPIdle: 500 * time.Millisecond} })
	send := func(host string) net.Conn {
		conn, err := connect(t, n, host, "80")
		require.NoError(t, err)
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
		require.NoError(t, err)
		return conn
	}
	held := send("slow.example")
	require.Eventually(t, func() bool { return p.waits() == 1 }, 20*time.Second, time.Millisecond)
	silent := send("silent.example")
	require.NoError(t, silent.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err := io.Copy(io.Discard, silent)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "nothing moves in it")
	require.Equal(t, 1, p.waits())
	require.NoError(t, held.Close())
}

func TestRequestsWithinTLSAreJudgedEach(t *testing.T) {
	i, in := newInternet(t), newInterception(t)
	i.name("seen.example", seenIP)
	i.serve(seenIP+":443", in.secureWeb)
	p := &rules{see: []string{"seen.example"}}
	n := i.network(p, in.with(t))
	conn, err := connect(t, n, "seen.example", "443")
	require.NoError(t, err)
	secure := in.throughTLS(t, conn, "seen.example")
	answers := askOver(t, secure, "GET /a?b HTTP/1.1\r\nHost: seen.example\r\n\r\n")
	require.Equal(t, "served seen.example /a?b\n", bodyOf(answers[0]))
	require.Equal(t, []string{seenIP + ":443"}, i.wasDialled())

	// What the rules say now ends it, though it was allowed.
	n.SetPolicy(&rules{})
	require.NoError(t, n.Recheck(t.Context()))
	_, err = secure.Read(make([]byte, 1))
	require.Error(t, err)
}

func TestRequestUnderWayEndsWithItsPermission(t *testing.T) {
	i := newInternet(t)
	i.name("allowed.example", allowedIP)
	arrived := make(chan struct{})
	i.serve(allowedIP+":80", func(conn net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(conn))
		close(arrived)
		_, _ = io.Copy(io.Discard, conn)
	})
	n := i.network(&rules{allow: []string{"allowed.example"}}, withInterceptor(t))
	conn, err := connect(t, n, "allowed.example", "80")
	require.NoError(t, err)
	_, err = io.WriteString(conn, "GET /1 HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
	require.NoError(t, err)
	<-arrived
	require.NoError(t, n.Recheck(t.Context()))
	n.SetPolicy(&rules{})
	require.NoError(t, n.Recheck(t.Context()))
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, io.EOF)
}

func TestRefusalIsReadWithinTLS(t *testing.T) {
	i, in := newInternet(t), newInterception(t)
	n := i.network(&rules{}, in.with(t))
	conn, err := connect(t, n, "evil.example", "443")
	require.NoError(t, err)
	answers := askOver(t, in.throughTLS(t, conn, "evil.example"), "GET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n")
	require.Equal(t, 403, answers[0].StatusCode)
	require.Contains(t, bodyOf(answers[0]), "not on the list")
	require.Empty(t, i.wasAsked())

	// An allowed name that does not lead to an address is refused in the same way.
	i.name("allowed.example", allowedIP)
	n.SetPolicy(&rules{allow: []string{"allowed.example"}})
	conn, err = dialFromInside(t, n, "tcp4", evilIP+":443")
	require.NoError(t, err)
	answers = askOver(t, in.throughTLS(t, conn, "allowed.example"), "GET /x HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
	require.Equal(t, 403, answers[0].StatusCode)
	require.Contains(t, bodyOf(answers[0]), "the name allowed.example does not lead to the address "+evilIP)
	require.Empty(t, i.wasDialled())
}

func TestHeldRequestEndsWithItsClient(t *testing.T) {
	i := newInternet(t)
	p := &rules{ask: map[string]chan int{"asked.example": nil}}
	n := i.network(p, withInterceptor(t))
	conn, err := connect(t, n, "asked.example", "80")
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: asked.example\r\nContent-Length: 10000000\r\n\r\nbegin")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return p.waits() == 1 && n.Stats().Held == 1 }, 20*time.Second, time.Millisecond)
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool { return p.waits() == 0 && n.Stats().Held == 0 }, 20*time.Second, time.Millisecond)
}

func TestProgramThatDoesNotTrustTheAuthorityIsReported(t *testing.T) {
	i, in := newInternet(t), newInterception(t)
	i.name("seen.example", seenIP)
	events := make(chan gateway.Event, 100)
	n := i.network(&rules{see: []string{"seen.example"}}, in.with(t), func(c *gateway.Config) {
		c.OnDecision = func(e gateway.Event) { events <- e }
	})
	conn, err := connect(t, n, "seen.example", "443")
	require.NoError(t, err)
	_, err = overTLS(conn, &tls.Config{RootCAs: x509.NewCertPool()}, "seen.example")
	require.Error(t, err)
	for e := range events {
		if e.Request.Protocol == gateway.TLS && !e.Decision.Allowed() && e.Decision.Verdict == gateway.Deny {
			require.Contains(t, e.Decision.Reason, "seen.example")
			return
		}
	}
}

// Connections that are closed while they still deliver are no sandbox that takes nothing.
func TestManyAnswersAreDeliveredAfterTheirConnectionsAreClosed(t *testing.T) {
	i := newInternet(t)
	i.name("allowed.example", allowedIP)
	body := strings.Repeat("x", 512<<10)
	i.serve(allowedIP+":80", func(conn net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
		}
	})
	n := i.network(&rules{allow: []string{"allowed.example"}}, withInterceptor(t), func(c *gateway.Config) { c.Limits.BufferBytes = 1 << 30 })
	const many = 150
	var begun, done sync.WaitGroup
	begun.Add(many)
	failed := make(chan error, many)
	for range many {
		conn, err := connect(t, n, "allowed.example", "80")
		require.NoError(t, err)
		done.Go(func() {
			_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
			first := make([]byte, 1)
			_, err := conn.Read(first)
			begun.Done()
			begun.Wait()
			rest, errRest := io.ReadAll(conn)
			if err = errors.Join(err, errRest); err == nil && len(rest) < len(body) {
				err = io.ErrUnexpectedEOF
			}
			failed <- err
		})
	}
	done.Wait()
	for range many {
		require.NoError(t, <-failed)
	}
}
