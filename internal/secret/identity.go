package secret

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"filippo.io/age"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// keyring encrypts and decrypts with the key of a data folder, which is made when it
// is first needed.
type keyring struct {
	path  string
	store store.Secrets

	mu       sync.Mutex
	identity *age.X25519Identity
}

// KeyFile is the key that the secrets of a data folder are encrypted with.
func KeyFile(dataDir string) string { return filepath.Join(dataDir, "keys", "secrets.key") }

func (k *keyring) encrypt(ctx context.Context, v Value) ([]byte, error) {
	identity, err := k.open(ctx)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w, err := age.Encrypt(&out, identity.Recipient())
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(v.bytes); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (k *keyring) decrypt(ctx context.Context, ciphertext []byte) (Value, error) {
	identity, err := k.open(ctx)
	if err != nil {
		return Value{}, err
	}
	r, err := age.Decrypt(bytes.NewReader(ciphertext), identity)
	if wrong := (*age.NoIdentityMatchError)(nil); errors.As(err, &wrong) {
		return Value{}, fmt.Errorf("the value was encrypted with another key than %s: put that one back, or set the value again", k.path)
	}
	if err != nil {
		return Value{}, fmt.Errorf("decrypt the value: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(r, MaxValue+1))
	if err != nil {
		return Value{}, fmt.Errorf("decrypt the value: %w", err)
	}
	return Value{plain}, nil
}

func (k *keyring) open(ctx context.Context) (*age.X25519Identity, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.identity != nil {
		return k.identity, nil
	}
	identity, err := readKey(k.path)
	if errors.Is(err, fs.ErrNotExist) {
		if identity, err = k.first(ctx); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	k.identity = identity
	return identity, nil
}

// first makes the key, unless there are secrets already: a new key would not open
// them, and hide that the old one is lost.
func (k *keyring) first(ctx context.Context) (*age.X25519Identity, error) {
	all, _, err := k.store.Secrets(ctx, "")
	if err != nil {
		return nil, err
	}
	if len(all) > 0 {
		identity, err := readKey(k.path) // another process may have made it just now
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s is not there, and %d secrets are encrypted with it: put it back from a backup, or delete the secrets", k.path, len(all))
		}
		return identity, err
	}
	return makeKey(k.path)
}

func readKey(path string) (*age.X25519Identity, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("others than its owner may use %s (mode %o): `chmod 600` it", path, mode)
	}
	identities, err := age.ParseIdentities(file)
	if err != nil || len(identities) == 0 {
		return nil, fmt.Errorf("%s is no age key", path) // age's error would hold what it read
	}
	identity, ok := identities[0].(*age.X25519Identity)
	if !ok {
		return nil, fmt.Errorf("%s is no X25519 key of age", path)
	}
	return identity, nil
}

// makeKey makes the key file whole, or finds that another process has: whoever is
// first to give the file its name.
func makeKey(path string) (*age.X25519Identity, error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(dir, ".new-*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("make the key of the secrets: %w", err)
	}
	defer os.Remove(file.Name())
	text := fmt.Sprintf("# encrypts the secrets of this data folder; without it they are lost\n# made: %s\n# public key: %s\n%s\n",
		time.Now().UTC().Format(time.RFC3339), identity.Recipient(), identity)
	_, err = file.WriteString(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return nil, fmt.Errorf("make the key of the secrets: %w", err)
	}
	err = os.Link(file.Name(), path)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the key of the secrets: %w", err)
	}
	if err := syncDir(dir); err != nil {
		return nil, err
	}
	return readKey(path)
}

// syncDir brings the name of a new file to the disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
