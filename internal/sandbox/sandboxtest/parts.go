package sandboxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/tombolo-dev/tombolo/internal/image/erofs"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// partsVariable tells a child process where its parent's parts are.
const partsVariable = "TOMBOLO_TEST_PARTS"

// parts are what the worlds of one test program share: a folder with the agent,
// the probe, the root image and, once it is asked for, a snapshot.
type parts struct{ dir string }

var (
	sharedParts  = sync.OnceValues(makeParts)
	warmTemplate = sync.OnceValues(buildWarm)
)

func (p parts) agent() string { return filepath.Join(p.dir, "agent") }
func (p parts) probe() string { return filepath.Join(p.dir, "probe") }
func (p parts) image() string { return filepath.Join(p.dir, imageName) }
func (p parts) seed() string  { return filepath.Join(p.dir, "seed") }

func makeParts() (parts, error) {
	p := parts{dir: os.Getenv(partsVariable)}
	if p.dir != "" {
		return p, nil
	}
	var err error
	if p.dir, err = os.MkdirTemp("", "tombolo-test-"); err != nil {
		return p, err
	}
	if err := p.make(); err != nil {
		os.RemoveAll(p.dir)
		return p, err
	}
	return p, nil
}

func (p parts) make() error {
	if err := os.Chmod(p.dir, 0o711); err != nil {
		return err
	}
	const module = "github.com/tombolo-dev/tombolo/"
	if err := command("", "go", "build", "-o", p.agent(), module+"cmd/tombolo-agent"); err != nil {
		return err
	}
	if err := command("", "go", "build", "-o", p.probe(), module+"internal/sandbox/sandboxtest/probe"); err != nil {
		return err
	}
	return p.makeImage()
}

// makeImage makes a root image in which every program is the probe.
func (p parts) makeImage() error {
	root := filepath.Join(p.dir, "root")
	program, err := os.ReadFile(p.probe())
	if err != nil {
		return err
	}
	for _, dir := range []string{"bin", "etc", "root", "tmp", "home/user"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"bin/probe":  string(program),
		"etc/passwd": "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home/user:/bin/bash\n",
		"etc/group":  "root:x:0:\nuser:x:1000:\n",
		"etc/hosts":  "127.0.0.1 localhost sandbox\n",
	} {
		mode := os.FileMode(0o644)
		if name == "bin/probe" {
			mode = 0o755
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), mode); err != nil {
			return err
		}
	}
	if err := os.Symlink("probe", filepath.Join(root, "bin/bash")); err != nil {
		return err
	}
	if err := os.Chown(filepath.Join(root, "home/user"), 1000, 1000); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	return erofs.WriteFolder(context.Background(), root, p.image())
}

// buildWarm builds the template in a world of its own, from which the others
// take the snapshot.
func buildWarm() (t store.Template, err error) {
	p, err := sharedParts()
	if err != nil {
		return t, err
	}
	record := filepath.Join(p.dir, "warm.json")
	if raw, err := os.ReadFile(record); err == nil {
		return t, json.Unmarshal(raw, &t)
	}
	ctx := context.Background()
	if err := prepare(p.seed()); err != nil {
		return t, err
	}
	w, err := Open(ctx, p.seed())
	if err != nil {
		return t, err
	}
	defer w.Close(ctx)
	t = Template(Warm)
	t.StartCmd, t.ReadyCmd = "listen 0.0.0.0:8000", "exists /etc/passwd"
	t, err = w.Manager.BuildTemplate(ctx, t, false, func(string) {})
	if err != nil {
		return t, err
	}
	raw, err := json.Marshal(t)
	if err != nil {
		return t, err
	}
	return t, os.WriteFile(record, raw, 0o600)
}

// install puts the parts, and the templates Cold and Warm, into a data folder.
func (p parts) install(ctx context.Context, w *World) error {
	if _, _, err := w.Store.PutTemplate(ctx, withIDs(Template(Cold))); err != nil {
		return err
	}
	warm, err := warmTemplate()
	if err != nil {
		return fmt.Errorf("build the template %s: %w", Warm, err)
	}
	snapshots := filepath.Join(w.Dir, "snapshots")
	if err := os.MkdirAll(snapshots, 0o711); err != nil {
		return err
	}
	err = os.Symlink(filepath.Join(p.seed(), "snapshots", warm.Snapshot), filepath.Join(snapshots, warm.Snapshot))
	if err != nil {
		return err
	}
	_, _, err = w.Store.PutTemplate(ctx, warm)
	return err
}

// prepare makes a data folder with the image in it.
func prepare(dir string) error {
	p, err := sharedParts()
	if err != nil {
		return err
	}
	images := filepath.Join(dir, "images")
	if err := os.MkdirAll(images, 0o711); err != nil {
		return err
	}
	return os.Link(p.image(), filepath.Join(images, imageName))
}

func command(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
