package certs_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/certs"
)

const (
	testZone = "example.test."
	tsig     = "tombolo.:hmac-sha256:c2VjcmV0c2VjcmV0c2VjcmV0"
)

// nameServer is a name server of testZone that takes updates, signed ones only.
type nameServer struct {
	addr string

	mu      sync.Mutex
	records map[string][]string // TXT by name
	most    int                 // how many there were at once
}

func startNameServer(t *testing.T) *nameServer {
	t.Helper()
	n := &nameServer{records: map[string][]string{}}
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	n.addr = packets.LocalAddr().String()
	stream, err := net.Listen("tcp", n.addr)
	require.NoError(t, err)
	for _, server := range []*dns.Server{{PacketConn: packets}, {Listener: stream}} {
		server.Handler = n
		server.TsigSecret = map[string]string{"tombolo.": "c2VjcmV0c2VjcmV0c2VjcmV0"}
		server.MsgAcceptFunc = func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept }
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		go server.ActivateAndServe()
		<-started
		t.Cleanup(func() { server.Shutdown() })
	}
	return n
}

func (n *nameServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	n.mu.Lock()
	defer n.mu.Unlock()
	answer := new(dns.Msg)
	answer.SetReply(q)
	answer.Authoritative = true
	if q.Opcode == dns.OpcodeUpdate {
		if q.IsTsig() == nil || w.TsigStatus() != nil {
			answer.Rcode = dns.RcodeRefused
		} else {
			for _, rr := range q.Ns {
				n.change(rr.(*dns.TXT).Hdr.Name, rr.(*dns.TXT).Txt[0], rr.Header().Class == dns.ClassINET)
			}
			answer.SetTsig("tombolo.", dns.HmacSHA256, 300, time.Now().Unix())
		}
		w.WriteMsg(answer)
		return
	}
	question := q.Question[0]
	soa := &dns.SOA{Hdr: dns.RR_Header{Name: testZone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 1}, Ns: "ns." + testZone, Mbox: "x." + testZone, Serial: 1, Minttl: 1}
	switch {
	case question.Qtype == dns.TypeSOA && strings.EqualFold(question.Name, testZone):
		answer.Answer = append(answer.Answer, soa)
	case question.Qtype == dns.TypeTXT:
		for _, text := range n.records[strings.ToLower(question.Name)] {
			answer.Answer = append(answer.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{text}})
		}
	}
	if len(answer.Answer) == 0 {
		answer.Ns = append(answer.Ns, soa)
	}
	w.WriteMsg(answer)
}

func (n *nameServer) change(name, text string, add bool) {
	if add {
		n.records[name] = append(n.records[name], text)
		n.most = max(n.most, len(n.records[name]))
	} else {
		n.records[name] = slices.DeleteFunc(n.records[name], func(s string) bool { return s == text })
	}
}

// handle lets a program set records by HTTP: /present/NAME/VALUE.
func (n *nameServer) handle(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	n.mu.Lock()
	defer n.mu.Unlock()
	n.change(parts[2], parts[3], parts[1] == "present")
}

func (n *nameServer) left() (left, most int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, texts := range n.records {
		left += len(texts)
	}
	return left, n.most
}

// startPebble serves a test authority that looks names up at n, and counts what
// it is asked.
func startPebble(t *testing.T, n *nameServer) (directory string, roots, issued *x509.CertPool, asked *atomic.Int64) {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "0")
	quiet := log.New(io.Discard, "", 0)
	store := db.NewMemoryStore()
	authority := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {ValidityPeriod: 3600 * 24}})
	validator := va.New(quiet, 80, 443, false, n.addr, store)
	front := wfe.New(quiet, store, validator, authority, nil, false, false, 1, 1)
	asked = new(atomic.Int64)
	handler := front.Handler()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	roots = x509.NewCertPool()
	roots.AddCert(server.Certificate())
	issued = x509.NewCertPool()
	issued.AddCert(authority.GetRootCert(0).Cert)
	return server.URL + wfe.DirectoryPath, roots, issued, asked
}

func TestWildcardCertificateByACME(t *testing.T) {
	names := startNameServer(t)
	directory, roots, issued, asked := startPebble(t, names)
	web := httptest.NewServer(http.HandlerFunc(names.handle))
	t.Cleanup(web.Close)
	program := filepath.Join(t.TempDir(), "set-record")
	script := fmt.Sprintf("#!/bin/bash\nexec 3<>/dev/tcp/%s && printf 'GET /%%s/%%s/%%s HTTP/1.0\\r\\n\\r\\n' \"$1\" \"$2\" \"$3\" >&3 && grep -q '200 OK' <&3\n",
		strings.Replace(web.Listener.Addr().String(), ":", "/", 1))
	require.NoError(t, os.WriteFile(program, []byte(script), 0o700))

	for kind, provider := range map[string]string{"exec": "exec:" + program, "rfc2136": "rfc2136:" + names.addr} {
		t.Run(kind, func(t *testing.T) {
			way, err := certs.ParseDNSProvider(provider, tsig)
			require.NoError(t, err)
			config := certs.ACMEConfig{
				Domain: certs.Domain{Name: kind + ".example.test"}, Email: "me@example.test", DNS: way,
				Directory: directory, Resolvers: []string{names.addr}, Dir: t.TempDir(), Roots: roots, Log: slog.New(slog.DiscardHandler),
			}
			source, err := certs.OpenACME(t.Context(), config)
			require.NoError(t, err)
			host := "8000-iabc." + kind + ".example.test"
			require.Eventually(t, func() bool { return handshake(source, issued, host) == nil }, 60*time.Second, 100*time.Millisecond)
			require.Eventually(t, func() bool { return handshake(source, issued, kind+".example.test") == nil }, 60*time.Second, 100*time.Millisecond)
			unnamed, err := source.GetCertificate(&tls.ClientHelloInfo{})
			require.NoError(t, err)
			require.Equal(t, []string{"*." + kind + ".example.test"}, unnamed.Leaf.DNSNames)
			require.Eventually(t, func() bool { left, _ := names.left(); return left == 0 }, 10*time.Second, 10*time.Millisecond, "the records are removed")
			_, most := names.left()
			require.Positive(t, most)
			source.Close()

			// The next start has the certificate at once.
			before := asked.Load()
			source, err = certs.OpenACME(t.Context(), config)
			require.NoError(t, err)
			defer source.Close()
			require.Eventually(t, func() bool { return handshake(source, issued, host) == nil }, 10*time.Second, 10*time.Millisecond)
			require.Equal(t, before, asked.Load(), "the authority is not asked again")
		})
	}
}

func TestRefusedUpdateIsNamed(t *testing.T) {
	names := startNameServer(t)
	way, err := certs.ParseDNSProvider("rfc2136:"+names.addr, "")
	require.NoError(t, err)
	_, err = way.AppendRecords(t.Context(), testZone, nil)
	require.ErrorContains(t, err, "REFUSED")
	require.ErrorContains(t, err, names.addr)
}

func TestParseDNSProvider(t *testing.T) {
	for _, bad := range []string{"", "exec:", "exec:/no/such/program", "rfc2136:", "cloudflare", "/bin/true"} {
		_, err := certs.ParseDNSProvider(bad, "")
		require.Error(t, err, bad)
	}
	_, err := certs.ParseDNSProvider("rfc2136:ns.example.com", "name:hmac-md5:x")
	require.ErrorContains(t, err, "hmac-sha256")
	_, err = certs.ParseDNSProvider("rfc2136:ns.example.com", "secret")
	require.ErrorContains(t, err, "name:algorithm:secret")
	_, err = certs.ParseDNSProvider("exec:true", "")
	require.NoError(t, err)
}
