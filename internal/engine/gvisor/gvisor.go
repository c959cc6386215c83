// Package gvisor runs sandboxes in gVisor's user-space kernel. gVisor is linked
// into this program: the engine re-executes it under the name runsc (see
// [IsRunsc]). It owns the OCI bundle, runsc's state, the control groups and the
// processes of an instance; the network namespace and the image are given to it.
package gvisor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli/maincli"

	"github.com/tombolo-dev/tombolo/internal/engine"
)

// Config places an engine on the machine.
type Config struct {
	// Executable is a program that runs gVisor's command line when its argv[0]
	// is "runsc"; empty is this program itself.
	Executable string
	// Scope names the control group that holds this engine's sandboxes. Two data
	// folders on one machine have different ones, so that neither sweeps the
	// other's.
	Scope string
	// Platform is gVisor's: systrap (default) or kvm.
	Platform string
	// Programs is a folder that keeps the program of each version that ran here, for
	// as long as a checkpoint or a running instance needs it. Empty keeps none.
	Programs string
	// Processes has every instance tell of the processes that are started in it, for
	// Spec.OnProcess.
	Processes bool
	// Log hears of what goes wrong aside; nil is slog.Default().
	Log *slog.Logger
}

// Engine is the gVisor engine. Safe for concurrent use.
type Engine struct {
	config Config
	cgroup hierarchy
	taps   sync.Map // of instances whose processes are watched: id to *tap

	archiving chan struct{} // full while a disk is archived
}

var _ engine.Engine = (*Engine)(nil)

// New checks that the machine can run the engine. The error wraps
// engine.ErrUnsupported when it cannot.
func New(config Config) (*Engine, error) {
	if config.Executable == "" {
		if buildSetting("CGO_ENABLED") == "1" {
			return nil, errors.New("this program is linked dynamically and cannot run as gVisor's sentry; build it with CGO_ENABLED=0 (`make build`)")
		}
		config.Executable = "/proc/self/exe"
	}
	if config.Platform == "" {
		config.Platform = "systrap"
	}
	if config.Log == nil {
		config.Log = slog.Default()
	}
	cgroup, err := findHierarchy()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrUnsupported, err)
	}
	e := &Engine{config: config, cgroup: cgroup, archiving: make(chan struct{}, 1)}
	if err := e.keepProgram(); err != nil {
		return nil, fmt.Errorf("keep the engine's program: %w", err)
	}
	return e, nil
}

// Scope derives Config.Scope from a data folder.
func Scope(dataDir string) string {
	sum := sha256.Sum256([]byte(filepath.Clean(dataDir)))
	return hex.EncodeToString(sum[:4])
}

// IsRunsc tells whether a program started as argv0 has to be gVisor. gVisor's
// own children are named runsc-sandbox, runsc-gofer and the like, or re-execute
// /proc/self/exe under that very name.
func IsRunsc(argv0 string) bool {
	return argv0 == "/proc/self/exe" || strings.HasPrefix(path.Base(argv0), "runsc")
}

// Main is gVisor's command line, for a program that [IsRunsc] was true for.
func Main() {
	quietStart()
	maincli.Main()
}

const (
	// startTime is longer than a start takes, and than most commands live.
	startTime = time.Second
	// startHeap is when garbage is collected all the same. A restore makes 10 to 20
	// MiB of it.
	startHeap = 64 << 20
)

// quietStart leaves garbage alone while a process starts: a tenth of the processor
// time that a restore takes went into collecting what little there is.
func quietStart() {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(startHeap)
	time.AfterFunc(startTime, func() {
		debug.SetGCPercent(100)
		debug.SetMemoryLimit(math.MaxInt64)
	})
}

// sentryName is what gVisor names the process of a sentry.
const sentryName = "runsc-sandbox"

// Version is gVisor's module version: state files have no other compatibility
// promise than "the same build".
func (e *Engine) Version() string { return Version() }

// revision tells builds with one gVisor apart; set by the linker, for tests of
// upgrades and for a patched gVisor.
var revision string

// Version is the version of the gVisor linked in.
func Version() string {
	version := "gvisor-unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "gvisor.dev/gvisor" {
				version = "gvisor-" + m.Version + "-" + info.GoVersion
			}
		}
	}
	if revision != "" {
		version += "-" + revision
	}
	return version
}

func buildSetting(key string) string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	for _, setting := range info.Settings {
		if setting.Key == key {
			return setting.Value
		}
	}
	return ""
}

// Start boots an instance.
func (e *Engine) Start(ctx context.Context, spec engine.Spec) (engine.Instance, error) {
	args := []string{"--detach"}
	if spec.Disk != "" {
		args = append(args, "--fs-restore-image-path="+spec.Disk)
	}
	return e.launch(ctx, spec, "run", args...)
}

// Prepare starts a sentry that waits to be told what to restore.
func (e *Engine) Prepare(ctx context.Context, spec engine.Spec) error {
	output, err := e.start(ctx, spec, "create")
	if err != nil {
		return err
	}
	return output.Close() // nobody writes before the restore
}

// Restore continues an instance from a checkpoint.
func (e *Engine) Restore(ctx context.Context, spec engine.Spec, from string) (engine.Instance, error) {
	if pid, err := readPID(filepath.Join(spec.Dir, pidName)); err == nil && e.group(spec.ID).holds(pid) {
		return e.restoreInto(ctx, spec, pid, from)
	}
	return e.launch(ctx, spec, "restore", "--detach", "--image-path="+from)
}

// Sweep removes what a dead daemon left of an instance.
func (e *Engine) Sweep(ctx context.Context, id, dir string) error {
	return e.clear(ctx, id, dir)
}

// SweepOthers removes the control groups of this scope, and the processes in
// them, that keep does not claim.
func (e *Engine) SweepOthers(ctx context.Context, keep func(id string) bool) error {
	ids, err := e.cgroup.list(e.scopePath())
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if !keep(id) {
			errs = append(errs, e.group(id).remove(ctx))
		}
	}
	return errors.Join(errs...)
}

// RemoveScope removes the empty control group above the instances, at shutdown.
func (e *Engine) RemoveScope() { e.cgroup.removeEmpty(e.scopePath()) }

func (e *Engine) scopePath() string { return "/tombolo-" + e.config.Scope }

func (e *Engine) group(id string) group {
	return group{hierarchy: e.cgroup, path: e.scopePath() + "/" + id}
}

// restoreInto restores into the sentry that Prepare started.
func (e *Engine) restoreInto(ctx context.Context, spec engine.Spec, pid int, from string) (_ engine.Instance, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, e.clear(context.WithoutCancel(ctx), spec.ID, spec.Dir))
		}
	}()
	output, err := openOutput(spec)
	if err != nil {
		return nil, fmt.Errorf("open output of %s: %w", spec.ID, err)
	}
	if err := e.runsc(ctx, spec, nil, "restore", "--detach", "--image-path="+from, spec.ID); err != nil {
		output.Close()
		return nil, fmt.Errorf("restore %s: %w", spec.ID, err)
	}
	return e.watch(spec, e.group(spec.ID), pid, output)
}

// launch runs one runsc command that leaves a sandbox behind, and takes charge
// of that sandbox.
func (e *Engine) launch(ctx context.Context, spec engine.Spec, command string, args ...string) (engine.Instance, error) {
	output, err := e.start(ctx, spec, command, args...)
	if err != nil {
		return nil, err
	}
	pid, err := readPID(filepath.Join(spec.Dir, pidName))
	if err != nil {
		output.Close()
		return nil, errors.Join(fmt.Errorf("%s %s: %w", command, spec.ID, err), e.clear(context.WithoutCancel(ctx), spec.ID, spec.Dir))
	}
	i, err := e.watch(spec, e.group(spec.ID), pid, output)
	if err != nil {
		return nil, errors.Join(err, e.clear(context.WithoutCancel(ctx), spec.ID, spec.Dir))
	}
	return i, nil
}

// start runs one runsc command that leaves a sentry behind, and returns the
// reading end of its output.
func (e *Engine) start(ctx context.Context, spec engine.Spec, command string, args ...string) (_ *os.File, err error) {
	group := e.group(spec.ID)
	if err := writeBundle(spec, group.path); err != nil {
		return nil, fmt.Errorf("write bundle of %s: %w", spec.ID, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.clear(context.WithoutCancel(ctx), spec.ID, spec.Dir))
		}
	}()
	pidFile := filepath.Join(spec.Dir, pidName)
	args = append(args, "--bundle="+filepath.Join(spec.Dir, bundleDir), "--pid-file="+pidFile, spec.ID)
	output, err := makeOutput(spec)
	if err != nil {
		return nil, fmt.Errorf("make output of %s: %w", spec.ID, err)
	}
	if e.config.Processes {
		if _, err := e.openTap(spec); err != nil {
			output.write.Close()
			output.read.Close()
			return nil, fmt.Errorf("watch the processes of %s: %w", spec.ID, err)
		}
	}
	stopWaiting := group.makeRoomForStart(spec.Limits.MemoryBytes)
	err = e.runsc(ctx, spec, output.write, command, args...)
	stopWaiting()
	output.write.Close()
	if err != nil {
		output.read.Close()
		return nil, fmt.Errorf("%s %s: %w", command, spec.ID, err)
	}
	return output.read, nil
}

// Adopt takes charge of an instance whose sentry still runs.
func (e *Engine) Adopt(_ context.Context, spec engine.Spec) (engine.Instance, error) {
	group := e.group(spec.ID)
	pid, err := readPID(filepath.Join(spec.Dir, pidName))
	if err != nil || !group.holds(pid) {
		return nil, fmt.Errorf("adopt %s: %w", spec.ID, engine.ErrGone)
	}
	output, err := openOutput(spec)
	if err != nil {
		return nil, fmt.Errorf("adopt %s: open its output: %w", spec.ID, err)
	}
	i, err := e.watch(spec, group, pid, output)
	if err != nil {
		return nil, fmt.Errorf("adopt %s: %w: %w", spec.ID, engine.ErrGone, err)
	}
	i.adopted = true
	if e.config.Processes {
		i.traceAdopted()
	}
	return i, nil
}

// runsc runs one gVisor command to its end. Its complaint, which it writes as a
// log line to stderr or to the log, becomes the error.
func (e *Engine) runsc(ctx context.Context, spec engine.Spec, output *os.File, command string, args ...string) error {
	logFile := filepath.Join(spec.Dir, "runsc.log")
	flags := []string{
		"--root=" + filepath.Join(spec.Dir, stateDir),
		"--log=" + logFile,
		"--panic-log=" + filepath.Join(spec.Dir, panicLog),
		"--platform=" + e.config.Platform,
		"--network=sandbox",
		// The gofer is as trusted as the sentry: it gets the sandbox's namespace,
		// where every frame meets the gateway, instead of one more of its own.
		"--gofer-network-namespace=" + spec.NetworkNamespace,
		"--host-settings=ignore",
		// Without direct file access the sentry's system-call filter is stricter: it
		// opens no file of the host itself. Volumes pay for it, with a millisecond for each
		// file they open.
		"--directfs=false",
		// The check compares host paths too, so a data folder could not be moved.
		// That image, mounts and limits are the writer's is the caller's promise.
		"--restore-spec-validation=ignore",
		"--allow-suid",
		// Patching system calls makes each 3 times faster (6 to 2 µs) after a cost at
		// its first use in every process. What runs here is mostly short: without it
		// `bash -l -c true` takes 17 ms instead of 21, run_code a tenth less.
		"--systrap-disable-syscall-patching",
		"--overlay2=none",
		"--allow-rootfs-tar-annotation", // Spec.Upper; nobody but writeBundle writes annotations
		"--file-access-mounts=shared",
	}
	if e.tapOf(spec.ID) != nil && command != "trace" {
		flags = append(flags, "--pod-init-config="+filepath.Join(spec.Dir, traceConfig))
	}
	flags = append(flags, command)
	program, err := e.program(spec.Version)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, append(flags, args...)...)
	cmd.Args[0] = "runsc"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = spec.Dir
	// The instance's PID 1 inherits stdout and stderr, so runsc's own messages
	// come back by the log file.
	var stderr bytes.Buffer
	if output != nil {
		cmd.Stdout, cmd.Stderr = output, output
	} else {
		cmd.Stderr = &limitedWriter{w: &stderr, left: 64 << 10}
	}
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		text := lastComplaint(logFile, stderr.String())
		if text == "" {
			return err
		}
		return explained(text, fmt.Errorf("%w: %s", err, shortened(text)))
	}
	return nil
}

// clear ends and removes everything an instance may have. It works from the id
// and the folder alone, so it serves half-made instances and sweeping as well.
func (e *Engine) clear(ctx context.Context, id, dir string) error {
	e.closeTap(id)
	if err := e.group(id).remove(ctx); err != nil {
		return err
	}
	var errs []error
	for _, name := range []string{bundleDir, stateDir, panicLog, pidName, outputName, "runsc.log", traceSocket, traceConfig} {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}

func readPID(file string) (int, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(raw)))
}

// maxComplaint bounds what is passed on of a complaint, bytes.
const maxComplaint = 400

// lastComplaint says what runsc complained of: the last message of its log, which
// is lines of JSON, else what it wrote to stderr. Of a message that goes on with
// stacks and dumps only the beginning is for people.
func lastComplaint(logFile, stderr string) string {
	text := stderr
	raw, _ := os.ReadFile(logFile)
	for line := range bytes.Lines(raw) {
		var entry struct {
			Msg string `json:"msg"`
		}
		if json.Unmarshal(line, &entry) == nil && entry.Msg != "" {
			text = entry.Msg
		}
	}
	text, _, _ = strings.Cut(text, "\ngoroutine ")
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n\n")
	return strings.ReplaceAll(text, "\n", " ")
}

func shortened(complaint string) string {
	if len(complaint) > maxComplaint {
		return strings.ToValidUTF8(complaint[:maxComplaint], "") + " …"
	}
	return complaint
}

// missing is how gVisor says that it cannot find what was open below a mount, stale
// how it says that it cannot save that. The path is a string as Go quotes it, and
// before the mount's target is the name of the container.
var stale = regexp.MustCompile(`gofer\.dentry\(("(?:[^"\\]|\\.)*")\)\.prepareSaveDead: invalidated dentries can't be saved`)
var missing = regexp.MustCompile(`failed to walk ("(?:[^"\\]|\\.)*") of type (0[0-7]+) in mount "[^":]*:(/[^"]*)": no such file or directory`)

// explained makes err an *engine.MissingError or an *engine.StaleError, or one that is
// ENOSPC, when a complaint says so.
func explained(complaint string, err error) error {
	if strings.HasSuffix(complaint, unix.ENOSPC.Error()) {
		return noSpaceError{err}
	}
	if match := stale.FindStringSubmatch(complaint); match != nil {
		path, _ := strconv.Unquote(match[1])
		return &engine.StaleError{Path: path, Err: err}
	}
	match := missing.FindStringSubmatch(complaint)
	if match == nil {
		return err
	}
	path, unquoteErr := strconv.Unquote(match[1])
	kind, parseErr := strconv.ParseUint(match[2], 8, 32)
	types := map[uint64]fs.FileMode{unix.S_IFREG: 0, unix.S_IFDIR: fs.ModeDir, unix.S_IFLNK: fs.ModeSymlink}
	mode, known := types[kind]
	if unquoteErr != nil || parseErr != nil || !known {
		return err
	}
	return &engine.MissingError{Target: match[3], Path: path, Type: mode, Err: err}
}

// noSpaceError says that the disk of the machine is full.
type noSpaceError struct{ error }

func (noSpaceError) Is(target error) bool { return target == unix.ENOSPC }

func (e noSpaceError) Unwrap() error { return e.error }

type limitedWriter struct {
	w    io.Writer
	left int
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) > l.left {
		p = p[:l.left]
	}
	l.left -= len(p)
	_, err := l.w.Write(p)
	return n, err
}
