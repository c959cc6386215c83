package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
)

// ACMEConfig says how certificates are got from a public authority.
type ACMEConfig struct {
	Domain Domain
	// Email is where the authority may write to. Giving it accepts the authority's
	// terms of service.
	Email string
	DNS   DNSProvider
	// Directory is the authority's URL; empty is Let's Encrypt's.
	Directory string
	// Resolvers, host:port, are asked whether a record is there yet; none asks the
	// machine's, and the domain's own.
	Resolvers []string
	Dir       string         // holds the account and the certificates with their keys
	Roots     *x509.CertPool // trusted for Directory; nil is the system's
	Log       *slog.Logger
}

// propagationTimeout bounds the wait for a new record, which slow providers
// publish after minutes.
const propagationTimeout = 10 * time.Minute

// ACME keeps a wildcard certificate from a public authority. Close it.
type ACME struct {
	domain Domain
	magic  *certmagic.Config
	cache  *certmagic.Cache
	files  *storage
	cancel context.CancelFunc
}

// OpenACME uses what Dir has, and gets and renews certificates in the background:
// what fails is logged and tried again. Until there is a first one, handshakes
// fail. Only a DNS record proves that one may have a wildcard certificate, so
// there is no other way than DNS.
func OpenACME(ctx context.Context, c ACMEConfig) (*ACME, error) {
	if c.Email == "" || c.DNS == nil {
		return nil, errors.New("ACME needs an email address and a way to set DNS records")
	}
	log := zapTo(c.Log)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	a := &ACME{domain: c.Domain, cancel: cancel, files: &storage{FileStorage: &certmagic.FileStorage{Path: c.Dir}, ctx: ctx}}
	a.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return a.magic, nil },
		Logger:           log,
	})
	a.magic = certmagic.New(a.cache, certmagic.Config{
		Storage: a.files,
		Logger:  log,
	})
	directory := c.Directory
	if directory == "" {
		directory = certmagic.LetsEncryptProductionCA
	}
	a.magic.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(a.magic, certmagic.ACMEIssuer{
		CA:                      directory,
		Email:                   c.Email,
		Agreed:                  true,
		DisableHTTPChallenge:    true,
		DisableTLSALPNChallenge: true,
		TrustedRoots:            c.Roots,
		Logger:                  log,
		DNS01Solver: &certmagic.DNS01Solver{DNSManager: certmagic.DNSManager{
			DNSProvider:        c.DNS,
			Resolvers:          c.Resolvers,
			PropagationTimeout: propagationTimeout,
			Logger:             log,
		}},
	})}
	if err := a.magic.ManageAsync(ctx, a.names()); err != nil {
		a.Close()
		return nil, fmt.Errorf("get a certificate for *.%s: %w", c.Domain.Name, err)
	}
	return a, nil
}

func (a *ACME) names() []string { return []string{"*." + a.domain.Name, a.domain.Name} }

// GetCertificate implements Source. A client that names no host gets the
// wildcard.
func (a *ACME) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if hello.ServerName == "" {
		named := *hello
		named.ServerName = "any." + a.domain.Name
		hello = &named
	}
	return a.magic.GetCertificate(hello)
}

// Close ends what works in the background. No file is made after it.
func (a *ACME) Close() {
	a.cancel()
	a.cache.Stop()
	a.files.close()
}

// storage makes files until it is closed: certmagic does not wait for the jobs
// that it began.
type storage struct {
	*certmagic.FileStorage
	ctx context.Context // ends before close

	mu     sync.RWMutex
	closed bool
}

var errClosed = errors.New("the server is ending")

func (s *storage) Store(ctx context.Context, key string, value []byte) error {
	return s.unlessClosed(func() error { return s.FileStorage.Store(ctx, key, value) })
}

// Lock makes a file too, when nobody else has it any more.
func (s *storage) Lock(ctx context.Context, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	return s.unlessClosed(func() error { return s.FileStorage.Lock(ctx, name) })
}

func (s *storage) TryLock(ctx context.Context, name string) (taken bool, err error) {
	err = s.unlessClosed(func() error {
		taken, err = s.FileStorage.TryLock(ctx, name)
		return err
	})
	return taken, err
}

func (s *storage) unlessClosed(do func() error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return errClosed
	}
	return do()
}

func (s *storage) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}
