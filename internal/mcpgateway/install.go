package mcpgateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Where servers are installed. The recipe of the template mcp-gateway installs
// some there too.
const (
	npmDir    = "/opt/mcp/npm"    // one project for all of npm: they share what they are made of
	pythonDir = "/opt/mcp/python" // an environment each
	cloneDir  = "/opt/mcp/github"
)

// installer gets a server's program and says where it is.
type installer interface {
	present() bool
	install(context.Context) error
}

// packaged is an installer of a package.
type packaged interface {
	installer
	program(bin string) string
}

func (s server) installer() packaged {
	if s.npm != "" {
		return npmPackage{s.npm}
	}
	return pythonPackage{s.pypi, s.bin, s.with}
}

// Pull installs servers of the catalogue, so that a gateway that is to run them
// starts at once. It tells what it does; as root.
func Pull(ctx context.Context, names []string, tell func(string)) error {
	for _, name := range names {
		entry, ok := catalogue[name]
		if !ok {
			return fmt.Errorf("server %q: %w", name, unknown())
		}
		if entry.installer().present() {
			tell(name + " is there")
			continue
		}
		if err := entry.installer().install(ctx); err != nil {
			return fmt.Errorf("server %q: %w", name, err)
		}
		tell(name + " is installed")
	}
	return nil
}

type npmPackage struct{ name string }

func (p npmPackage) program(bin string) string {
	return filepath.Join(npmDir, "node_modules/.bin", bin)
}

func (p npmPackage) present() bool {
	_, err := os.Stat(filepath.Join(npmDir, "node_modules", p.name, "package.json"))
	return err == nil
}

func (p npmPackage) install(ctx context.Context) error {
	if err := os.MkdirAll(npmDir, 0o755); err != nil {
		return err
	}
	return command(ctx, npmDir, nil, "npm", "install", "--prefix", npmDir, "--no-fund", "--no-audit", "--loglevel", "error", p.name)
}

type pythonPackage struct{ name, bin, with string }

func (p pythonPackage) program(bin string) string {
	return filepath.Join(pythonDir, strings.ReplaceAll(p.name, ".", "-"), "bin", bin) // as uv names it
}

func (p pythonPackage) present() bool {
	_, err := os.Stat(p.program(p.bin))
	return err == nil
}

func (p pythonPackage) install(ctx context.Context) error {
	env := map[string]string{
		"UV_TOOL_DIR": pythonDir, "UV_TOOL_BIN_DIR": filepath.Join(pythonDir, "bin"),
		"UV_PYTHON_DOWNLOADS": "never", "UV_NO_CACHE": "1", "UV_LINK_MODE": "copy", "UV_COMPILE_BYTECODE": "1",
	}
	argv := []string{"uv", "tool", "install", "--quiet", "--no-progress", "--python", "/usr/bin/python3"}
	if p.with != "" {
		argv = append(argv, "--with", p.with)
	}
	return command(ctx, "/", env, append(argv, p.name)...)
}

// clone is a repository on GitHub.
type clone struct {
	path    string // OWNER/REPO
	command string // installs what it needs; may be empty
	env     map[string]string
}

func (c clone) dir() string { return filepath.Join(cloneDir, c.path) }

// present is false: the command that installs may be another one this time.
func (c clone) present() bool { return false }

func (c clone) install(ctx context.Context) error {
	who, err := runAs()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(c.dir(), ".git")); err != nil {
		parent := filepath.Dir(c.dir())
		if err := errors.Join(os.MkdirAll(parent, 0o755), os.Chown(parent, who.uid, who.gid)); err != nil {
			return err
		}
		git := who.command(ctx, parent, nil, "git", "clone", "--quiet", "--depth", "1", "https://github.com/"+c.path+".git", c.dir())
		if err := finish(git); err != nil {
			return err
		}
	}
	if c.command == "" {
		return nil
	}
	return finish(who.command(ctx, c.dir(), c.env, "/bin/bash", "-c", c.command))
}

// command runs a program to its end as root. An error has what it printed last.
func command(ctx context.Context, dir string, env map[string]string, argv ...string) error {
	return finish(account{home: "/root", name: "root"}.command(ctx, dir, env, argv...))
}

// finish runs a command to its end, with all processes that it starts.
func finish(cmd *exec.Cmd) error {
	var output tail
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	if err == nil {
		return nil
	}
	text := strings.Join(cmd.Args, " ")
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%s needs the program %s, which is not here", text, cmd.Args[0])
	}
	return output.about(fmt.Errorf("%s: %w", text, err))
}

// tail keeps the last few kilobytes of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const maxTail = 4 << 10 // bytes

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if len(t.text) > 2*maxTail {
		t.text = append([]byte(nil), t.text[len(t.text)-maxTail:]...)
	}
	return len(p), nil
}

// about adds to an error what was printed last before it.
func (t *tail) about(err error) error {
	if text := t.String(); text != "" {
		return fmt.Errorf("%w; it printed:\n%s", err, text)
	}
	return err
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := t.text
	if len(text) > maxTail {
		text = text[len(text)-maxTail:]
	}
	return string(bytes.TrimSpace(text))
}
