// Package enginetest is the contract of an engine: one suite that every
// implementation passes, on real sandboxes.
package enginetest

import (
	"archive/tar"
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/image/erofs"
)

// Suite is what an implementation gives.
type Suite struct {
	Engine engine.Engine
	// Namespace makes a network namespace for one instance and returns its path.
	Namespace func(t *testing.T) string
	// Leftovers names what of an instance is left on the host: processes, control
	// groups.
	Leftovers func(t *testing.T, id string) []string
	// TaskLimit tells how many threads the host grants an instance, "max" for any
	// number.
	TaskLimit func(t *testing.T, id string) string
}

// Run runs the suite.
func (s Suite) Run(t *testing.T) {
	image := buildImage(t)
	t.Run("RunsUntilStoppedAndLeavesNothing", func(t *testing.T) {
		i := s.start(t, image, engine.Limits{}, "count")
		i.expect("count 5")
		stats, err := i.Stats(t.Context())
		require.NoError(t, err)
		require.Positive(t, stats.MemoryBytes)
		require.Positive(t, stats.CPUTime)
		require.Positive(t, stats.Processes)
		require.Regexp(t, `^\d+$`, s.TaskLimit(t, i.spec.ID), "the host should bound the threads")
		require.NoError(t, i.Stop(t.Context()))
		require.NoError(t, i.Stop(t.Context()), "stop twice")
		i.expectEnd("stopped")
		s.expectNothingLeft(t, i)
	})
	t.Run("TellsWhenPID1Ends", func(t *testing.T) {
		i := s.start(t, image, engine.Limits{}, "exit")
		i.expect("bye")
		i.expectEnd("ended")
		require.NoError(t, i.Stop(t.Context()))
		s.expectNothingLeft(t, i)
	})
	t.Run("RestoresTwoClonesFromOneCheckpoint", func(t *testing.T) {
		i := s.start(t, image, engine.Limits{}, "count")
		i.expect("count 5")
		checkpoint := filepath.Join(t.TempDir(), "checkpoint")
		require.NoError(t, i.Checkpoint(t.Context(), checkpoint))
		i.expect("count 40") // runs on
		require.NoError(t, i.Stop(t.Context()))
		for range 2 {
			clone := s.launch(t, s.spec(t, image, engine.Limits{}, "count"), checkpoint)
			first := clone.line()
			require.NotEqual(t, "count 1", first, "started anew instead of being restored")
			clone.expect("count 60")
			require.NoError(t, clone.Stop(t.Context()))
			s.expectNothingLeft(t, clone)
		}
	})
	t.Run("RestoresIntoWhatWasPrepared", func(t *testing.T) {
		i := s.start(t, image, engine.Limits{}, "count")
		i.expect("count 5")
		checkpoint := filepath.Join(t.TempDir(), "checkpoint")
		require.NoError(t, i.Checkpoint(t.Context(), checkpoint))
		require.NoError(t, i.Stop(t.Context()))
		spec := s.spec(t, image, engine.Limits{}, "count")
		require.NoError(t, s.Engine.Prepare(t.Context(), spec))
		clone := s.launch(t, spec, checkpoint)
		require.NotEqual(t, "count 1", clone.line(), "started anew instead of being restored")
		clone.expect("count 60")
		require.NoError(t, clone.Checkpoint(t.Context(), filepath.Join(t.TempDir(), "again")))
		require.NoError(t, clone.Stop(t.Context()))
		clone.expectEnd("stopped")
		s.expectNothingLeft(t, clone)

		unused := s.spec(t, image, engine.Limits{}, "count")
		require.NoError(t, s.Engine.Prepare(t.Context(), unused))
		require.NotEmpty(t, s.Leftovers(t, unused.ID))
		require.NoError(t, s.Engine.Sweep(t.Context(), unused.ID, unused.Dir))
		require.Empty(t, s.Leftovers(t, unused.ID))

		spoilt := s.spec(t, image, engine.Limits{}, "count")
		require.NoError(t, s.Engine.Prepare(t.Context(), spoilt))
		_, err := s.Engine.Restore(t.Context(), spoilt, filepath.Join(t.TempDir(), "nowhere"))
		require.Error(t, err)
		require.Empty(t, s.Leftovers(t, spoilt.ID))
	})
	t.Run("StartsAnewFromASavedDisk", func(t *testing.T) {
		i := s.start(t, image, engine.Limits{}, "reboots")
		i.expect("start 1")
		disk := filepath.Join(t.TempDir(), "disk")
		for start := 2; start <= 3; start++ {
			i.expect("count 5")
			require.NoError(t, i.CheckpointDisk(t.Context(), disk))
			i.expect("count 20") // runs on
			require.NoError(t, i.Stop(t.Context()))
			spec := s.spec(t, image, engine.Limits{}, "reboots")
			spec.Disk = disk
			i = s.launch(t, spec, "")
			i.expect(fmt.Sprintf("start %d", start))
			require.NoError(t, os.RemoveAll(disk), "the saved disk is not needed once the instance runs")
		}
		require.NoError(t, i.Stop(t.Context()))
		s.expectNothingLeft(t, i)
	})
	t.Run("WritesItsDiskAsAnArchive", func(t *testing.T) {
		i := s.start(t, image, engine.Limits{MemoryBytes: 128 << 20, DiskBytes: 1 << 30}, "write")
		i.expect("removed <nil>")
		i.expect("count 1")
		to := filepath.Join(t.TempDir(), "disk.tar")
		require.NoError(t, i.WriteDisk(t.Context(), to), "with a file larger than the memory in it")
		i.expect("count 20") // runs on
		checkArchive(t, to)
		require.NoError(t, i.Stop(t.Context()))
		s.expectNothingLeft(t, i)
		left, err := os.ReadDir(filepath.Dir(to))
		require.NoError(t, err)
		require.Len(t, left, 1, "the archive alone")
	})
	t.Run("StartsAnewWithWhatWasWrittenOverTheImage", func(t *testing.T) {
		i := s.start(t, image, engine.Limits{}, "reboots")
		i.expect("start 1")
		upper := filepath.Join(t.TempDir(), "upper")
		require.NoError(t, i.WriteDisk(t.Context(), upper))
		i.expect("count 20") // runs on
		require.NoError(t, i.Stop(t.Context()))
		spec := s.spec(t, image, engine.Limits{}, "reboots")
		spec.Upper = upper
		i = s.launch(t, spec, "")
		i.expect("start 2")
		require.NoError(t, os.Remove(upper), "what was written is not needed once the instance runs")
		checkpoint := filepath.Join(t.TempDir(), "checkpoint")
		require.NoError(t, i.Checkpoint(t.Context(), checkpoint))
		require.NoError(t, i.Stop(t.Context()))
		restored := s.launch(t, s.spec(t, image, engine.Limits{}, "reboots"), checkpoint)
		restored.expect("count 60")
		again := filepath.Join(t.TempDir(), "again")
		require.NoError(t, restored.WriteDisk(t.Context(), again))
		require.NoError(t, restored.Stop(t.Context()))
		spec = s.spec(t, image, engine.Limits{}, "reboots")
		spec.Upper = again
		third := s.launch(t, spec, "")
		third.expect("start 3")
		require.NoError(t, third.Stop(t.Context()))
		s.expectNothingLeft(t, third)
	})
	t.Run("TellsOfProcesses", func(t *testing.T) { s.tellsOfProcesses(t, image) })
	t.Run("RunsOnWithoutItsProcessUntilAdopted", func(t *testing.T) {
		i := s.start(t, image, engine.Limits{}, "count")
		i.expect("count 5")
		i.Detach()
		adopted, err := s.Engine.Adopt(t.Context(), i.spec)
		require.NoError(t, err)
		i.Instance = adopted
		i.expect("count 60")
		checkpoint := filepath.Join(t.TempDir(), "checkpoint")
		require.NoError(t, i.Checkpoint(t.Context(), checkpoint))
		require.NoError(t, i.Stop(t.Context()))
		i.expectEnd("stopped")
		s.expectNothingLeft(t, i)
		_, err = s.Engine.Adopt(t.Context(), i.spec)
		require.ErrorIs(t, err, engine.ErrGone)
	})
	t.Run("AdoptedWhileItIsSavedItIsSavedAgainAfter", func(t *testing.T) {
		i := s.start(t, image, engine.Limits{MemoryBytes: 240 << 20}, "hold")
		i.expect("count 5")
		adopted, err := s.Engine.Adopt(t.Context(), i.spec)
		require.NoError(t, err)
		defer adopted.Detach()
		first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
		saved := make(chan error, 1)
		go func() { saved <- i.Checkpoint(t.Context(), first) }()
		require.Eventually(t, func() bool {
			entries, err := os.ReadDir(first)
			return err == nil && len(entries) > 0
		}, patience(10*time.Second), time.Millisecond)
		require.NoError(t, adopted.Checkpoint(t.Context(), second))
		require.NoError(t, <-saved)
		i.expect("count 20")
		require.NoError(t, i.Stop(t.Context()))
	})
	t.Run("KnowsItsVersions", func(t *testing.T) {
		require.True(t, s.Engine.Has(s.Engine.Version()))
		require.False(t, s.Engine.Has("another"))
		spec := s.spec(t, image, engine.Limits{}, "count")
		spec.Version = "another"
		_, err := s.Engine.Start(t.Context(), spec)
		require.ErrorContains(t, err, "another")
		require.Empty(t, s.Leftovers(t, spec.ID))
	})
	t.Run("OneThatIsNearlyFullIsSavedAndRestored", func(t *testing.T) {
		spec := s.spec(t, image, engine.Limits{MemoryBytes: 240 << 20}, "hold")
		var asked atomic.Int64
		pressure := func(context.Context, engine.Pressure) error {
			asked.Add(1)
			return nil
		}
		spec.OnPressure = pressure
		i := s.launch(t, spec, "")
		i.expect("count 5")
		checkpoint := filepath.Join(t.TempDir(), "checkpoint")
		require.NoError(t, i.Checkpoint(t.Context(), checkpoint))
		i.expect("count 40")
		require.NoError(t, i.Stop(t.Context()))
		again := s.spec(t, image, engine.Limits{MemoryBytes: 240 << 20}, "hold")
		again.OnPressure = pressure
		clone := s.launch(t, again, checkpoint)
		clone.expect("count 60")
		require.Zero(t, asked.Load(), "saving and restoring is no pressure")
		require.NoError(t, clone.Stop(t.Context()))
	})
	t.Run("FailedRestoreLeavesNothing", func(t *testing.T) {
		spec := s.spec(t, image, engine.Limits{}, "count")
		_, err := s.Engine.Restore(t.Context(), spec, filepath.Join(t.TempDir(), "nowhere"))
		require.Error(t, err)
		require.Empty(t, s.Leftovers(t, spec.ID))
	})
	t.Run("FullDiskIsAnErrorInside", func(t *testing.T) {
		i := s.start(t, image, engine.Limits{DiskBytes: 64 << 20}, "fill")
		line := i.line()
		require.Contains(t, line, "no space left")
		require.Regexp(t, `filled [56]\d `, line, "about 64 MiB should fit")
		stats, err := i.Stats(t.Context())
		require.NoError(t, err)
		require.Greater(t, stats.DiskBytes, int64(40<<20))
		require.NoError(t, i.Stop(t.Context()))
	})
	t.Run("MemoryLimitAsksForReliefAndTheSandboxLivesOn", func(t *testing.T) {
		spec := s.spec(t, image, engine.Limits{MemoryBytes: 128 << 20}, "parent")
		control := spec.Mounts[0].Source
		var asked atomic.Int64
		spec.OnPressure = func(ctx context.Context, p engine.Pressure) error {
			asked.Add(1)
			return os.WriteFile(filepath.Join(control, "relieve"), nil, 0o644)
		}
		i := s.launch(t, spec, "")
		i.expect("relieved")
		require.Positive(t, asked.Load())
		require.Eventually(t, func() bool {
			stats, err := i.Stats(t.Context())
			return err == nil && stats.MemoryBytes < 100<<20
		}, patience(10*time.Second), 20*time.Millisecond, "memory should be given back")
		require.NoError(t, i.Stop(t.Context()))
		i.expectEnd("stopped")
	})
	t.Run("WrittenFilesAreNoMemoryPressure", func(t *testing.T) {
		spec := s.spec(t, image, engine.Limits{MemoryBytes: 128 << 20, DiskBytes: 320 << 20}, "fill")
		var asked atomic.Int64
		spec.OnPressure = func(context.Context, engine.Pressure) error {
			asked.Add(1)
			return nil
		}
		i := s.launch(t, spec, "")
		require.Contains(t, i.line(), "no space left")
		require.Zero(t, asked.Load(), "page cache should be given up instead")
		require.NoError(t, i.Stop(t.Context()))
		i.expectEnd("stopped")
	})
	t.Run("ProcessorTimeIsBounded", func(t *testing.T) {
		const spent = 300 * time.Millisecond
		i := s.start(t, image, engine.Limits{CPUs: 1}, "burn")
		i.expect("burning")
		before, err := i.Stats(t.Context())
		require.NoError(t, err)
		began := time.Now()
		require.Eventually(t, func() bool {
			stats, err := i.Stats(t.Context())
			return err == nil && stats.CPUTime >= before.CPUTime+spent
		}, patience(10*time.Second), 5*time.Millisecond, "a busy sandbox should use its share")
		require.Greater(t, time.Since(began), spent*8/10, "two busy threads should share one processor")
		require.NoError(t, i.Stop(t.Context()))
	})
	t.Run("WithoutReliefTheSandboxEndsAndSaysWhy", func(t *testing.T) {
		i := s.start(t, image, engine.Limits{MemoryBytes: 128 << 20}, "eat")
		i.expectEnd("out of memory")
		require.NoError(t, i.Stop(t.Context()))
		s.expectNothingLeft(t, i)
	})
	t.Run("SweepRemovesAnAbandonedInstance", func(t *testing.T) {
		i := s.start(t, image, engine.Limits{}, "count")
		i.expect("count 1")
		require.NoError(t, s.Engine.Sweep(t.Context(), i.spec.ID, i.spec.Dir))
		i.expectEnd("")
		s.expectNothingLeft(t, i)
		require.NoError(t, s.Engine.Sweep(t.Context(), i.spec.ID, i.spec.Dir), "sweep of nothing")
	})
	t.Run("CancelledStartLeavesNothing", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience(15*time.Millisecond))
		defer cancel()
		spec := s.spec(t, image, engine.Limits{}, "count")
		_, err := s.Engine.Start(ctx, spec)
		require.Error(t, err)
		require.Empty(t, s.Leftovers(t, spec.ID))
	})
}

// tellsOfProcesses starts programs in an instance that was started, restored,
// restored into what was prepared, and adopted.
func (s Suite) tellsOfProcesses(t *testing.T, image string) {
	told := make(chan engine.Process, 1000)
	tell := func(p engine.Process) { told <- p }
	// expectSpawn has words written until the process of one is told of: one that is
	// adopted is watched a moment later.
	expectSpawn := func(spec engine.Spec, name string) {
		t.Helper()
		end := time.Now().Add(patience(20 * time.Second))
		for n := 0; time.Now().Before(end); n++ {
			word := fmt.Sprint(name, n)
			require.NoError(t, os.WriteFile(filepath.Join(spec.Mounts[0].Source, "spawn"), []byte(word), 0o644))
			for next := time.After(time.Second); next != nil; {
				select {
				case p := <-told:
					if len(p.Args) != 3 || p.Args[2] != word {
						continue
					}
					require.Equal(t, []string{"/probe", "exit", word}, p.Args)
					require.Equal(t, "/probe", p.Binary)
					require.Equal(t, 1, p.Parent)
					require.Greater(t, p.PID, 1)
					require.Equal(t, "probe", p.By)
					return
				case <-next:
					next = nil
				}
			}
		}
		require.FailNow(t, "a process was not told of", name)
	}

	first := s.spec(t, image, engine.Limits{}, "spawn")
	first.OnProcess = tell
	i := s.launch(t, first, "")
	i.expect("ready")
	expectSpawn(first, "started")
	saved := filepath.Join(t.TempDir(), "saved")
	require.NoError(t, i.Checkpoint(t.Context(), saved))
	expectSpawn(first, "saved")

	second := s.spec(t, image, engine.Limits{}, "spawn")
	second.OnProcess = tell
	s.launch(t, second, saved)
	expectSpawn(second, "restored")

	third := s.spec(t, image, engine.Limits{}, "spawn")
	require.NoError(t, s.Engine.Prepare(t.Context(), third))
	third.OnProcess = tell
	prepared := s.launch(t, third, saved)
	expectSpawn(third, "prepared")

	prepared.Detach()
	adopted, err := s.Engine.Adopt(t.Context(), third)
	require.NoError(t, err)
	expectSpawn(third, "adopted")
	require.NoError(t, adopted.Stop(t.Context()))
	s.expectNothingLeft(t, &running{spec: third})
	require.NoError(t, i.Stop(t.Context()))
	s.expectNothingLeft(t, i)
}

var serial atomic.Int64

func (s Suite) spec(t *testing.T, image string, limits engine.Limits, args ...string) engine.Spec {
	t.Helper()
	if limits.MemoryBytes == 0 {
		limits.MemoryBytes = 256 << 20
	}
	if limits.DiskBytes == 0 {
		limits.DiskBytes = 128 << 20
	}
	if limits.CPUs == 0 {
		limits.CPUs = 2
	}
	limits.Processes = 100
	return engine.Spec{
		ID:               fmt.Sprintf("contract%06d%06d", os.Getpid()%1_000_000, serial.Add(1)),
		Dir:              t.TempDir(),
		NetworkNamespace: s.Namespace(t),
		Image:            image,
		Args:             append([]string{"/probe"}, args...),
		Mounts:           []engine.Mount{{Source: t.TempDir(), Target: "/control"}},
		Hostname:         "probe",
		Limits:           limits,
	}
}

func (s Suite) start(t *testing.T, image string, limits engine.Limits, args ...string) *running {
	t.Helper()
	return s.launch(t, s.spec(t, image, limits, args...), "")
}

// running is an instance with the lines its PID 1 prints.
type running struct {
	engine.Instance
	t     *testing.T
	spec  engine.Spec
	lines chan string
}

func (s Suite) launch(t *testing.T, spec engine.Spec, checkpoint string) *running {
	t.Helper()
	r, w := io.Pipe()
	spec.Output = w
	lines := make(chan string, 10_000)
	go func() {
		scanner := bufio.NewScanner(r)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
	}()
	var i engine.Instance
	var err error
	if checkpoint == "" {
		i, err = s.Engine.Start(t.Context(), spec)
	} else {
		i, err = s.Engine.Restore(t.Context(), spec, checkpoint)
	}
	require.NoError(t, err)
	t.Cleanup(func() {
		i.Stop(context.Background())
		w.Close()
	})
	return &running{Instance: i, t: t, spec: spec, lines: lines}
}

func (r *running) line() string {
	r.t.Helper()
	select {
	case line := <-r.lines:
		return line
	case <-time.After(patience(20 * time.Second)):
		require.FailNow(r.t, "PID 1 printed nothing", "for %v", patience(20*time.Second))
		return ""
	}
}

func (r *running) expect(want string) {
	r.t.Helper()
	for r.line() != want {
	}
}

func (r *running) expectEnd(reason string) {
	r.t.Helper()
	select {
	case <-r.Done():
		require.Contains(r.t, r.Exit().Reason, reason)
	case <-time.After(patience(30 * time.Second)):
		require.FailNow(r.t, "the instance did not end", "within %v", patience(30*time.Second))
	}
}

func (s Suite) expectNothingLeft(t *testing.T, i *running) {
	t.Helper()
	require.Empty(t, s.Leftovers(t, i.spec.ID))
	entries, err := os.ReadDir(i.spec.Dir)
	require.NoError(t, err)
	require.Empty(t, entries, "files left in the instance's folder")
}

// patience is how long to wait on a machine that is slower than the usual: d
// times TOMBOLO_TEST_PATIENCE.
func patience(d time.Duration) time.Duration {
	if factor, err := strconv.Atoi(os.Getenv("TOMBOLO_TEST_PATIENCE")); err == nil && factor > 0 {
		return time.Duration(factor) * d
	}
	return d
}

// checkArchive looks for what the probe wrote.
func checkArchive(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(f.Fd()), &st))
	require.Greater(t, st.Size, int64(3<<30))
	require.Less(t, st.Blocks*512, int64(500<<20), "holes are to take no disk")
	found := map[string]*tar.Header{}
	for archive := tar.NewReader(f); ; {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		found[h.Name] = h
		at, err := f.Seek(0, io.SeekCurrent)
		require.NoError(t, err)
		read := func(from, n int64) []byte {
			text := make([]byte, n)
			_, err := f.ReadAt(text, at+from)
			require.NoError(t, err)
			return text
		}
		switch h.Name {
		case "./dir/small", "./dir/hard":
			if h.Typeflag == tar.TypeReg {
				require.Equal(t, "text", string(read(0, h.Size)))
			}
		case "./hole":
			require.EqualValues(t, 3<<30, h.Size)
			require.Equal(t, "\x00middle\x00", string(read(19_999_999, 8)))
		case "./large":
			require.EqualValues(t, 400<<20, h.Size)
			for i := range int64(400) {
				require.Equal(t, []byte{byte(i), 0}, read(i<<20+i, 2), "block %d", i)
			}
		}
	}
	require.Equal(t, byte(tar.TypeDir), found["./"].Typeflag)
	require.EqualValues(t, 0o750, found["./dir/"].Mode)
	require.Equal(t, "dir/small", found["./link"].Linkname)
	require.Equal(t, byte(tar.TypeChar), found["./probe"].Typeflag, "what was removed")
	require.Contains(t, []byte{found["./dir/small"].Typeflag, found["./dir/hard"].Typeflag}, byte(tar.TypeLink))
}

// buildImage makes an EROFS image whose only file is the probe. Where there is
// no Go, TOMBOLO_PROBE_ROOT names a folder that holds it.
func buildImage(t *testing.T) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "probe.erofs")
	if root := os.Getenv("TOMBOLO_PROBE_ROOT"); root != "" {
		require.NoError(t, erofs.WriteFolder(t.Context(), root, image))
		return image
	}
	root := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(root, "probe"), "github.com/tombolo-dev/tombolo/internal/engine/enginetest/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, erofs.WriteFolder(t.Context(), root, image))
	return image
}

// ProcessesNaming lists host processes whose command line holds text.
func ProcessesNaming(text string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		raw, _ := os.ReadFile(file)
		if line := strings.ReplaceAll(string(raw), "\x00", " "); text != "" && strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}
