package agent_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
)

func list(s *sandbox) ([]*pb.ProcessInfo, error) {
	res, err := s.processes().List(context.Background(), connect.NewRequest(&pb.ListRequest{}))
	if err != nil {
		return nil, err
	}
	return res.Msg.GetProcesses(), nil
}

// shell is a request to run a script.
func shell(script string) *pb.StartRequest {
	off := false
	return &pb.StartRequest{
		Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}},
		Stdin:   &off,
	}
}

// followed is the story of a process.
type followed struct {
	pid                 uint32
	stdout, stderr, pty bytes.Buffer
	keepalives          int
	end                 *pb.ProcessEvent_EndEvent
}

func (f *followed) take(e *pb.ProcessEvent) {
	switch e := e.GetEvent().(type) {
	case *pb.ProcessEvent_Start:
		f.pid = e.Start.GetPid()
	case *pb.ProcessEvent_Data:
		f.stdout.Write(e.Data.GetStdout())
		f.stderr.Write(e.Data.GetStderr())
		f.pty.Write(e.Data.GetPty())
	case *pb.ProcessEvent_Keepalive:
		f.keepalives++
	case *pb.ProcessEvent_End:
		f.end = e.End
	}
}

type stream struct {
	*connect.ServerStreamForClient[pb.StartResponse]
	followed
}

func (s *sandbox) begin(ctx context.Context, req *pb.StartRequest, options ...connect.ClientOption) *stream {
	s.t.Helper()
	st, err := s.processes(options...).Start(ctx, connect.NewRequest(req))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = st.Close() })
	got := &stream{ServerStreamForClient: st}
	require.True(s.t, st.Receive(), "no start event: %v", st.Err())
	got.take(st.Msg().GetEvent())
	require.NotZero(s.t, got.pid, "the first event must be the start")
	return got
}

func (st *stream) until(enough func() bool) error {
	for !enough() {
		if !st.Receive() {
			return st.Err()
		}
		st.take(st.Msg().GetEvent())
	}
	return nil
}

func (st *stream) finish() error { return st.until(func() bool { return false }) }

func (s *sandbox) run(req *pb.StartRequest, options ...connect.ClientOption) *stream {
	s.t.Helper()
	st := s.begin(context.Background(), req, options...)
	require.NoError(s.t, st.finish())
	require.NotNil(s.t, st.end, "no end event")
	return st
}

func byPID(pid uint32) *pb.ProcessSelector {
	return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: pid}}
}

func (s *sandbox) signal(pid uint32, signal pb.Signal) error {
	_, err := s.processes().SendSignal(context.Background(), connect.NewRequest(&pb.SendSignalRequest{Process: byPID(pid), Signal: signal}))
	return err
}

func TestProcessGivesOutputAndExitCode(t *testing.T) {
	s := start(t)
	for name, options := range map[string][]connect.ClientOption{"protobuf": nil, "json": {connect.WithProtoJSON()}} {
		st := s.run(shell("echo out; echo err >&2; exit 3"), options...)
		require.Equal(t, "out\n", st.stdout.String(), name)
		require.Equal(t, "err\n", st.stderr.String(), name)
		require.EqualValues(t, 3, st.end.GetExitCode(), name)
		require.True(t, st.end.GetExited(), name)
		require.Equal(t, "exit status 3", st.end.GetStatus(), name)
	}
}

func TestProcessHasItsEnvironment(t *testing.T) {
	s := start(t)
	s.init(hostapi.Init{SandboxID: "ione", DefaultUser: "root", EnvVars: map[string]string{"A": "init", "B": "init"}})
	req := shell("echo $A $B $USER $LOGNAME $HOME $E2B_SANDBOX_ID; pwd")
	req.Process.Envs = map[string]string{"B": "request"}
	req.Process.Cwd = &s.dir
	st := s.run(req)
	require.Equal(t, "init request root root /root ione\n"+s.dir+"\n", st.stdout.String())
}

func TestProcessRunsAsTheNamedUser(t *testing.T) {
	s := start(t)
	s.username = "nobody"
	require.Equal(t, "nobody\n", s.run(shell("id -un")).stdout.String())
	s.username = "stranger"
	st, err := s.processes().Start(context.Background(), connect.NewRequest(shell("true")))
	require.NoError(t, err)
	require.False(t, st.Receive())
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(st.Err()))
	require.ErrorContains(t, st.Err(), "invalid username: 'stranger'")
}

func TestANumberWithoutAnAccountIsAUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root becomes somebody else")
	}
	s := start(t)
	s.username = "424242"
	got := s.run(shell("id -u; id -g; echo $HOME"))
	require.Equal(t, "424242\n0\n/\n", got.stdout.String())
}

func TestMissingDirectoryIsInvalidArgument(t *testing.T) {
	s := start(t)
	missing := filepath.Join(s.dir, "missing")
	req := shell("true")
	req.Process.Cwd = &missing
	st, err := s.processes().Start(context.Background(), connect.NewRequest(req))
	require.NoError(t, err)
	require.False(t, st.Receive())
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(st.Err()))
}

func TestMissingProgramIsInvalidArgument(t *testing.T) {
	s := start(t)
	for _, cmd := range []string{"/no/such/program", "no-such-program"} {
		st, err := s.processes().Start(context.Background(), connect.NewRequest(&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: cmd}}))
		require.NoError(t, err)
		require.False(t, st.Receive())
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(st.Err()), cmd)
	}
}

func TestTimeoutKillsTheWholeGroup(t *testing.T) {
	s := start(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	st := s.begin(ctx, shell("sleep 100 & echo $!; wait"))
	var child string
	err := st.until(func() bool { child = strings.TrimSpace(st.stdout.String()); return child != "" })
	require.NoError(t, err)
	require.Equal(t, connect.CodeDeadlineExceeded, connect.CodeOf(st.finish()))
	require.Eventually(t, func() bool { return gone(s, st.pid) }, 20*time.Second, 5*time.Millisecond)
	require.Eventually(t, func() bool {
		return s.run(shell("grep -q '^State:.[^Z]' /proc/"+child+"/status")).end.GetExitCode() != 0
	}, 20*time.Second, 20*time.Millisecond, "the child lives on")
}

func gone(s *sandbox, pid uint32) bool {
	all, err := list(s)
	if err != nil {
		return false
	}
	for _, p := range all {
		if p.GetPid() == pid {
			return false
		}
	}
	return true
}

func TestDisconnectLeavesTheProcess(t *testing.T) {
	s := start(t)
	ctx, cancel := context.WithCancel(context.Background())
	st := s.begin(ctx, shell("read x < "+fifo(t, s)+"; echo $x; exit 4"))
	cancel()
	_ = st.finish()
	require.False(t, gone(s, st.pid))

	again, err := s.processes().Connect(context.Background(), connect.NewRequest(&pb.ConnectRequest{Process: byPID(st.pid)}))
	require.NoError(t, err)
	require.True(t, again.Receive())
	require.Equal(t, st.pid, again.Msg().GetEvent().GetStart().GetPid())
	s.run(shell("echo go > " + filepath.Join(s.dir, "fifo")))
	var got followed
	for again.Receive() {
		got.take(again.Msg().GetEvent())
	}
	require.NoError(t, again.Err())
	require.Equal(t, "go\n", got.stdout.String())
	require.EqualValues(t, 4, got.end.GetExitCode())
}

func fifo(t *testing.T, s *sandbox) string {
	path := filepath.Join(s.dir, "fifo")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	return path
}

func TestEndedProcessStillTellsItsEnd(t *testing.T) {
	s := start(t)
	tag := "job"
	req := shell("exit 5")
	req.Tag = &tag
	s.run(req)
	late, err := s.processes().Connect(context.Background(), connect.NewRequest(&pb.ConnectRequest{
		Process: &pb.ProcessSelector{Selector: &pb.ProcessSelector_Tag{Tag: tag}},
	}))
	require.NoError(t, err)
	var got followed
	for late.Receive() {
		got.take(late.Msg().GetEvent())
	}
	require.NoError(t, late.Err())
	require.EqualValues(t, 5, got.end.GetExitCode())
}

func TestKillDoesNotWaitForThoseWhoHoldTheOutput(t *testing.T) {
	s := start(t)
	// The grandchild leaves the group, so it lives on with the pipes.
	st := s.begin(context.Background(), shell("setsid sleep 30 & echo ready; sleep 100"))
	require.NoError(t, st.until(func() bool { return st.stdout.Len() > 0 }))
	began := time.Now()
	require.NoError(t, s.signal(st.pid, pb.Signal_SIGNAL_SIGKILL))
	require.NoError(t, st.finish())
	require.Less(t, time.Since(began), 20*time.Second)
	require.EqualValues(t, -1, st.end.GetExitCode())
	require.False(t, st.end.GetExited())
	require.Equal(t, "signal: killed", st.end.GetStatus())
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(s.signal(st.pid, pb.Signal_SIGNAL_SIGKILL)))
}

func TestKilledProcessIsGoneAtOnce(t *testing.T) {
	s := start(t)
	st := s.begin(context.Background(), shell("sleep 100"))
	require.NoError(t, s.signal(st.pid, pb.Signal_SIGNAL_SIGKILL))
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(s.signal(st.pid, pb.Signal_SIGNAL_SIGKILL)))
	require.NoError(t, st.finish())
}

func TestKillEndsTheChildrenOfAnEndedShell(t *testing.T) {
	s := start(t)
	st := s.begin(context.Background(), shell("sleep 100 & echo ready"))
	require.NoError(t, st.until(func() bool { return st.stdout.Len() > 0 }))
	require.NoError(t, s.signal(st.pid, pb.Signal_SIGNAL_SIGKILL))
	require.NoError(t, st.finish())
}

func TestTerminateMayBeHandled(t *testing.T) {
	s := start(t)
	st := s.begin(context.Background(), shell("trap 'echo bye; exit 6' TERM; echo ready; while :; do sleep 0.01; done"))
	require.NoError(t, st.until(func() bool { return st.stdout.Len() > 0 }))
	require.NoError(t, s.signal(st.pid, pb.Signal_SIGNAL_SIGTERM))
	require.NoError(t, st.finish())
	require.Equal(t, "ready\nbye\n", st.stdout.String())
	require.EqualValues(t, 6, st.end.GetExitCode())
}

func TestInputReachesTheProcess(t *testing.T) {
	s := start(t)
	req := shell("cat")
	on := true
	req.Stdin = &on
	st := s.begin(context.Background(), req)
	client := s.processes()
	input := func(text string) *pb.ProcessInput {
		return &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: []byte(text)}}
	}
	_, err := client.SendInput(context.Background(), connect.NewRequest(&pb.SendInputRequest{Process: byPID(st.pid), Input: input("one ")}))
	require.NoError(t, err)
	many := client.StreamInput(context.Background())
	require.NoError(t, many.Send(&pb.StreamInputRequest{Event: &pb.StreamInputRequest_Start{Start: &pb.StreamInputRequest_StartEvent{Process: byPID(st.pid)}}}))
	for _, text := range []string{"two ", "three"} {
		require.NoError(t, many.Send(&pb.StreamInputRequest{Event: &pb.StreamInputRequest_Data{Data: &pb.StreamInputRequest_DataEvent{Input: input(text)}}}))
	}
	_, err = many.CloseAndReceive()
	require.NoError(t, err)
	_, err = client.CloseStdin(context.Background(), connect.NewRequest(&pb.CloseStdinRequest{Process: byPID(st.pid)}))
	require.NoError(t, err)
	require.NoError(t, st.finish())
	require.Equal(t, "one two three", st.stdout.String())
}

func TestInputToAProcessThatDoesNotReadEndsWithTheCall(t *testing.T) {
	s := start(t)
	req := shell("sleep 100")
	on := true
	req.Stdin = &on
	st := s.begin(context.Background(), req)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := s.processes().SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{
		Process: byPID(st.pid), Input: &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: make([]byte, 1<<20)}},
	}))
	require.Equal(t, connect.CodeDeadlineExceeded, connect.CodeOf(err))
	require.NoError(t, s.signal(st.pid, pb.Signal_SIGNAL_SIGKILL))
	require.NoError(t, st.finish())
}

func TestClosedInputIsEmpty(t *testing.T) {
	s := start(t)
	require.Empty(t, s.run(shell("cat")).stdout.String())
}

func TestTerminalHasSizeAndTakesInput(t *testing.T) {
	s := start(t)
	req := &pb.StartRequest{
		Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", "stty size; echo $TERM; read x; stty size; echo got $x"}},
		Pty:     &pb.PTY{Size: &pb.PTY_Size{Cols: 70, Rows: 20}},
	}
	st := s.begin(context.Background(), req)
	require.NoError(t, st.until(func() bool { return strings.Contains(st.pty.String(), "xterm-256color") }))
	require.Contains(t, st.pty.String(), "20 70")
	client := s.processes()
	_, err := client.Update(context.Background(), connect.NewRequest(&pb.UpdateRequest{
		Process: byPID(st.pid), Pty: &pb.PTY{Size: &pb.PTY_Size{Cols: 99, Rows: 33}},
	}))
	require.NoError(t, err)
	_, err = client.SendInput(context.Background(), connect.NewRequest(&pb.SendInputRequest{
		Process: byPID(st.pid), Input: &pb.ProcessInput{Input: &pb.ProcessInput_Pty{Pty: []byte("word\n")}},
	}))
	require.NoError(t, err)
	require.NoError(t, st.finish())
	require.Contains(t, st.pty.String(), "33 99")
	require.Contains(t, st.pty.String(), "got word")
	require.EqualValues(t, 0, st.end.GetExitCode())
}

func TestSilenceIsFilledWithKeepalives(t *testing.T) {
	s := start(t)
	req := connect.NewRequest(shell("read x < " + fifo(t, s)))
	req.Header().Set("Keepalive-Ping-Interval", "1")
	st, err := s.processes().Start(context.Background(), req)
	require.NoError(t, err)
	got := &stream{ServerStreamForClient: st}
	require.NoError(t, got.until(func() bool { return got.keepalives > 0 }))
	require.NoError(t, s.signal(got.pid, pb.Signal_SIGNAL_SIGKILL))
	require.NoError(t, got.finish())
}

func TestLargeOutputArrivesWhole(t *testing.T) {
	s := start(t)
	st := s.run(shell("head -c 20000000 /dev/zero"))
	require.Equal(t, 20_000_000, st.stdout.Len())
}

func TestUnknownProcessIsNotFound(t *testing.T) {
	s := start(t)
	_, err := s.processes().CloseStdin(context.Background(), connect.NewRequest(&pb.CloseStdinRequest{Process: byPID(1 << 30)}))
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
	_, err = s.processes().CloseStdin(context.Background(), connect.NewRequest(&pb.CloseStdinRequest{}))
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(s.signal(1<<30, pb.Signal_SIGNAL_SIGTERM)))
}

func TestOldClientsGetUnauthorizedOverPlainHTTP(t *testing.T) {
	s := start(t)
	s.init(hostapi.Init{AccessToken: "secret"})
	res, body := s.do("POST", "/process.Process/List", http.Header{"Content-Type": {"application/json"}}, strings.NewReader("{}"))
	require.Equal(t, http.StatusUnauthorized, res.StatusCode)
	require.Contains(t, body, `"code":"unauthenticated"`)
}
