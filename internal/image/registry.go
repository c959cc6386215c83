package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// maxConfig bounds an image's config, bytes. The library bounds manifests, tokens and
// messages.
const maxConfig = 8 << 20

// maxNested is how many indexes may be in one another.
const maxNested = 3

const (
	dialTimeout   = 15 * time.Second
	answerTimeout = time.Minute
)

// RefusedError says that an import was to connect to an address that it must not.
type RefusedError struct {
	Host string // and port
	Why  string // "10.0.0.5 is private (RFC 1918)"
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s must not be connected to: %s; images come from registries on public addresses, "+
		"and from those that the server allows by --private-registry HOST:PORT", e.Host, e.Why)
}

func (b Builder) lookInRegistry(ctx context.Context, source Source) (*found, error) {
	if b.Refuse == nil {
		return nil, errors.New("no policy says which registries may be reached (Builder.Refuse)")
	}
	ref, err := name.ParseReference(source.Reference)
	if err != nil {
		return nil, fmt.Errorf("%q is not a reference of an image, such as python:3.13 or ghcr.io/owner/name@sha256:…: %w", source.Reference, err)
	}
	private := b.isPrivateRegistry(ref.Context().RegistryStr())
	if private { // over http too
		if ref, err = name.ParseReference(source.Reference, name.Insecure); err != nil {
			return nil, err
		}
	}
	guard, err := b.newGuard(private)
	if err != nil {
		return nil, err
	}
	auth := authn.Anonymous
	if source.Login != nil {
		auth = &authn.Basic{Username: source.Login.User, Password: source.Login.Password}
	}
	ctx, cancel := context.WithCancel(ctx)
	f, err := find(ctx, ref, remote.WithAuth(auth), remote.WithTransport(guard), remote.WithUserAgent("tombolo"))
	if err != nil {
		err = guard.explain(ctx, ref, source.Login != nil, err)
		cancel()
		guard.close()
		return nil, err
	}
	f.stop = cancel
	f.close = func() { cancel(); guard.close() }
	for i := range f.layers {
		open := f.layers[i].open
		f.layers[i].open = func(ctx context.Context) (io.ReadCloser, error) {
			blob, err := open(ctx)
			if err != nil {
				return nil, guard.explain(ctx, ref, source.Login != nil, err)
			}
			return blob, nil
		}
	}
	return f, nil
}

func find(ctx context.Context, ref name.Reference, options ...remote.Option) (*found, error) {
	options = append(options, remote.WithContext(ctx))
	got, err := remote.Get(ref, options...)
	if err != nil {
		return nil, err
	}
	var image v1.Image
	if got.MediaType.IsIndex() {
		index, err := got.ImageIndex()
		if err != nil {
			return nil, err
		}
		image, err = imageOf(index, 1)
		if err != nil {
			return nil, err
		}
	} else if image, err = got.Image(); err != nil {
		return nil, err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return nil, fmt.Errorf("its manifest cannot be read: %w", err)
	}
	if err := checkManifest(manifest); err != nil {
		return nil, err
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("its config cannot be read: %w", err)
	}
	f := &found{digest: digest.String(), config: config}
	for _, d := range manifest.Layers {
		f.layers = append(f.layers, layer{
			digest: d.Digest.String(), size: d.Size, remote: true,
			open: func(context.Context) (io.ReadCloser, error) {
				blob, err := image.LayerByDigest(d.Digest)
				if err != nil {
					return nil, err
				}
				return blob.Compressed()
			},
		})
	}
	return f, nil
}

func checkManifest(m *v1.Manifest) error {
	if m.Config.Size < 0 || m.Config.Size > maxConfig {
		return fmt.Errorf("its config says it has %d bytes; %d are allowed", m.Config.Size, maxConfig)
	}
	if !m.Config.MediaType.IsConfig() {
		return fmt.Errorf("what has this name is no image: its config is %s", m.Config.MediaType)
	}
	for _, l := range m.Layers {
		if !l.MediaType.IsLayer() {
			return fmt.Errorf("a layer is %s, which is no layer of files", l.MediaType)
		}
	}
	return nil
}

// imageOf finds the image for linux/amd64 in an index.
func imageOf(index v1.ImageIndex, depth int) (v1.Image, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("its index cannot be read: %w", err)
	}
	d, err := pick(manifest)
	if err != nil {
		return nil, err
	}
	if !d.MediaType.IsIndex() {
		return index.Image(d.Digest)
	}
	if depth == maxNested {
		return nil, fmt.Errorf("more than %d indexes in one another", maxNested)
	}
	inner, err := index.ImageIndex(d.Digest)
	if err != nil {
		return nil, err
	}
	return imageOf(inner, depth+1)
}

// pick chooses the entry for linux/amd64, or one that says nothing about itself.
func pick(m *v1.IndexManifest) (v1.Descriptor, error) {
	var others []string
	var silent *v1.Descriptor
	for _, d := range m.Manifests {
		switch p := d.Platform; {
		case !d.MediaType.IsImage() && !d.MediaType.IsIndex():
		case p == nil || p.OS == "" && p.Architecture == "":
			if silent == nil {
				silent = &d
			}
		case p.OS == "linux" && p.Architecture == "amd64":
			return d, nil
		case p.OS != "unknown":
			others = append(others, p.String())
		}
	}
	if silent != nil {
		return *silent, nil
	}
	if len(others) == 0 {
		return v1.Descriptor{}, errors.New("there is no image in it")
	}
	slices.Sort(others)
	return v1.Descriptor{}, fmt.Errorf("there is no image for linux/amd64 in it, but for %s", strings.Join(slices.Compact(others), ", "))
}

// isPrivateRegistry tells whether a registry, as host or host:port, is one of those
// that are allowed whatever their address.
func (b Builder) isPrivateRegistry(registry string) bool {
	return slices.ContainsFunc(b.PrivateRegistries, func(r string) bool { return strings.EqualFold(r, registry) })
}

// guard connects to registries and to where they lead: tokens, redirects, foreign
// layers. Whoever names an image decides where that is.
type guard struct {
	builder Builder
	// private lets connections to all registries that are listed through. They are
	// open only to an image of one of them: another's must not lead there.
	private bool
	proxy   func(*http.Request) (*url.URL, error)
	direct  *http.Transport
	proxied *http.Transport
	refused atomic.Pointer[RefusedError]
}

func (b Builder) newGuard(private bool) (*guard, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if b.CABundle != "" {
		text, err := os.ReadFile(b.CABundle)
		if err != nil {
			return nil, fmt.Errorf("read the CA bundle: %w", err)
		}
		pool.AppendCertsFromPEM(text)
	}
	g := &guard{builder: b, private: private, proxy: http.ProxyFromEnvironment}
	plain := http.Transport{
		TLSClientConfig:        &tls.Config{RootCAs: pool},
		TLSHandshakeTimeout:    dialTimeout,
		ResponseHeaderTimeout:  answerTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
		IdleConnTimeout:        30 * time.Second,
	}
	g.direct, g.proxied = plain.Clone(), plain.Clone()
	g.direct.DialContext = g.dial
	g.proxied.Proxy = func(req *http.Request) (*url.URL, error) { return g.proxy(req) }
	return g, nil
}

func (g *guard) close() {
	g.direct.CloseIdleConnections()
	g.proxied.CloseIdleConnections()
}

// RoundTrip goes through the proxy that the environment names, if any. It then
// connects for us, so what the name means can only be asked beforehand.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	proxy, err := g.proxy(req)
	if err != nil {
		return nil, err
	}
	if proxy == nil {
		return g.direct.RoundTrip(req)
	}
	if err := g.ask(req.Context(), req.URL.Host, req.URL.Hostname()); err != nil {
		return nil, err
	}
	return g.proxied.RoundTrip(req)
}

// ask refuses a host that is, or means, an address that must not be connected to. A
// name that only the proxy can resolve is the proxy's to judge.
func (g *guard) ask(ctx context.Context, host, hostname string) error {
	if g.allows(host) {
		return nil
	}
	if addr, err := netip.ParseAddr(hostname); err == nil {
		return g.judge(host, addr)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addrs, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", hostname)
	for _, addr := range addrs {
		if err := g.judge(host, addr); err != nil {
			return err
		}
	}
	return nil
}

func (g *guard) judge(host string, addr netip.Addr) error {
	why := g.builder.Refuse(addr.Unmap())
	if why == "" {
		return nil
	}
	refused := &RefusedError{Host: host, Why: fmt.Sprintf("%s is %s", addr.Unmap(), why)}
	g.refused.Store(refused)
	return refused
}

// allows tells whether host, with or without the port that goes without saying, is a
// listed registry that this import may reach.
func (g *guard) allows(host string) bool {
	bare := strings.TrimSuffix(strings.TrimSuffix(host, ":443"), ":80")
	return g.private && (g.builder.isPrivateRegistry(host) || g.builder.isPrivateRegistry(bare))
}

// dial judges the address itself, when the name has been resolved.
func (g *guard) dial(ctx context.Context, network, host string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	if !g.allows(host) {
		d.Control = func(_, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			return g.judge(host, to.Addr())
		}
	}
	return d.DialContext(ctx, network, host)
}

// explain says in words why an image is not to be had.
func (g *guard) explain(ctx context.Context, ref name.Reference, login bool, err error) error {
	registry := ref.Context().RegistryStr()
	var answer *transport.Error
	var network net.Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case g.refused.Load() != nil:
		return fmt.Errorf("%s: %w", ref, g.refused.Load())
	case errors.As(err, &answer):
		return fmt.Errorf("%s: %s", ref, explainAnswer(registry, login, answer))
	case errors.As(err, &network):
		return fmt.Errorf("%s: the registry %s cannot be reached: %w", ref, registry, err)
	default:
		return fmt.Errorf("%s: %w", ref, err)
	}
}

func explainAnswer(registry string, login bool, e *transport.Error) string {
	detail := "it answered " + fmt.Sprint(e.StatusCode)
	if len(e.Errors) > 0 {
		detail = short(e.Errors[0].Code, e.Errors[0].Message)
	}
	switch {
	case e.StatusCode == http.StatusNotFound:
		return fmt.Sprintf("there is no such image at %s (%s)", registry, detail)
	case (e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden) && login:
		return fmt.Sprintf("%s does not take the login, or the login may not read the image (%s)", registry, detail)
	case e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden:
		return fmt.Sprintf("there is no such image at %s, or it needs a login (%s)", registry, detail)
	case e.StatusCode == http.StatusTooManyRequests:
		return fmt.Sprintf("%s wants fewer requests: wait, or log in (%s)", registry, detail)
	default:
		return fmt.Sprintf("%s failed (%s)", registry, detail)
	}
}

// short is what a registry says, which is anybody's text.
func short(code transport.ErrorCode, message string) string {
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, fmt.Sprintf("%s: %s", code, message))
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}
