package audit

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/wholefile"
)

// Key is the secret of a chain, keySize bytes.
type Key []byte

const keySize = 32

// KeyFile is where the key of a data folder is.
func KeyFile(data string) string { return filepath.Join(data, "keys", "audit.key") }

// Dir is where the log of a data folder is.
func Dir(data string) string { return filepath.Join(data, "audit") }

// For is a key for another use, which tells nothing of k.
func (k Key) For(use string) []byte {
	m := hmac.New(sha256.New, k)
	m.Write([]byte("tombolo use " + use))
	return m.Sum(nil)
}

// ReadKey reads a key; fs.ErrNotExist when there is none.
func ReadKey(file string) (Key, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the key of the audit log: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil || len(key) != keySize {
		return nil, fmt.Errorf("the key of the audit log in %s must be %d hexadecimal digits", file, 2*keySize)
	}
	return key, nil
}

// ensureKey reads the key, and makes it where there is no log yet. A log whose key
// is gone is not gone on with: nobody could tell its records from forged ones.
func ensureKey(file string, begun bool) (Key, error) {
	key, err := ReadKey(file)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if begun {
		return nil, fmt.Errorf("the audit log has records and its key %s is gone: put the key back, or move the folder audit/ away to begin a new log", file)
	}
	key = make(Key, keySize)
	rand.Read(key) // never fails: crypto/rand ends the process instead
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	return key, wholefile.Write(file, 0o600, []byte(hex.EncodeToString(key)+"\n"))
}

// keys are a chain's key, made into one for each use.
type keys struct{ record, head []byte }

func (k Key) uses() keys {
	of := func(use string) []byte {
		m := hmac.New(sha256.New, k)
		m.Write([]byte("tombolo audit " + use))
		return m.Sum(nil)
	}
	return keys{record: of("record"), head: of("head")}
}

// fingerprint names the key without telling it.
func (k keys) fingerprint() string { return k.mac(k.head, []byte("fingerprint"))[:16] }

func (keys) mac(key, text []byte) string {
	m := hmac.New(sha256.New, key)
	m.Write(text)
	return hex.EncodeToString(m.Sum(nil))
}

func (keys) same(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }
