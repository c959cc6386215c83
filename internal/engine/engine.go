// Package engine says what isolates a sandbox from the host and from its
// neighbours. It holds the interface and the words; engine/gvisor is the
// implementation, engine/enginetest the contract every implementation passes.
// It knows nothing of templates, keys, dialects or the gateway.
package engine

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"time"
)

// Engine starts sandboxes. Safe for concurrent use.
//
// The life of an instance:
//
//  1. Start boots [Spec.Args] as PID 1 from a root image, or Restore continues
//     from a checkpoint that an instance of an equal Spec wrote. Either returns
//     when PID 1 runs, or fails and leaves nothing behind.
//  2. Checkpoint writes memory and disk to a folder, CheckpointDisk the disk
//     alone, while the instance runs on.
//  3. The instance ends by Stop, by PID 1 exiting, or by the engine (out of
//     memory, crash). Done is closed then, and Exit says why.
//  4. Stop, called in any case, removes what is left: processes, control groups,
//     files below [Spec.Dir] that the engine made.
//
// An instance does not need the process that started it: Detach lets go of it,
// or the process dies, and Adopt of a later process takes charge again.
type Engine interface {
	// Version names the build of the engine. A checkpoint is restored only by the
	// version that wrote it.
	Version() string
	// Has tells whether instances of a version can be started and their checkpoints
	// restored here: the engine's own, and those whose program was kept.
	Has(version string) bool
	// Prune removes the kept programs of versions that keep does not claim.
	Prune(keep func(version string) bool) error
	Start(ctx context.Context, spec Spec) (Instance, error)
	// Restore continues from the checkpoint in the folder from. ID, Dir, network
	// namespace and mount sources may differ from those of the writer; image,
	// mount targets, arguments and limits may not. What the instance had open below a
	// mount has to be there: a *MissingError says what is not.
	Restore(ctx context.Context, spec Spec, from string) (Instance, error)
	// Prepare does of a Restore with the same Spec what can be done before it is known
	// what to restore; that Restore is then quicker. Output and OnPressure are not
	// used. Sweep undoes it.
	Prepare(ctx context.Context, spec Spec) error
	// Adopt takes charge of an instance that a process which is gone, or which
	// detached, started with an equal Spec. ErrGone when it does not run any more;
	// Sweep then removes what is left.
	Adopt(ctx context.Context, spec Spec) (Instance, error)
	// ArchiveDisk makes the archive of [Instance.WriteDisk] of a folder that
	// CheckpointDisk of an instance of this version wrote.
	ArchiveDisk(ctx context.Context, saved, to string) error
	// Sweep removes what an instance left whose daemon died: its processes,
	// control groups and mounts. Nothing to remove is no error.
	Sweep(ctx context.Context, id, dir string) error
	// SweepOthers removes the processes and control groups of every instance
	// that keep does not claim, those whose folder is gone included.
	SweepOthers(ctx context.Context, keep func(id string) bool) error
}

// Instance is one running sandbox.
type Instance interface {
	// Checkpoint writes memory and disk into the folder to, which must not exist;
	// the instance stands still meanwhile and then runs on. On an error to is
	// removed and the instance runs on; a *StaleError says that others took away what
	// it has open.
	Checkpoint(ctx context.Context, to string) error
	// CheckpointDisk writes what was written to the root file system into the
	// folder to, for [Spec.Disk], in the same way.
	CheckpointDisk(ctx context.Context, to string) error
	// WriteDisk writes what was written to the root file system into the file to, which
	// must not exist, as a tar archive in which a character device 0/0 stands for what was removed, and the
	// attribute trusted.overlay.opaque for a folder that hides the image's. The
	// instance stands still meanwhile and then runs on.
	WriteDisk(ctx context.Context, to string) error
	// Stop ends every process at once (no grace) and removes what the engine
	// made. Idempotent; after an error call it again.
	Stop(ctx context.Context) error
	// Detach lets go of the instance, which runs on. No other method may be called
	// after it.
	Detach()
	// Done is closed when the instance has ended, by whatever cause.
	Done() <-chan struct{}
	// Exit says why it ended; valid after Done is closed.
	Exit() Exit
	Stats(ctx context.Context) (Stats, error)
}

// Spec describes an instance.
type Spec struct {
	// ID is unique on the machine; all ids have the same length.
	ID string
	// Dir is the instance's own folder, existing and empty. The engine keeps its
	// bundle, state and the writable layer below it.
	Dir string
	// Version of the engine that runs it; empty is [Engine.Version].
	Version string
	// Image is the root file system, an EROFS file that is never written.
	Image string
	// Upper is a file WriteDisk wrote of an instance with this Image: Start begins with
	// what was written then. Any version reads it. Not together with Disk, which has
	// all that was written; a checkpoint has too.
	Upper string
	// Disk is a folder CheckpointDisk wrote: Start begins with what was written
	// then. Empty begins with the image alone.
	Disk string
	// Mounts are host folders seen inside, besides the usual /proc, /dev, /sys.
	// There is at least one (gVisor starts no gofer without, and only with one
	// keeps the writable layer on disk).
	Mounts []Mount
	// NetworkNamespace is the path of the namespace whose only device becomes
	// eth0 inside.
	NetworkNamespace string
	Args             []string
	Env              []string
	Hostname         string
	Limits           Limits
	// Output receives what PID 1 writes to stdout and stderr. It must not block.
	Output io.Writer
	// OnPressure is called when the instance has reached its memory limit. It
	// should free memory inside (end a process) and return; it is called again
	// while there is still not enough. Nil means nothing can be done and the
	// instance is ended.
	OnPressure func(ctx context.Context, p Pressure) error
	// OnProcess is told of each program that is started inside, in order, where the
	// engine was made to watch. It holds up the next one only. Nil is nobody.
	OnProcess func(Process)
}

// Process is a program that a process inside began to run (execve).
type Process struct {
	PID    int    // inside
	Parent int    // inside
	By     string // the name of the process until then
	Binary string // path inside
	Args   []string
	// Missed is how many there were since the one before that could not be told of. All
	// else may be empty then.
	Missed int
}

// Mount is a host folder seen inside.
type Mount struct {
	Source   string
	Target   string
	ReadOnly bool
	// Receive shows inside what is mounted below Source on the host later.
	Receive bool
}

// Limits bound one instance. All are > 0.
type Limits struct {
	CPUs        float64 // processor time, in processors
	MemoryBytes int64   // memory of the processes inside; the engine's own comes on top
	DiskBytes   int64   // what may be written to the root file system
	Processes   int64   // processes and threads inside; the engine bounds the host side by it
}

// Pressure says how much memory is used of how much.
type Pressure struct {
	UsedBytes  int64
	LimitBytes int64
}

// Exit says why an instance ended.
type Exit struct {
	// Reason in words, for people: "stopped", "out of memory: …", "the engine
	// process ended unexpectedly: …".
	Reason string
	At     time.Time
}

// Stats is what an instance uses.
type Stats struct {
	CPUTime     time.Duration // the engine's own included
	MemoryBytes int64         // of the processes inside
	EngineBytes int64         // memory of the engine itself
	CacheBytes  int64         // page cache of the files it read and wrote
	DiskBytes   int64         // blocks of the writable layer on the host
	Processes   int64         // host tasks, the engine's own included
}

// MissingError says that a restore needs something below a mount that is not there
// any more.
type MissingError struct {
	Target string      // of the mount
	Path   string      // below it, as the sandbox had named it
	Type   fs.FileMode // the type bits: of a file, folder, link, …
	Err    error
}

func (e *MissingError) Error() string { return e.Err.Error() }

func (e *MissingError) Unwrap() error { return e.Err }

// StaleError says that an instance cannot be saved while it has something open
// below a mount that others removed or replaced.
type StaleError struct {
	Path string // below the mount, as the sandbox had named it
	Err  error
}

func (e *StaleError) Error() string { return e.Err.Error() }

func (e *StaleError) Unwrap() error { return e.Err }

// ErrGone says that an instance to adopt does not run any more.
var ErrGone = errors.New("the instance does not run any more")

// ErrUnsupported says that this machine cannot run the engine, wrapped with what
// is missing.
var ErrUnsupported = errors.New("engine not supported on this machine")
