package image

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/erofs"

	"github.com/tombolo-dev/tombolo/templates"
)

// buildInEnv makes the test program build the recipe "slow" in the folder it
// names, instead of testing: the process that a test kills.
const buildInEnv = "TOMBOLO_TEST_BUILD_IN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(buildInEnv); dir != "" {
		r, err := LoadFrom(recipes(map[string]string{"slow": os.Getenv("TOMBOLO_TEST_RUN")}), "slow")
		if err == nil {
			_, err = Builder{Dir: dir, Progress: WriteProgress(os.Stdout)}.Build(context.Background(), r)
		}
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// recipes are those of the program, "tiny", a Debian of the fewest packages
// that show what matters, and one made from tiny for each command given.
func recipes(run map[string]string) fstest.MapFS {
	tree := fstest.MapFS{}
	fs.WalkDir(templates.FS, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(templates.FS, name)
		tree[name] = &fstest.MapFile{Data: text}
		return err
	})
	tree["tiny/template.yaml"] = &fstest.MapFile{Data: []byte(
		"name: tiny\ndebian: trixie\npackages: [ca-certificates, sudo]\n")}
	for name, command := range run {
		tree[name+"/template.yaml"] = &fstest.MapFile{Data: fmt.Appendf(nil,
			"name: %s\nfrom: tiny\nrun:\n  - %q\n", name, command)}
	}
	return tree
}

func recipe(t *testing.T, tree fs.FS, name string) Recipe {
	t.Helper()
	r, err := LoadFrom(tree, name)
	require.NoError(t, err)
	return r
}

// shared is a Builder on a folder that outlives the tests: what needs the
// network is built there once.
func shared(t *testing.T) Builder {
	t.Helper()
	dir, err := filepath.Abs("../../.tombolo/test/images")
	require.NoError(t, err)
	return Builder{Dir: dir, Progress: WriteProgress(testWriter{t})}
}

// withTiny is a Builder on a folder of the test's own that has the image of tiny.
func withTiny(t *testing.T) Builder {
	t.Helper()
	tiny, err := shared(t).Build(t.Context(), recipe(t, recipes(nil), "tiny"))
	require.NoError(t, err)
	b := Builder{Dir: t.TempDir(), Progress: WriteProgress(testWriter{t})}
	copied := filepath.Join(b.Dir, filepath.Base(tiny.Path))
	if os.Link(tiny.Path, copied) != nil {
		require.NoError(t, exec.Command("cp", tiny.Path, copied).Run())
	}
	return b
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func TestBuildKeepsOwnersModesAndFixedTimes(t *testing.T) {
	image, err := shared(t).Build(t.Context(), recipe(t, recipes(nil), "tiny"))
	require.NoError(t, err)
	for name, mode := range map[string]uint16{
		"/usr/bin/sudo":  unix.S_IFREG | 0o4755,
		"/tmp":           unix.S_IFDIR | 0o1777,
		"/tmp/.X11-unix": unix.S_IFDIR | 0o1777, // or gVisor mounts memory over /tmp
		"/etc/shadow":    unix.S_IFREG | 0o640,
		"/etc/sudoers":   unix.S_IFREG | 0o440,
	} {
		inode, err := lookUp(t, image.Path, name)
		require.NoError(t, err, name)
		assert.Equal(t, fmt.Sprintf("%o", mode), fmt.Sprintf("%o", inode.Mode()), name)
		assert.EqualValues(t, Epoch, inode.Mtime(), name)
	}
	shadow, err := lookUp(t, image.Path, "/etc/shadow")
	require.NoError(t, err)
	assert.EqualValues(t, 42, shadow.GID(), "the group of /etc/shadow")
}

func TestBuildLeavesOutWhatNoSandboxNeeds(t *testing.T) {
	image, err := shared(t).Build(t.Context(), recipe(t, recipes(nil), "tiny"))
	require.NoError(t, err)
	for _, name := range []string{
		"/usr/share/man/man1/ls.1.gz", "/usr/share/doc/apt/changelog.gz", "/usr/share/locale/de",
		"/dev/null", "/etc/resolv.conf", "/etc/hostname", "/var/log/dpkg.log", "/var/cache/apt/pkgcache.bin",
	} {
		_, err := lookUp(t, image.Path, name)
		assert.Error(t, err, name)
	}
	id, err := lookUp(t, image.Path, "/etc/machine-id")
	require.NoError(t, err)
	assert.Zero(t, id.Size(), "the machine id must be empty")
}

func TestBuildReturnsAnImageThatIsThere(t *testing.T) {
	b := withTiny(t)
	image, err := b.Build(t.Context(), recipe(t, recipes(nil), "tiny"))
	require.NoError(t, err)
	assert.True(t, image.Cached)
	assert.NoDirExists(t, filepath.Join(b.Dir, "build"))
}

func TestEqualInputsGiveEqualBytes(t *testing.T) {
	r := recipe(t, recipes(map[string]string{"a": "date >/var/log/when; mkdir /opt/x; echo hi >/opt/x/y"}), "a")
	first, err := withTiny(t).Build(t.Context(), r)
	require.NoError(t, err)
	second, err := withTiny(t).Build(t.Context(), r)
	require.NoError(t, err)
	one, err := os.ReadFile(first.Path)
	require.NoError(t, err)
	two, err := os.ReadFile(second.Path)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(one, two), "two builds of one recipe differ")
}

func TestAnImageMadeFromAnotherKeepsItsModes(t *testing.T) {
	b := withTiny(t)
	image, err := b.Build(t.Context(), recipe(t, recipes(map[string]string{"a": "true"}), "a"))
	require.NoError(t, err)
	sudo, err := lookUp(t, image.Path, "/usr/bin/sudo")
	require.NoError(t, err)
	assert.Equal(t, "104755", fmt.Sprintf("%o", sudo.Mode()))
	shadow, err := lookUp(t, image.Path, "/etc/shadow")
	require.NoError(t, err)
	assert.EqualValues(t, 42, shadow.GID())
}

func TestFilesOfARecipeGetTheirModesAndOwners(t *testing.T) {
	tree := recipes(map[string]string{"a": "useradd -m user"})
	tree["b/template.yaml"] = &fstest.MapFile{Data: []byte(
		"name: b\nfrom: a\nmodes: {usr/local/bin/x: \"4755\", home/user/y: \"0600\"}\n")}
	for _, name := range []string{"usr/local/bin/x", "home/user/y", "etc/z"} {
		tree["b/files/"+name] = &fstest.MapFile{Data: []byte("text")}
	}
	image, err := withTiny(t).Build(t.Context(), recipe(t, tree, "b"))
	require.NoError(t, err)
	for _, want := range []struct {
		name, mode string
		owner      uint32
	}{
		{"/usr/local/bin/x", "104755", 0}, {"/home/user/y", "100600", 1000}, {"/etc/z", "100644", 0},
		{"/home/user", "40700", 1000}, {"/etc", "40755", 0},
	} {
		inode, err := lookUp(t, image.Path, want.name)
		require.NoError(t, err, want.name)
		assert.Equal(t, want.mode, fmt.Sprintf("%o", inode.Mode()), want.name)
		assert.Equal(t, want.owner, inode.UID(), want.name)
	}
}

func TestABuildDoesNotFollowLinksOutOfItsTree(t *testing.T) {
	outside := t.TempDir()
	tree := recipes(map[string]string{
		"a": "ln -s " + outside + " /opt/out",
		"c": "umount /etc/resolv.conf; rm /etc/resolv.conf; ln -s " + outside + "/resolv.conf /etc/resolv.conf",
	})
	tree["b/template.yaml"] = &fstest.MapFile{Data: []byte("name: b\nfrom: a\nrun: [\"true\"]\n")}
	tree["b/files/opt/out/x"] = &fstest.MapFile{Data: []byte("text")}
	tree["d/template.yaml"] = &fstest.MapFile{Data: []byte("name: d\nfrom: c\nrun: [\"[ -f /etc/resolv.conf ]\"]\n")}
	b := withTiny(t)
	_, err := b.Build(t.Context(), recipe(t, tree, "b"))
	require.ErrorContains(t, err, "opt/out")
	image, err := b.Build(t.Context(), recipe(t, tree, "d"))
	require.NoError(t, err)
	conf, err := lookUp(t, image.Path, "/etc/resolv.conf")
	require.NoError(t, err)
	assert.True(t, conf.IsSymlink(), "the image keeps its link")
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestImageTrustsWhatTheMachineTrusts(t *testing.T) {
	b := withTiny(t)
	b.CABundle = "testdata/ca.pem"
	image, err := b.Build(t.Context(), recipe(t, recipes(map[string]string{
		"a": "update-ca-certificates --fresh; grep -q 'MIIBizCCATGgAwIBAgIUeQT6NbDNrnIgYxblQdgNfAfG9nAwCgYIKoZIzj0E' /etc/ssl/certs/ca-certificates.crt",
	}), "a"))
	require.NoError(t, err, "a later update-ca-certificates must keep the machine's certificates")
	assert.FileExists(t, image.Path)
}

func TestConcurrentBuildsOfOneImageBuildItOnce(t *testing.T) {
	b := withTiny(t)
	r := recipe(t, recipes(map[string]string{"a": "echo a"}), "a")
	images := make([]Image, 3)
	errs := make([]error, len(images))
	var wg sync.WaitGroup
	for i := range images {
		wg.Go(func() { images[i], errs[i] = Builder{Dir: b.Dir}.Build(t.Context(), r) })
	}
	wg.Wait()
	built := 0
	for i, image := range images {
		require.NoError(t, errs[i])
		assert.Equal(t, images[0].Path, image.Path)
		if !image.Cached {
			built++
		}
	}
	assert.Equal(t, 1, built, "builds that did the work")
}

func TestAFailedCommandIsShownWithItsLog(t *testing.T) {
	b := withTiny(t)
	_, err := b.Build(t.Context(), recipe(t, recipes(map[string]string{"a": "echo one; echo boom >&2; exit 3"}), "a"))
	var failed *BuildError
	require.ErrorAs(t, err, &failed)
	assert.Contains(t, failed.Step, "run 1/1")
	assert.Contains(t, failed.Tail, "boom")
	assert.Contains(t, err.Error(), failed.LogPath)
	log, err := os.ReadFile(failed.LogPath)
	require.NoError(t, err)
	assert.Contains(t, string(log), "one\nboom\n")
	assertNothingLeft(t, b.Dir)
}

func TestCancellingABuildEndsItsProcesses(t *testing.T) {
	b := withTiny(t)
	sleep := uniqueSleep(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("enough")
	go func() {
		waitForProcess(t, sleep, true)
		cancel(because)
	}()
	_, err := b.Build(ctx, recipe(t, recipes(map[string]string{"a": sleep + " & " + sleep}), "a"))
	require.ErrorIs(t, err, because)
	assert.False(t, running(sleep), "a process of the build lives on")
	assertNothingLeft(t, b.Dir)
}

func TestABuildKilledHalfWayLeavesNothingThatCounts(t *testing.T) {
	b := withTiny(t)
	sleep := uniqueSleep(t)
	helper := exec.Command("/proc/self/exe")
	helper.Env = append(os.Environ(), buildInEnv+"="+b.Dir, "TOMBOLO_TEST_RUN="+sleep+" & "+sleep)
	require.NoError(t, helper.Start())
	waitForProcess(t, sleep, true)
	require.NoError(t, helper.Process.Kill())
	helper.Wait()
	waitForProcess(t, sleep, false)

	_, err := b.Find(recipe(t, recipes(map[string]string{"slow": sleep + " & " + sleep}), "slow"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	left, err := filepath.Glob(filepath.Join(b.Dir, "build", "slow-*", "root"))
	require.NoError(t, err)
	require.Len(t, left, 1, "the test must have something to sweep")
	waitForLock(t, filepath.Join(b.Dir, "build", "slow-*.lock"))

	_, err = b.Build(t.Context(), recipe(t, recipes(map[string]string{"a": "true"}), "a"))
	require.NoError(t, err)
	assertNothingLeft(t, b.Dir)
}

func TestABuildLeavesAnotherAlone(t *testing.T) {
	b := withTiny(t)
	sleep := uniqueSleep(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := Builder{Dir: b.Dir}.Build(ctx, recipe(t, recipes(map[string]string{"slow": sleep}), "slow"))
		ended <- err
	}()
	waitForProcess(t, sleep, true)
	_, err := b.Build(t.Context(), recipe(t, recipes(map[string]string{"a": "true"}), "a"))
	require.NoError(t, err)
	assert.True(t, running(sleep))
	left, _ := filepath.Glob(filepath.Join(b.Dir, "build", "slow-*", "root", "etc", "passwd"))
	assert.Len(t, left, 1, "the tree of the other build")
	cancel()
	assert.ErrorIs(t, <-ended, context.Canceled)
}

func TestBuildSaysWhichToolsToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Builder{Dir: t.TempDir()}.Build(t.Context(), recipe(t, recipes(nil), "tiny"))
	var missing *MissingToolsError
	require.ErrorAs(t, err, &missing)
	assert.Contains(t, err.Error(), "apt-get install -y mmdebstrap")
}

func TestBuildSaysWhenTheDiskIsTooFull(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"))
	t.Cleanup(func() { unix.Unmount(dir, 0) })
	_, err := Builder{Dir: dir}.Build(t.Context(), recipe(t, recipes(nil), "tiny"))
	var full *SpaceError
	require.ErrorAs(t, err, &full)
	assert.Less(t, full.Free, int64(17<<20))
	assert.Contains(t, err.Error(), "make room")
	assertNothingLeft(t, dir)
}

// lookUp finds a file of an image as the engine does, without following links.
func lookUp(t *testing.T, path, name string) (erofs.Inode, error) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	image, err := erofs.OpenImage(f)
	require.NoError(t, err)
	t.Cleanup(image.Close)
	inode, err := image.Inode(image.RootNid())
	require.NoError(t, err)
	for part := range strings.SplitSeq(strings.TrimPrefix(name, "/"), "/") {
		nid, err := inode.Lookup(part)
		if err != nil {
			return erofs.Inode{}, err
		}
		if inode, err = image.Inode(nid); err != nil {
			return erofs.Inode{}, err
		}
	}
	return inode, nil
}

// assertNothingLeft looks for trees of builds; logs and locks may stay.
func assertNothingLeft(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "build"))
	require.NoError(t, err)
	for _, e := range entries {
		assert.False(t, e.IsDir(), "%s is left", e.Name())
		if strings.HasPrefix(e.Name(), "oci-") { // a recipe's processes may have its lock still
			assert.NotEqual(t, ".lock", filepath.Ext(e.Name()), "%s is left", e.Name())
		}
	}
}

// waitForLock waits until the last process of a killed build, which inherited its
// lock, is gone.
func waitForLock(t *testing.T, pattern string) {
	t.Helper()
	locks, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.Len(t, locks, 1)
	file, err := os.Open(locks[0])
	require.NoError(t, err)
	defer file.Close()
	require.Eventually(t, func() bool {
		return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	}, 30*time.Second, 10*time.Millisecond)
}

// uniqueSleep is a command that no other process has.
func uniqueSleep(t *testing.T) string {
	t.Helper()
	var id [4]byte
	_, err := rand.Read(id[:])
	require.NoError(t, err)
	n := 0
	for _, b := range id {
		n = n<<8 | int(b)
	}
	t.Log("sleep id " + hex.EncodeToString(id[:]))
	return fmt.Sprintf("sleep 1000000%d", n)
}

func running(command string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range files {
		text, _ := os.ReadFile(name)
		if string(bytes.ReplaceAll(bytes.TrimRight(text, "\x00"), []byte{0}, []byte{' '})) == command {
			return true
		}
	}
	return false
}

func waitForProcess(t *testing.T, command string, want bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for running(command) != want {
		select {
		case <-deadline:
			t.Errorf("process %q: running is not %v after a minute", command, want)
			return
		case <-tick.C:
		}
	}
}
