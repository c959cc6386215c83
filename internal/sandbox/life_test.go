package sandbox_test

import (
	"context"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

const (
	patience = 30 * time.Second
	tick     = 5 * time.Millisecond
)

func TestCreateStartsFromImageAndFromSnapshot(t *testing.T) {
	w := sandboxtest.New(t)
	for _, template := range []string{sandboxtest.Cold, sandboxtest.Warm} {
		t.Run(template, func(t *testing.T) {
			before := time.Now()
			info, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{
				Template: template,
				KeyID:    "key",
				Timeout:  time.Minute,
				Metadata: map[string]string{"for": "test"},
				EnvVars:  map[string]string{"COLOUR": "green"},
			})
			require.NoError(t, err)
			require.Equal(t, sandbox.Running, info.State)
			require.Equal(t, template, info.TemplateName)
			require.Equal(t, "key", info.KeyID)
			require.Equal(t, 1, info.CPUs)
			require.EqualValues(t, 256<<20, info.MemoryBytes)
			require.EqualValues(t, 64<<20, info.DiskBytes)
			require.Equal(t, map[string]string{"for": "test"}, info.Metadata)
			require.Len(t, info.AccessToken, 64)
			require.WithinRange(t, info.StartedAt, before, time.Now())
			require.Equal(t, time.Minute, info.EndAt.Sub(info.StartedAt))

			same, err := w.Manager.Get(info.ID)
			require.NoError(t, err)
			require.Equal(t, info, same)
			byTemplate, err := w.Store.Template(t.Context(), template)
			require.NoError(t, err)
			require.Equal(t, byTemplate.ID, info.TemplateID)

			require.Contains(t, w.Run(t, info, "env"), "COLOUR=green")
			require.Contains(t, w.Run(t, info, "env"), "E2B_SANDBOX_ID="+info.ID)

			record, err := w.Store.Sandbox(t.Context(), info.ID)
			require.NoError(t, err)
			require.Equal(t, "running", record.State)
			require.Zero(t, record.EndedAt)
		})
	}
}

func TestCreateByTemplateID(t *testing.T) {
	w := sandboxtest.New(t)
	template, err := w.Store.Template(t.Context(), sandboxtest.Warm)
	require.NoError(t, err)
	require.Equal(t, sandboxtest.Warm, w.Create(t, template.ID).TemplateName)
}

func TestClonesOfASnapshotShareNoSecrets(t *testing.T) {
	w := sandboxtest.New(t)
	first, second := w.Create(t, sandboxtest.Warm), w.Create(t, sandboxtest.Warm)
	require.NotEqual(t, first.ID, second.ID)
	require.NotEqual(t, first.AccessToken, second.AccessToken)
	w.Run(t, first, "write", "/home/user/file", "of the first")
	require.Equal(t, "of the first", w.Run(t, first, "cat", "/home/user/file"))
	end := w.Start(t, second, "exists", "/home/user/file").Wait()
	require.EqualValues(t, 1, end.GetExitCode(), "the second has the first's file")

	first.AccessToken = second.AccessToken
	_, err := w.TryStart(t, first, "echo")
	require.ErrorContains(t, err, "unauthenticated", "the second's token opens the first")
}

func TestCreateRefusesWhatItCannotMake(t *testing.T) {
	w := sandboxtest.New(t)
	private := sandboxtest.Template("private")
	private.KeyID = "owner"
	built, err := w.Manager.BuildTemplate(t.Context(), private, true, func(string) {})
	require.NoError(t, err)

	for _, template := range []string{"nothing", "", built.ID, "private"} {
		_, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: template, KeyID: "other", Timeout: time.Minute})
		require.ErrorIs(t, err, sandbox.ErrTemplateNotFound, "template %q", template)
	}
	for _, timeout := range []time.Duration{0, -time.Second} {
		_, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: sandboxtest.Cold, Timeout: timeout})
		var invalid *sandbox.InvalidError
		require.ErrorAs(t, err, &invalid, "timeout %s", timeout)
	}
	records, err := w.Store.Sandboxes(t.Context(), true)
	require.NoError(t, err)
	require.Empty(t, records)
	_, err = w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: "private", KeyID: "owner", Timeout: time.Minute})
	require.NoError(t, err, "the owner's own template")
}

func TestDial(t *testing.T) {
	w := sandboxtest.New(t)
	info := w.Create(t, sandboxtest.Warm)
	for _, address := range []string{"0.0.0.0:4000", "127.0.0.1:4001", "10.0.0.2:4003"} {
		w.Start(t, info, "listen", address).Expect("listening")
	}
	for _, port := range []uint16{4000, 4001, 4003, 8000} {
		conn, err := w.Manager.Dial(t.Context(), info.ID, port)
		require.NoError(t, err, "port %d", port)
		require.Equal(t, "HELLO", sandboxtest.Ask(t, conn, "hello"), "port %d", port)
	}
	for _, port := range []uint16{0, 4004, 65535, hostapi.HostPort} {
		_, err := w.Manager.Dial(t.Context(), info.ID, port)
		require.ErrorIs(t, err, sandbox.ErrPortClosed, "port %d", port)
	}
	_, err := w.Manager.Dial(t.Context(), "inobody", 8000)
	require.ErrorIs(t, err, sandbox.ErrNotFound)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.Manager.Dial(cancelled, info.ID, 4001)
	require.ErrorIs(t, err, context.Canceled)
}

// A cycle must leave nothing, neither on the machine nor in this process.
func TestKillLeavesNothing(t *testing.T) {
	w := sandboxtest.New(t)
	cycle := func(template string) {
		info := w.Create(t, template)
		namespace, err := w.NetworkNamespace(info.ID)
		require.NoError(t, err)
		require.Positive(t, sandboxtest.OpenTAPs())
		conn, err := w.Manager.Dial(t.Context(), info.ID, hostapi.AgentPort) // open when it ends
		require.NoError(t, err)
		defer conn.Close()
		require.NotEmpty(t, w.Leftovers())

		require.NoError(t, w.Manager.Kill(t.Context(), info.ID, "the test wants it"))
		require.Empty(t, w.Leftovers())
		require.Zero(t, sandboxtest.OpenTAPs())
		require.Eventually(t, func() bool { return !sandboxtest.HoldsNamespace(namespace) }, patience, tick,
			"a thread is still in the network namespace")
		_, err = w.Manager.Get(info.ID)
		var gone *sandbox.GoneError
		require.ErrorAs(t, err, &gone)
		require.Equal(t, "the test wants it", gone.Reason)
		require.ErrorIs(t, err, sandbox.ErrNotFound)
		require.ErrorIs(t, w.Manager.Kill(t.Context(), info.ID, "again"), sandbox.ErrNotFound)
		require.Empty(t, w.Manager.List(sandbox.Filter{}))
		record, err := w.Store.Sandbox(t.Context(), info.ID)
		require.NoError(t, err)
		require.Equal(t, "ended", record.State)
		require.Equal(t, "the test wants it", record.Reason)
		require.NotZero(t, record.EndedAt)
	}
	cycle(sandboxtest.Cold)
	cycle(sandboxtest.Warm) // what is made once is made now
	files, goroutines := openFiles(t), runtime.NumGoroutine()
	for range 10 {
		cycle(sandboxtest.Warm)
	}
	require.Eventually(t, func() bool { return openFiles(t) <= files }, patience, tick, "file descriptors leak")
	// Eventually would run goroutines of its own.
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > goroutines; time.Sleep(tick) {
		require.True(t, time.Now().Before(deadline), "goroutines leak: %d, at first %d", runtime.NumGoroutine(), goroutines)
	}
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func TestTimeoutEndsASandboxAndSaysSo(t *testing.T) {
	w := sandboxtest.New(t)
	var ends atomic.Int64
	ended := make(chan string, 10)
	w.Manager.OnStop(func(id string) { ends.Add(1); ended <- id })
	info, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: 300 * time.Millisecond})
	require.NoError(t, err)
	require.Equal(t, info.ID, receive(t, ended))
	require.False(t, time.Now().Before(info.EndAt))
	_, err = w.Manager.Get(info.ID)
	require.ErrorContains(t, err, "timeout")
	require.Empty(t, w.Leftovers())
	record, err := w.Store.Sandbox(t.Context(), info.ID)
	require.NoError(t, err)
	require.Equal(t, "ended", record.State)
	require.Contains(t, record.Reason, "timeout")
}

func TestSetTimeout(t *testing.T) {
	w := sandboxtest.New(t)
	ended := make(chan string, 10)
	w.Manager.OnStop(func(id string) { ended <- id })
	info := w.Create(t, sandboxtest.Warm)

	longer, err := w.Manager.SetTimeout(t.Context(), info.ID, time.Hour, false)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(time.Hour), longer.EndAt, time.Minute)
	same, err := w.Manager.SetTimeout(t.Context(), info.ID, time.Second, true)
	require.NoError(t, err)
	require.Equal(t, longer.EndAt, same.EndAt, "extendOnly has made it shorter")
	longest, err := w.Manager.SetTimeout(t.Context(), info.ID, 2*time.Hour, true)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(2*time.Hour), longest.EndAt, time.Minute)
	record, err := w.Store.Sandbox(t.Context(), info.ID)
	require.NoError(t, err)
	require.WithinDuration(t, longest.EndAt, record.EndAt, time.Millisecond)

	shorter, err := w.Manager.SetTimeout(t.Context(), info.ID, 100*time.Millisecond, false)
	require.NoError(t, err)
	require.True(t, shorter.EndAt.Before(info.EndAt))
	require.Equal(t, info.ID, receive(t, ended))
	_, err = w.Manager.SetTimeout(t.Context(), info.ID, time.Hour, false)
	require.ErrorIs(t, err, sandbox.ErrNotFound)
}

func TestKeyLimitHoldsForConcurrentCreates(t *testing.T) {
	w := sandboxtest.New(t)
	request := sandbox.CreateRequest{Template: sandboxtest.Warm, KeyID: "small", Quota: sandbox.Quota{Sandboxes: 2}, Timeout: time.Minute}
	errs := make(chan error, 5)
	var creates sync.WaitGroup
	for range cap(errs) {
		creates.Go(func() {
			_, err := w.Manager.Create(t.Context(), request)
			errs <- err
		})
	}
	creates.Wait()
	close(errs)
	made := 0
	for err := range errs {
		if err == nil {
			made++
			continue
		}
		var limit *sandbox.LimitError
		require.ErrorAs(t, err, &limit)
		require.Equal(t, "2", limit.Limit)
	}
	require.Equal(t, 2, made)
	require.Len(t, w.Manager.List(sandbox.Filter{KeyID: "small"}), 2)

	request.KeyID = "other"
	other, err := w.Manager.Create(t.Context(), request)
	require.NoError(t, err, "another key's place")
	require.Len(t, w.Manager.List(sandbox.Filter{}), 3)
	require.NoError(t, w.Manager.Kill(t.Context(), other.ID, ""))

	request.KeyID = "small"
	one := w.Manager.List(sandbox.Filter{KeyID: "small"})[0]
	require.NoError(t, w.Manager.Kill(t.Context(), one.ID, "to make room"))
	_, err = w.Manager.Create(t.Context(), request)
	require.NoError(t, err, "a kill frees the place")
}

func TestList(t *testing.T) {
	w := sandboxtest.New(t)
	create := func(template, key, colour string) string {
		info, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{
			Template: template, KeyID: key, Timeout: time.Minute, Metadata: map[string]string{"colour": colour, "x": "y"},
		})
		require.NoError(t, err)
		return info.ID
	}
	a, b, c := create(sandboxtest.Warm, "k1", "red"), create(sandboxtest.Warm, "k2", "red"), create(sandboxtest.Cold, "k1", "blue")
	warm, err := w.Store.Template(t.Context(), sandboxtest.Warm)
	require.NoError(t, err)
	for _, test := range []struct {
		name   string
		filter sandbox.Filter
		want   []string
	}{
		{"all, oldest first", sandbox.Filter{}, []string{a, b, c}},
		{"of a key", sandbox.Filter{KeyID: "k1"}, []string{a, c}},
		{"of a template's name", sandbox.Filter{Template: sandboxtest.Cold}, []string{c}},
		{"of a template's id", sandbox.Filter{Template: warm.ID}, []string{a, b}},
		{"with metadata", sandbox.Filter{Metadata: map[string]string{"colour": "red", "x": "y"}}, []string{a, b}},
		{"with metadata nothing has", sandbox.Filter{Metadata: map[string]string{"colour": "red", "size": ""}}, nil},
		{"running", sandbox.Filter{States: []sandbox.State{sandbox.Running}}, []string{a, b, c}},
		{"in a state nothing is in", sandbox.Filter{States: []sandbox.State{sandbox.Ending}}, nil},
		{"by all", sandbox.Filter{KeyID: "k2", Template: sandboxtest.Warm, Metadata: map[string]string{"colour": "red"}}, []string{b}},
	} {
		var ids []string
		for _, info := range w.Manager.List(test.filter) {
			ids = append(ids, info.ID)
		}
		require.Equal(t, test.want, ids, test.name)
	}
}

func TestEngineProcessKilledFromOutside(t *testing.T) {
	w := sandboxtest.New(t)
	ended := make(chan string, 10)
	w.Manager.OnStop(func(id string) { ended <- id })
	info := w.Create(t, sandboxtest.Warm)
	pid, err := w.SentryPID(info.ID)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.Equal(t, info.ID, receive(t, ended))
	_, err = w.Manager.Get(info.ID)
	var gone *sandbox.GoneError
	require.ErrorAs(t, err, &gone)
	require.Contains(t, gone.Reason, "killed")
	require.Empty(t, w.Leftovers())
}

// Whoever ends a sandbox, it ends once, and all who wait for its end see it.
func TestManyEndsAtOnceAreOne(t *testing.T) {
	w := sandboxtest.New(t)
	var ends atomic.Int64
	w.Manager.OnStop(func(string) { ends.Add(1) })
	info := w.Create(t, sandboxtest.Warm)
	pid, err := w.SentryPID(info.ID)
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if err := w.Manager.Kill(t.Context(), info.ID, "killed"); err == nil {
				require.Empty(t, w.Leftovers())
			} else {
				require.ErrorIs(t, err, sandbox.ErrNotFound)
			}
		})
	}
	all.Go(func() { w.Manager.SetTimeout(t.Context(), info.ID, time.Millisecond, false) })
	all.Go(func() { syscall.Kill(pid, syscall.SIGKILL) })
	all.Wait()
	require.Eventually(t, func() bool { return len(w.Leftovers()) == 0 && ends.Load() > 0 }, patience, tick)
	require.EqualValues(t, 1, ends.Load())
}

func TestCloseEndsAll(t *testing.T) {
	w := sandboxtest.New(t)
	var ends atomic.Int64
	w.Manager.OnStop(func(string) { ends.Add(1) })
	first, second := w.Create(t, sandboxtest.Warm), w.Create(t, sandboxtest.Cold)
	require.NoError(t, w.Manager.Close(t.Context()))
	require.Empty(t, w.Leftovers())
	require.EqualValues(t, 2, ends.Load())
	for _, id := range []string{first.ID, second.ID} {
		record, err := w.Store.Sandbox(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "ended", record.State)
		require.Contains(t, record.Reason, "server was stopped")
	}
	_, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: time.Minute})
	require.ErrorContains(t, err, "stopping")
}

// receive waits for a value.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		require.FailNow(t, "nothing came within 30 s")
		panic("unreachable")
	}
}
