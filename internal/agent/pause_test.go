package agent_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	fspb "github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem"
	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
)

func firstInit() hostapi.Init {
	return hostapi.Init{
		SandboxID: "original", TemplateID: "template", AccessToken: "first", DefaultUser: "root", Hostname: "sandbox",
		EnvVars: map[string]string{"FRUIT": "fig"}, Entropy: entropy(), ProcessLimit: 200,
	}
}

// pause saves the machine and resumes the same sandbox.
func (m *machine) pause() *machine {
	m.t.Helper()
	init := m.init
	init.Resumed, init.Entropy = true, nil
	resumed := m.restore(m.save(), init)
	resumed.introduce()
	return resumed
}

// begin starts a process and follows it until it has printed text.
func (m *machine) begin(req *pb.StartRequest, text string, header ...string) *stream {
	m.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	m.t.Cleanup(cancel)
	late := time.AfterFunc(2*patience, cancel) // a deadline would be the process's
	m.t.Cleanup(func() { late.Stop() })
	request := connect.NewRequest(req)
	for i := 0; i < len(header); i += 2 {
		request.Header().Set(header[i], header[i+1])
	}
	st, err := m.processes().Start(ctx, request)
	require.NoError(m.t, err)
	got := &stream{ServerStreamForClient: st}
	require.NoError(m.t, got.until(func() bool {
		return strings.Contains(got.stdout.String(), text) || strings.Contains(got.pty.String(), text)
	}))
	require.Contains(m.t, got.stdout.String()+got.pty.String(), text)
	return got
}

// follow connects to a process.
func (m *machine) follow(pid uint32) *connected {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	m.t.Cleanup(cancel)
	st, err := m.processes().Connect(ctx, connect.NewRequest(&pb.ConnectRequest{Process: byPID(pid)}))
	require.NoError(m.t, err)
	got := &connected{ServerStreamForClient: st}
	require.NoError(m.t, got.until(func() bool { return got.pid == pid }))
	return got
}

type connected struct {
	*connect.ServerStreamForClient[pb.ConnectResponse]
	followed
}

func (c *connected) until(enough func() bool) error {
	for !enough() {
		if !c.Receive() {
			return c.Err()
		}
		c.take(c.Msg().GetEvent())
	}
	return nil
}

// alive tells whether a process runs.
func (m *machine) alive(pid uint32) bool {
	m.t.Helper()
	return m.sh(fmt.Sprintf("kill -0 %d 2>/dev/null && echo yes || echo no", pid)) == "yes"
}

// descriptors counts the agent's open ones.
func (m *machine) descriptors() int {
	m.t.Helper()
	count, err := strconv.Atoi(m.sh("ls /proc/1/fd | wc -l"))
	require.NoError(m.t, err)
	return count
}

func terminal(script string) *pb.StartRequest {
	req := shell(script)
	req.Pty = &pb.PTY{Size: &pb.PTY_Size{Cols: 80, Rows: 24}}
	return req
}

func TestPausedSandboxGoesOn(t *testing.T) {
	m := newMachine(t, firstInit())
	require.Equal(t, "fig", m.python(`
import os, random
fruit = os.environ['FRUIT']
os.environ['FRUIT'], os.environ['MINE'] = 'pear', '1'
random.seed(7); state = random.getstate(); expected = random.random(); random.setstate(state)
print(fruit)`))
	m.sh("mkdir /tmp/watched; hostname mine; echo 10.1.2.3 friend >> /etc/hosts")
	watcher, err := m.filesystem().CreateWatcher(t.Context(), connect.NewRequest(&fspb.CreateWatcherRequest{Path: "/tmp/watched"}))
	require.NoError(t, err)
	idle := m.descriptors()
	worker := m.begin(shell("echo begun; until [ -e /tmp/go ]; do sleep 0.05; done; echo 'went on'; exec sleep 1000"), "begun")
	tty := m.begin(terminal("stty -echo; echo begun; exec cat"), "begun")
	reader := m.begin(&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", "echo begun; exec cat"}}}, "begun")
	watching, err := m.filesystem().WatchDir(t.Context(), connect.NewRequest(&fspb.WatchDirRequest{Path: "/tmp"}))
	require.NoError(t, err)
	require.True(t, watching.Receive())

	checkpoint := m.save()
	for _, st := range []interface{ Receive() bool }{worker, tty, reader, watching} {
		require.False(t, st.Receive(), "streams of a paused sandbox should have ended")
	}
	require.Error(t, worker.Err())
	init := m.init
	init.Resumed, init.Entropy = true, nil
	m = m.restore(checkpoint, init)
	m.introduce()

	m.init.AccessToken = "another"
	_, err = m.processes().List(t.Context(), connect.NewRequest(&pb.ListRequest{}))
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err))
	m.init.AccessToken = "first"

	again := m.follow(worker.pid)
	m.sh("touch /tmp/go /tmp/watched/new")
	require.NoError(t, again.until(func() bool { return strings.Contains(again.stdout.String(), "went on") }))

	for pid, input := range map[uint32]*pb.ProcessInput{
		tty.pid:    {Input: &pb.ProcessInput_Pty{Pty: []byte("typed\n")}},
		reader.pid: {Input: &pb.ProcessInput_Stdin{Stdin: []byte("typed\n")}},
	} {
		again := m.follow(pid)
		_, err = m.processes().SendInput(t.Context(), connect.NewRequest(&pb.SendInputRequest{Process: byPID(pid), Input: input}))
		require.NoError(t, err)
		require.NoError(t, again.until(func() bool { return strings.Contains(again.stdout.String()+again.pty.String(), "typed") }))
	}
	_, err = m.processes().Update(t.Context(), connect.NewRequest(&pb.UpdateRequest{
		Process: byPID(tty.pid), Pty: &pb.PTY{Size: &pb.PTY_Size{Cols: 132, Rows: 50}},
	}))
	require.NoError(t, err)

	require.Eventually(t, func() bool {
		res, err := m.filesystem().GetWatcherEvents(t.Context(), connect.NewRequest(&fspb.GetWatcherEventsRequest{WatcherId: watcher.Msg.GetWatcherId()}))
		require.NoError(t, err)
		for _, event := range res.Msg.GetEvents() {
			if event.GetName() == "new" {
				return true
			}
		}
		return false
	}, patience, 20*time.Millisecond, "the watch should go on")

	require.Equal(t, "fig pear 1 True", m.python("print(fruit, os.environ['FRUIT'], os.environ['MINE'], random.random() == expected)"))
	require.Equal(t, "mine", m.sh("hostname"))
	require.Contains(t, m.sh("cat /etc/hosts"), "friend")
	require.Equal(t, "original fig", m.sh("cat /run/e2b/.E2B_SANDBOX_ID; echo \" $FRUIT\""))

	for _, pid := range []uint32{worker.pid, tty.pid, reader.pid} {
		_, err := m.processes().SendSignal(t.Context(), connect.NewRequest(&pb.SendSignalRequest{Process: byPID(pid), Signal: pb.Signal_SIGNAL_SIGKILL}))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return m.descriptors() <= idle }, patience, 100*time.Millisecond,
		"what the streams of before held should be given back")
}

func TestClonesAreSandboxesOfTheirOwn(t *testing.T) {
	m := newMachine(t, firstInit())
	m.python("import os, random, uuid, tempfile; x = 41; random.random(); uuid.uuid1(); os.environ['MINE'] = '1'")
	m.sh("echo 'added by a program' >> /etc/ssl.test; mkdir /tmp/watched")
	worker := m.begin(shell("echo begun; until [ -e /tmp/go ]; do sleep 0.05; done; echo 'went on'; exec sleep 1000"), "begun")
	watcher, err := m.filesystem().CreateWatcher(t.Context(), connect.NewRequest(&fspb.CreateWatcherRequest{Path: "/tmp/watched"}))
	require.NoError(t, err)
	checkpoint := m.save()

	seen := map[string]bool{}
	for _, id := range []string{"clone1", "clone2"} {
		init := firstInit()
		init.SandboxID, init.AccessToken = id, "token of "+id
		init.EnvVars = map[string]string{"FRUIT": "kiwi"}
		clone := m.restore(checkpoint, init)
		clone.introduce()

		stranger := *clone
		stranger.http = &http.Client{Transport: &stranger}
		stranger.init.AccessToken = "first"
		_, err := stranger.processes().List(t.Context(), connect.NewRequest(&pb.ListRequest{}))
		require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err), "the parent's token")
		res, err := stranger.execute("1")
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, http.StatusUnauthorized, res.StatusCode, "the parent's token")

		require.Equal(t, "41 kiwi 1 "+id, clone.python("print(x, os.environ['FRUIT'], os.environ['MINE'], os.environ['E2B_SANDBOX_ID'])"))
		require.Equal(t, id+" kiwi "+id, clone.sh(`echo "$E2B_SANDBOX_ID $FRUIT $(cat /run/e2b/.E2B_SANDBOX_ID)"`))
		random := clone.python("print(random.random(), uuid.uuid1(), tempfile.mktemp())")
		require.False(t, seen[random], "clones share randomness: %s", random)
		for part := range strings.FieldsSeq(random) {
			require.False(t, seen[part], "clones share randomness: %s", part)
			seen[part] = true
		}

		_, err = clone.filesystem().GetWatcherEvents(t.Context(), connect.NewRequest(&fspb.GetWatcherEventsRequest{WatcherId: watcher.Msg.GetWatcherId()}))
		require.Equal(t, connect.CodeNotFound, connect.CodeOf(err), "the watch was the parent's callers'")
		again := clone.follow(worker.pid)
		clone.sh("touch /tmp/go")
		require.NoError(t, again.until(func() bool { return strings.Contains(again.stdout.String(), "went on") }))
	}
}

// TestRunsInKernelsOutliveAPause pauses in the middle of a cell, or has another
// server take over. The dead connection of its client may be noticed before or
// after the agent is told.
func TestRunsInKernelsOutliveAPause(t *testing.T) {
	resume := func(wait time.Duration) func(m *machine) *machine {
		return func(m *machine) *machine {
			init := m.init
			init.Resumed, init.Entropy = true, nil
			resumed := m.restore(m.save(), init)
			time.Sleep(wait)
			resumed.introduce()
			return resumed
		}
	}
	for what, interrupt := range map[string]func(m *machine) *machine{
		"introduced at once": resume(0),
		"introduced late":    resume(500 * time.Millisecond),
		"adopted":            func(m *machine) *machine { m.adopt(); return m },
	} {
		t.Run(what, func(t *testing.T) {
			m := newMachine(t, firstInit())
			res, err := m.execute(`
import time, os
print('begun')
until = time.monotonic() + 100
while not os.path.exists('/tmp/go') and time.monotonic() < until: time.sleep(0.02)
result = 'complete'`)
			require.NoError(t, err)
			defer res.Body.Close()
			lines := bufio.NewScanner(res.Body)
			for lines.Scan() && !strings.Contains(lines.Text(), "begun") {
			}
			m = interrupt(m)
			for lines.Scan() {
				require.NotContains(t, lines.Text(), "end_of_execution")
			}
			require.Error(t, lines.Err(), "the client should see that its stream is broken")
			next, err := m.execute("print(result)") // waits for its turn
			require.NoError(t, err)
			defer next.Body.Close()
			m.sh("sleep 1; touch /tmp/go")
			text, err := io.ReadAll(next.Body)
			require.NoError(t, err)
			require.Contains(t, string(text), "complete")
		})
	}
}

// TestClientThatLeavesInterruptsItsRunAfterAPause: a client that leaves still interrupts
// its run, after a pause as before one.
func TestClientThatLeavesInterruptsItsRunAfterAPause(t *testing.T) {
	m := newMachine(t, firstInit())
	m.python("x = 1")
	m = m.pause()
	ctx, leave := context.WithCancel(t.Context())
	body, err := json.Marshal(map[string]string{"code": "import time\nprint('begun')\ntime.sleep(1000)"})
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url(hostapi.CodePort)+"/execute", strings.NewReader(string(body)))
	require.NoError(t, err)
	res, err := m.http.Do(req)
	require.NoError(t, err)
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), "begun") {
	}
	leave()
	res.Body.Close()
	require.Equal(t, "1", m.python("print(x)"))
}

// TestClocksAfterAPause checks them and everything that waits.
func TestClocksAfterAPause(t *testing.T) {
	m := newMachine(t, firstInit())
	m.python(`
import asyncio, time
async def tick():
    global ticks
    ticks = 0
    while True:
        await asyncio.sleep(0.05); ticks += 1
task = asyncio.create_task(tick())
await asyncio.sleep(0.2)
began = time.monotonic()`)
	began := time.Now()
	// The time of a command is its own: what it sleeps through does not count.
	limited := m.begin(shell("echo begun; exec sleep 1000"), "begun", "Connect-Timeout-Ms", "8000")
	sleeper := m.begin(shell("echo begun; exec sleep 3"), "begun")
	checkpoint := m.save()
	time.Sleep(8 * time.Second) // longer than any of them has to go
	init := m.init
	init.Resumed, init.Entropy = true, nil
	m = m.restore(checkpoint, init)
	m.introduce()
	again := m.follow(sleeper.pid)
	require.True(t, m.alive(limited.pid), "its time should not have gone by in the pause")

	inside, err := strconv.ParseFloat(m.python("print(time.time())"), 64)
	require.NoError(t, err)
	require.InDelta(t, float64(time.Now().UnixMilli())/1000, inside, 3, "the clock should be right at once")
	passed, err := strconv.ParseFloat(m.python("print(time.monotonic() - began)"), 64)
	require.NoError(t, err)
	require.InDelta(t, time.Since(began).Seconds(), passed, 3, "to programs a pause is a time when nothing was scheduled")
	require.Equal(t, "True", m.python("n = ticks; await asyncio.sleep(0.5); print(ticks > n)"))

	require.NoError(t, again.until(func() bool { return again.end != nil }))
	require.Zero(t, again.end.GetExitCode())
	require.Eventually(t, func() bool { return !m.alive(limited.pid) }, patience, 50*time.Millisecond, "a timeout should still end its command")
}

func TestServersListenAgainAfterAPause(t *testing.T) {
	m := newMachine(t, firstInit())
	server := m.begin(shell("cd /tmp; echo hello > file; python3 -u -m http.server 8000 & python3 -u -m http.server --bind 127.0.0.1 8001 & wait"), "8000")
	require.NoError(t, server.until(func() bool { return strings.Contains(server.stdout.String(), "8001") }))
	get := func(m *machine) string {
		res, err := m.http.Get(m.url(8000) + "/file")
		require.NoError(t, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return strings.TrimSpace(string(text))
	}
	tunnelled := func(m *machine) string {
		conn, err := m.network.DialContext(t.Context(), hostapi.HostPort)
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err = io.WriteString(conn, "CONNECT 127.0.0.1:8001 HTTP/1.1\r\nHost: 127.0.0.1:8001\r\n\r\nGET /file HTTP/1.0\r\n\r\n")
		require.NoError(t, err)
		text, err := io.ReadAll(conn)
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, "hello", get(m))
	require.Contains(t, tunnelled(m), "hello")
	for range 3 {
		// One of before, idle: it must not keep the server from answering others.
		idle, err := m.network.DialContext(t.Context(), 8000)
		require.NoError(t, err)
		defer idle.Close()
		m = m.pause()
		require.Equal(t, "hello", get(m))
		require.Contains(t, tunnelled(m), "hello")
	}
}

// TestProgramsHearThatTheirPeersAreGone has servers that wait for what their
// clients say, who came directly and by the agent's tunnel.
func TestProgramsHearThatTheirPeersAreGone(t *testing.T) {
	m := newMachine(t, firstInit())
	server := m.begin(shell(`exec python3 -u -c "
import socket, sys, threading
def serve(host, port):
    l = socket.create_server((host, port))
    sys.stdout.write(f'listening {port}\n')
    c, _ = l.accept()
    sys.stdout.write(f'accepted {port}\n')
    try: end = c.recv(1)
    except OSError as e: end = e
    with open('/tmp/log', 'a') as log: log.write(f'ended {port} {end}\n')
for host, port in ('0.0.0.0', 8000), ('127.0.0.1', 8001): threading.Thread(target=serve, args=(host, port)).start()
"`), "8000")
	printed := func(text string) func() bool {
		return func() bool { return strings.Contains(server.stdout.String(), text) }
	}
	require.NoError(t, server.until(printed("listening 8001")))
	direct, err := m.network.DialContext(t.Context(), 8000)
	require.NoError(t, err)
	defer direct.Close()
	tunnel, err := m.network.DialContext(t.Context(), hostapi.HostPort)
	require.NoError(t, err)
	defer tunnel.Close()
	_, err = io.WriteString(tunnel, "CONNECT 127.0.0.1:8001 HTTP/1.1\r\nHost: 127.0.0.1:8001\r\n\r\n")
	require.NoError(t, err)
	require.NoError(t, server.until(printed("accepted 8000")))
	require.NoError(t, server.until(printed("accepted 8001")))

	m = m.pause()
	again := m.follow(server.pid)
	require.NoError(t, again.until(func() bool { return again.end != nil }))
	log := m.sh("sort /tmp/log")
	require.Equal(t, "ended 8000 b''\nended 8001 b''", log)
}
