package gvisor

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	"gvisor.dev/gvisor/pkg/sentry/seccheck/points/points_go_proto"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/tombolo-dev/tombolo/internal/engine"
)

// The sentry tells of processes by gVisor's trace points: it writes a message for each
// execve to a socket that this process listened on when the sentry was started. It
// never waits: what finds the socket full is dropped and counted. Each instance has a
// socket of its own, in its folder, so whose processes they are is not for the sentry
// to say.
const (
	traceSocket = "trace.sock"
	traceConfig = "trace.json"
	// maxTraceMessage is more than a socket passes on at once.
	maxTraceMessage = 1 << 20
	// handshakeTime is how long whoever connects may take to say hello.
	handshakeTime = 5 * time.Second
)

// traceSession asks for execve alone. The endpoint is seen from the instance's folder,
// where runsc runs: a path below a data folder may be too long for a socket.
func traceSession() boot.InitConfig {
	return boot.InitConfig{TraceSession: seccheck.SessionConfig{
		Name: seccheck.DefaultSessionName,
		Points: []seccheck.PointConfig{{
			Name:          "sentry/execve",
			ContextFields: []string{"group_id", "parent_thread_group_id", "process_name"},
		}},
		Sinks: []seccheck.SinkConfig{{Name: "remote", Config: map[string]any{"endpoint": traceSocket}}},
	}}
}

// tap hears of one instance's processes.
type tap struct {
	dir    string
	listen *net.UnixListener

	mu     sync.Mutex
	to     func(engine.Process)
	conn   net.Conn
	closed bool
}

// openTap listens for a sentry that is about to be started, or to be told.
func (e *Engine) openTap(spec engine.Spec) (*tap, error) {
	raw, err := json.Marshal(traceSession())
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(spec.Dir, traceConfig), raw, 0o600); err != nil {
		return nil, err
	}
	socket := filepath.Join(spec.Dir, traceSocket)
	if err := os.RemoveAll(socket); err != nil { // of a process that is gone
		return nil, err
	}
	dir, err := os.Open(spec.Dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), traceSocket)})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	t := &tap{dir: spec.Dir, listen: listener, to: spec.OnProcess}
	if old, had := e.taps.Swap(spec.ID, t); had {
		old.(*tap).close()
	}
	go t.run()
	return t, nil
}

// tapOf is the tap of an instance; nil when its processes are not watched.
func (e *Engine) tapOf(id string) *tap {
	t, _ := e.taps.Load(id)
	found, _ := t.(*tap)
	return found
}

func (e *Engine) closeTap(id string) {
	if t, had := e.taps.LoadAndDelete(id); had {
		t.(*tap).close()
	}
}

// tell says whom to tell from now on: a shell learns it late.
func (t *tap) tell(to func(engine.Process)) {
	if t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.to = to
	}
}

func (t *tap) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.listen.Close()
	if t.conn != nil {
		t.conn.Close()
	}
}

// run takes the one connection, which the runsc that starts the sentry makes.
func (t *tap) run() {
	conn, err := t.listen.Accept()
	t.listen.Close()
	os.Remove(filepath.Join(t.dir, traceSocket))
	if err != nil {
		return
	}
	defer conn.Close()
	t.mu.Lock()
	t.conn = conn
	closed := t.closed
	t.mu.Unlock()
	if closed {
		return
	}
	buffer := make([]byte, maxTraceMessage)
	conn.SetDeadline(time.Now().Add(handshakeTime))
	if _, err := conn.Read(buffer); err != nil {
		return
	}
	hello, err := proto.Marshal(&points_go_proto.Handshake{Version: 1})
	if err != nil {
		return
	}
	if _, err := conn.Write(hello); err != nil {
		return
	}
	conn.SetDeadline(time.Time{})
	t.read(conn, buffer)
}

// read reads messages until the sentry is gone. The header of each is its own
// length, a type, and how many were dropped so far (16, 16 and 32 bits).
func (t *tap) read(conn net.Conn, buffer []byte) {
	const headerSize = 8
	var dropped uint32
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		if n < headerSize {
			continue
		}
		size := int(binary.LittleEndian.Uint16(buffer))
		if size < headerSize || size > n {
			continue
		}
		var p engine.Process
		now := binary.LittleEndian.Uint32(buffer[4:])
		p.Missed, dropped = int(now-dropped), now // it wraps around
		kind := binary.LittleEndian.Uint16(buffer[2:])
		var m points_go_proto.ExecveInfo
		if kind == uint16(points_go_proto.MessageType_MESSAGE_SENTRY_EXEC) && proto.Unmarshal(buffer[size:n], &m) == nil {
			p.PID, p.Parent = int(m.ContextData.GetThreadGroupId()), int(m.ContextData.GetParentThreadGroupId())
			p.By, p.Binary, p.Args = m.ContextData.GetProcessName(), m.BinaryPath, m.Argv
		} else if p.Missed == 0 {
			continue
		}
		t.mu.Lock()
		to := t.to
		t.mu.Unlock()
		if to != nil {
			to(p)
		}
	}
}

// traceAdopted has the sentry of an instance that another process started tell this
// one, in a moment. Until then what it had to tell went nowhere.
func (i *instance) traceAdopted() {
	failed := func(err error) {
		i.engine.config.Log.Error("processes of a sandbox that was taken over are not recorded", "sandbox", i.spec.ID, "error", err)
	}
	if _, err := i.engine.openTap(i.spec); err != nil {
		failed(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	var telling sync.WaitGroup
	telling.Go(func() {
		defer cancel()
		config := "--config=" + filepath.Join(i.spec.Dir, traceConfig)
		if err := i.engine.runsc(ctx, i.spec, nil, "trace", "create", "--force", config, i.spec.ID); err != nil && ctx.Err() == nil {
			failed(err)
		}
	})
	i.endTelling = func() {
		cancel()
		telling.Wait()
	}
}
