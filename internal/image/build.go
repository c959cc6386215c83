package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/image/erofs"
	"github.com/tombolo-dev/tombolo/internal/image/rootfs"
)

// Epoch is the time of everything in an image, seconds since 1970:
// 2025-09-01 00:00 UTC.
const Epoch = 1756684800

// build is one run of a recipe, from nothing to a finished file.
type build struct {
	Builder
	recipe Recipe
	parent Image
	root   string // the tree
	output string // the image, before it has its name
	log    *os.File
	held   *os.File // the lock
	began  time.Time
}

// dpkgOptions keep out of images, and of what is installed in sandboxes later,
// what no program needs.
var dpkgOptions = []string{
	"force-unsafe-io",
	"path-exclude=/usr/share/doc/*",
	"path-include=/usr/share/doc/*/copyright",
	"path-exclude=/usr/share/man/*",
	"path-include=/usr/share/man/man[1-9]", // without these folders Java does not install
	"path-exclude=/usr/share/info/*",
	"path-exclude=/usr/share/lintian/*",
	"path-exclude=/usr/share/locale/*",
	"path-include=/usr/share/locale/locale.alias",
}

var aptOptions = []string{
	`Acquire::Languages "none"`,
	`Acquire::Retries "3"`,
}

func (b *build) steps(ctx context.Context) error {
	steps := []func(context.Context) error{
		b.begin, b.packages, b.layFiles, b.trust, b.pip, b.npm, b.run, b.clean, b.compile, b.pack,
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("build template %s: %w", b.recipe.Name, context.Cause(ctx))
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// begin makes the tree that the recipe starts from.
func (b *build) begin(ctx context.Context) error {
	if b.recipe.Debian == "" {
		b.tell(b.recipe, time.Since(b.began), "unpacking "+b.recipe.From)
		if err := extract(ctx, b.parent.Path, b.root); err != nil {
			return fmt.Errorf("build template %s: unpack the image of %s: %w", b.recipe.Name, b.recipe.From, err)
		}
		return nil
	}
	argv := []string{"mmdebstrap", "--mode=root", "--variant=minbase", "--components=main", "--verbose"}
	for _, option := range aptOptions {
		argv = append(argv, "--aptopt="+option)
	}
	for _, option := range dpkgOptions {
		argv = append(argv, "--dpkgopt="+option)
	}
	if len(b.recipe.Packages) > 0 {
		argv = append(argv, "--include="+strings.Join(b.recipe.Packages, ","))
	}
	argv = append(argv, b.recipe.Debian, b.root)
	for _, source := range [][2]string{{"debian", ""}, {"debian", "-updates"}, {"debian-security", "-security"}} {
		if b.Mirror == "" {
			break // mmdebstrap knows where Debian and its updates are
		}
		argv = append(argv, fmt.Sprintf("deb %s/%s %s%s main", b.Mirror, source[0], b.recipe.Debian, source[1]))
	}
	if err := b.outside(ctx, "installing Debian "+b.recipe.Debian, argv...); err != nil {
		return err
	}
	// Copies of this machine's.
	return b.inTree(func(tree *os.Root) error {
		return errors.Join(tree.RemoveAll("etc/resolv.conf"), tree.RemoveAll("etc/hostname"))
	})
}

// packages adds Debian packages to the parent's tree; without a parent they
// came with the rest of Debian.
func (b *build) packages(ctx context.Context) error {
	if b.recipe.Debian != "" || len(b.recipe.Packages) == 0 {
		return nil
	}
	// Services must not start in a tree that is being built.
	return b.inside(ctx, "installing Debian packages", `
		printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
		chmod 755 /usr/sbin/policy-rc.d
		mkdir -p /usr/share/man/man1 # a parent may lack it, and Java does not install without
		apt-get -q update
		apt-get -q -y --no-install-recommends install `+quoteAll(b.recipe.Packages)+`
		rm /usr/sbin/policy-rc.d`)
}

func (b *build) pip(ctx context.Context) error {
	if len(b.recipe.Pip) == 0 {
		return nil
	}
	return b.inside(ctx, "installing Python packages",
		"python3 -m pip install --no-cache-dir --no-compile --progress-bar off "+
			"--break-system-packages --root-user-action ignore "+quoteAll(b.recipe.Pip))
}

func (b *build) npm(ctx context.Context) error {
	if len(b.recipe.Npm) == 0 {
		return nil
	}
	return b.inside(ctx, "installing npm packages", "npm install --global --no-fund --no-audit "+quoteAll(b.recipe.Npm))
}

func (b *build) run(ctx context.Context) error {
	for i, line := range b.recipe.Run {
		step := fmt.Sprintf("run %d/%d: %s", i+1, len(b.recipe.Run), firstLine(line))
		if err := b.inside(ctx, step, line); err != nil {
			return err
		}
	}
	return nil
}

// compile makes the byte code of every Python module that has none, so that no
// sandbox spends its first import on it. The modules have their final times.
func (b *build) compile(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(b.root, "usr/bin/python3")); err != nil {
		return nil
	}
	return b.inside(ctx, "compiling Python modules", `
		for dir in /usr/lib/python3* /usr/local/lib/python3*; do
			[ -d "$dir" ] || continue
			case $(stat -c %a "$dir") in
				*7) umask 000 ;; # who may replace the modules may replace their byte code
				*) umask 022 ;;
			esac
			python3 -m compileall -q -j 0 "$dir" >/dev/null 2>&1 || true
		done`)
}

// pack writes the tree into the image file.
func (b *build) pack(ctx context.Context) error {
	b.tell(b.recipe, time.Since(b.began), "writing the image")
	tree := rootfs.New(nil, rootfs.Limits{})
	err := tree.AddFolder(ctx, b.root)
	if err == nil {
		tree.SetTimes(Epoch)
		err = erofs.WriteFile(ctx, b.output, tree, erofs.Options{UUID: imageID(b.recipe.ImageHash()), Time: Epoch})
	}
	if err != nil {
		return fmt.Errorf("build template %s: write the image: %w", b.recipe.Name, err)
	}
	return nil
}

func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if len(line) > 60 {
		line = line[:60] + "…"
	}
	return line
}
