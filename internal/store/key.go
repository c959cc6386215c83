package store

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// DefaultMaxSandboxes is Key.MaxSandboxes of a new key.
const DefaultMaxSandboxes = 100

const (
	secretPrefix = "e2b_" // clients up to 2.45 insist on ^e2b_[0-9a-f]+$
	secretBytes  = 20
	prefixLen    = len(secretPrefix) + 6
	maxSecretLen = 256
)

var keyName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// NewKey makes a key and its secret. The secret is in no record: show it once.
func NewKey(name string, now time.Time) (k Key, secret string, err error) {
	if !keyName.MatchString(name) {
		return Key{}, "", fmt.Errorf("key name %q: use 1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit", name)
	}
	secret = secretPrefix + randomHex(secretBytes)
	hash, err := HashSecret(secret)
	if err != nil {
		return Key{}, "", err
	}
	return Key{
		ID:           randomHex(8),
		Name:         name,
		Hash:         hash,
		Prefix:       secret[:prefixLen],
		CreatedAt:    now.UTC(),
		MaxSandboxes: DefaultMaxSandboxes,
		Roles:        []Role{RoleSandboxes},
	}, secret, nil
}

// HashSecret is what a key is looked up by: SHA-256 in hex. A secret is 160
// random bits, so it needs no salt and no slow hash; and because the look-up
// compares hashes, its timing tells nothing about a secret.
func HashSecret(secret string) (string, error) {
	if secret == "" || len(secret) > maxSecretLen {
		return "", errors.New("an API key is e2b_ and 40 hex digits")
	}
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:]), nil
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(b)
}
