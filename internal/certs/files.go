package certs

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// checkEvery is how often files are looked at, when there are handshakes.
const checkEvery = time.Second

// Files is a certificate and its key in PEM files, read again when they change.
type Files struct {
	cert, key string
	log       *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	version fileVersion // of the files when they were last read
	checked time.Time
	told    bool // that the current one has ended
}

// fileVersion changes when either file is written or replaced.
type fileVersion struct {
	certTime, keyTime time.Time
	certSize, keySize int64
}

// OpenFiles reads the files; what is wrong with them is an error.
func OpenFiles(cert, key string, log *slog.Logger) (*Files, error) {
	f := &Files{cert: cert, key: key, log: log}
	version, err := f.stat()
	if err != nil {
		return nil, fmt.Errorf("TLS certificate: %w", err)
	}
	if f.current, err = f.load(); err != nil {
		return nil, err
	}
	f.version, f.checked = version, time.Now()
	f.tellEnd(f.checked)
	return f, nil
}

// GetCertificate implements Source. Files that are not whole just now, as while
// they are being replaced, leave the last good ones in use.
func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.checked) >= checkEvery {
		f.checked = now
		f.reload()
		f.tellEnd(now)
	}
	return f.current, nil
}

func (f *Files) reload() {
	version, err := f.stat()
	if err == nil && version == f.version {
		return
	}
	var fresh *tls.Certificate
	if err == nil {
		fresh, err = f.load()
	}
	if err != nil {
		if version != f.version {
			f.log.Error("the changed TLS certificate cannot be used; the one before stays", "error", err)
		}
		f.version = version
		return
	}
	f.current, f.version, f.told = fresh, version, false
	f.log.Info("TLS certificate read again", "file", f.cert, "until", fresh.Leaf.NotAfter)
}

// tellEnd says once that clients refuse what is served by now.
func (f *Files) tellEnd(now time.Time) {
	if end := f.current.Leaf.NotAfter; now.After(end) && !f.told {
		f.told = true
		f.log.Error("the TLS certificate has ended: replace the file", "file", f.cert, "ended", end)
	}
}

func (f *Files) stat() (v fileVersion, err error) {
	cert, err := os.Stat(f.cert)
	if err != nil {
		return v, err
	}
	key, err := os.Stat(f.key)
	if err != nil {
		return v, err
	}
	return fileVersion{cert.ModTime(), key.ModTime(), cert.Size(), key.Size()}, nil
}

func (f *Files) load() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("read TLS certificate %s with key %s: %w", f.cert, f.key, err)
	}
	return &pair, nil
}
