package intercept

import (
	"container/list"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	leafLife  = 7 * 24 * time.Hour
	leafRenew = 2 * 24 * time.Hour
	// maxLeaves bounds the certificates that are kept; each takes some 2 KiB.
	maxLeaves = 4096
	// maxCommonName is what X.509 allows, characters.
	maxCommonName = 64
)

// leaves makes and keeps certificates for hosts. They are in memory only and share
// one key, which is as old as this process.
type leaves struct {
	issuer    *x509.Certificate
	issuerKey crypto.Signer
	key       crypto.Signer
	making    singleflight.Group

	mu     sync.Mutex
	byHost map[string]*list.Element
	recent *list.List // of *leaf, the one used last first
}

type leaf struct {
	host string
	cert *tls.Certificate
}

func newLeaves(issuer *x509.Certificate, issuerKey crypto.Signer) (*leaves, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &leaves{issuer: issuer, issuerKey: issuerKey, key: key, byHost: map[string]*list.Element{}, recent: list.New()}, nil
}

func (l *leaves) get(host string, now time.Time) (*tls.Certificate, error) {
	if cert := l.find(host, now); cert != nil {
		return cert, nil
	}
	cert, err, _ := l.making.Do(host, func() (any, error) {
		if cert := l.find(host, now); cert != nil {
			return cert, nil
		}
		cert, err := l.issue(host, now)
		if err != nil {
			return nil, fmt.Errorf("make a certificate for %s: %w", host, err)
		}
		l.keep(host, cert)
		return cert, nil
	})
	if err != nil {
		return nil, err
	}
	return cert.(*tls.Certificate), nil
}

func (l *leaves) find(host string, now time.Time) *tls.Certificate {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.byHost[host]
	if e == nil {
		return nil
	}
	cert := e.Value.(*leaf).cert
	if now.Before(cert.Leaf.NotBefore) || now.After(cert.Leaf.NotAfter.Add(-leafRenew)) {
		return nil
	}
	l.recent.MoveToFront(e)
	return cert
}

func (l *leaves) keep(host string, cert *tls.Certificate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.byHost[host]; e != nil {
		l.recent.Remove(e)
	}
	l.byHost[host] = l.recent.PushFront(&leaf{host, cert})
	for l.recent.Len() > maxLeaves {
		oldest := l.recent.Remove(l.recent.Back()).(*leaf)
		delete(l.byHost, oldest.host)
	}
}

func (l *leaves) issue(host string, now time.Time) (*tls.Certificate, error) {
	end := now.Add(leafLife)
	if end.After(l.issuer.NotAfter) {
		end = l.issuer.NotAfter
	}
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{Organization: []string{"Tombolo, in place of the host"}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              end,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if len(host) <= maxCommonName {
		template.Subject.CommonName = host
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, l.issuer, l.key.Public(), l.issuerKey)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: l.key, Leaf: parsed}, nil
}
