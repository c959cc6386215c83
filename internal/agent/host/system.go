package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/trust"
)

// System is the part of the sandbox outside the agent that Init changes.
type System struct {
	// Root is where its files lie, "/" but for tests.
	Root string
	// Own tells that the host name is the agent's to set.
	Own bool
}

// Bundle is the path of the trust store.
func (s System) Bundle() string { return filepath.Join(s.Root, trust.Bundle) }

// Apply makes the system agree with init. Doing it again changes nothing. What
// programs inside may have changed since the host said it stays: the trust store,
// to which they add certificates, and in a sandbox that goes on its name.
func (s System) Apply(init hostapi.Init, pidsMax string) error {
	if pidsMax != "" && init.ProcessLimit > 0 {
		if err := os.WriteFile(pidsMax, []byte(strconv.FormatInt(init.ProcessLimit, 10)), 0); err != nil {
			return fmt.Errorf("set the process limit to %d: %w", init.ProcessLimit, err)
		}
	}
	run := filepath.Join(s.Root, "run/e2b")
	for name, value := range map[string]string{
		".E2B_SANDBOX": "true", ".E2B_SANDBOX_ID": init.SandboxID, ".E2B_TEMPLATE_ID": init.TemplateID,
	} {
		if err := s.write(filepath.Join(run, name), value); err != nil {
			return err
		}
	}
	if err := s.setBundle(init.CABundle); err != nil {
		return err
	}
	if init.Hostname != "" && !init.Resumed {
		return s.setHostname(init.Hostname)
	}
	return nil
}

// setHostname names the machine, and lets the name resolve: sudo and others ask
// for it.
func (s System) setHostname(name string) error {
	if strings.ContainsAny(name, " \t\r\n\x00") || len(name) > 64 {
		return fmt.Errorf("the host name %q is not one", name)
	}
	if s.Own {
		if err := unix.Sethostname([]byte(name)); err != nil {
			return fmt.Errorf("set the host name %q: %w", name, err)
		}
	}
	if err := s.write(filepath.Join(s.Root, "etc/hostname"), name+"\n"); err != nil {
		return err
	}
	hosts := filepath.Join(s.Root, "etc/hosts")
	text, err := os.ReadFile(hosts)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", hosts, err)
	}
	if with := withHost(text, name); !bytes.Equal(with, text) {
		return s.write(hosts, string(with))
	}
	return nil
}

// ownAddress is the one Debian gives to a machine's own name.
const ownAddress = "127.0.1.1"

// withHost returns the text of a hosts file in which name is the machine's own.
func withHost(text []byte, name string) []byte {
	var out bytes.Buffer
	seen := map[string]bool{}
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) > 0 && string(f[0]) == ownAddress {
			continue
		}
		if len(f) > 0 {
			seen[string(f[0])] = true
		}
		out.Write(bytes.TrimRight(line, "\n"))
		out.WriteByte('\n')
	}
	if !seen["127.0.0.1"] {
		out.WriteString("127.0.0.1\tlocalhost\n")
	}
	out.WriteString(ownAddress + "\t" + name + "\n")
	return out.Bytes()
}

// replace puts a file in place at once, and only when its content differs. It
// makes the folders it needs.
func (s System) replace(path string, content []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the folder of %s: %w", path, err)
	}
	// A link would be replaced by the rename; what it leads to is meant.
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tombolo-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(fileMode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		return nil
	}
	_ = os.Remove(f.Name())
	// Some files are mounts of their own and cannot be renamed over.
	if direct := os.WriteFile(path, content, fileMode); direct != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, direct))
	}
	return nil
}

const fileMode = 0o644

// write writes a file of a few bytes. Init waits for it, so it does the least.
func (s System) write(path, content string) error {
	err := os.WriteFile(path, []byte(content), fileMode)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make the folder of %s: %w", path, err)
		}
		err = os.WriteFile(path, []byte(content), fileMode)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
