package sandbox

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"connectrpc.com/connect"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	filesystemrpc "github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem"
	"github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem/filesystemconnect"
	processrpc "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
	"github.com/tombolo-dev/tombolo/internal/agent/rpc/process/processconnect"
	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// NewTemplateID returns an id that no template has.
func NewTemplateID() string { return newID()[1:] }

// EngineVersion is the version of the engine that new sandboxes run on; what a
// workshop saved is read by it only.
func (m *Manager) EngineVersion() string { return m.config.Engine.Version() }

// ArchiveDisk makes the archive of Workshop.WriteDisk of what Workshop.Save wrote.
func (m *Manager) ArchiveDisk(ctx context.Context, saved, to string) error {
	return m.config.Engine.ArchiveDisk(ctx, saved, to)
}

// Workshop is a sandbox in which a template is made. It belongs to no key, is in
// no list and has no timeout: whoever opens one closes it. A process that dies
// leaves it to the next one's sweep, as it leaves every half-made sandbox. One
// caller at a time uses it.
type Workshop struct {
	m      *Manager
	s      *sandbox
	client processconnect.ProcessClient
	calls  *http.Transport
}

// WorkshopRequest says what a workshop begins with.
type WorkshopRequest struct {
	// Template's image, or all of the snapshot of a sandbox, is what the workshop
	// begins with; its CPUs, MemoryBytes and DiskBytes are the limits.
	Template store.Template
	// Disk is a folder that Save wrote in a workshop of the same image: what was
	// written then is there again. Empty is nothing.
	Disk string
	// KeyID is whose rules hold for what the workshop may reach; empty is nobody's but
	// the server's.
	KeyID string
}

// OpenWorkshop boots a workshop.
func (m *Manager) OpenWorkshop(ctx context.Context, req WorkshopRequest) (_ *Workshop, err error) {
	t := req.Template
	s := newSandbox(CreateRequest{}, t)
	s.info.AccessToken = "" // only the host reaches it
	s.judgeAs(req.KeyID)
	s.from = m.coldSource(t)
	if t.SourceSandbox != "" {
		defer m.useSnapshot(t.Snapshot)()
		if s.from, err = m.sourceOf(t); err != nil {
			return nil, err
		}
	}
	if req.Disk != "" {
		s.from.memory, s.from.disk = "", req.Disk
	}
	w := &Workshop{m: m, s: s}
	defer func() {
		if err == nil {
			return
		}
		if tail := s.log.tail(20); tail != "" {
			err = fmt.Errorf("%w\nlast lines of the agent:\n%s", err, tail)
		}
		err = errors.Join(err, w.Close(context.WithoutCancel(ctx)))
	}()
	if err := m.takeTurn(ctx); err != nil {
		return nil, err
	}
	defer m.giveTurn()
	startCtx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := m.claimDir(s); err != nil {
		return nil, err
	}
	init := s.init()
	init.CABundle = m.config.CABundle
	if err := m.boot(startCtx, s, init); err != nil {
		return nil, err
	}
	network := s.present().network
	w.calls = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return network.DialContext(ctx, hostapi.AgentPort)
	}}
	w.client = processconnect.NewProcessClient(&http.Client{Transport: w.calls}, "http://agent")
	return w, nil
}

// Command is a program that runs in a workshop.
type Command struct {
	Argv []string
	User string // empty: the agent's default
	Dir  string // must exist; empty: the agent's default
	Env  map[string]string
}

// daemonsTime is how long a command that has ended is waited for when daemons that it
// started hold its output.
const daemonsTime = time.Second

// endTime is how long after a broken stream the end of the sandbox is known, if that
// is why it broke.
const endTime = 2 * time.Second

// Run runs a command to its end and hands over what it prints. The error is that
// of the agent when the command could not be started (connect.CodeOf tells), or
// says that the workshop has ended. How a command ended that did run is in the
// text: empty for success, else in the words of Go ("exit status 1", "signal:
// killed"). A context that ends kills it.
func (w *Workshop) Run(ctx context.Context, c Command, stdout, stderr io.Writer) (failure string, err error) {
	request := connect.NewRequest(&processrpc.StartRequest{Process: &processrpc.ProcessConfig{
		Cmd: c.Argv[0], Args: c.Argv[1:], Envs: c.Env,
	}})
	if c.Dir != "" {
		request.Msg.Process.Cwd = &c.Dir
	}
	request.Header().Set(hostapi.OrphansHeader, daemonsTime.String())
	if c.User != "" {
		request.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(c.User+":")))
	}
	stream, err := w.client.Start(ctx, request)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	for stream.Receive() {
		event := stream.Msg().GetEvent()
		if data := event.GetData(); data != nil {
			if _, err := stdout.Write(data.GetStdout()); err != nil {
				return "", err
			}
			if _, err := stderr.Write(data.GetStderr()); err != nil {
				return "", err
			}
		}
		if end := event.GetEnd(); end != nil {
			return ending(end), nil
		}
	}
	if err := stream.Err(); err != nil {
		select {
		case <-ctx.Done():
			return "", err
		case <-w.s.present().instance.Done():
			return "", fmt.Errorf("the build's sandbox ended: %s", w.s.present().instance.Exit().Reason)
		case <-time.After(endTime):
			return "", err
		}
	}
	return "", errors.New("the agent broke off")
}

// ending says how a process ended, empty for success.
func ending(end *processrpc.ProcessEvent_EndEvent) string {
	if end.GetExited() && end.GetExitCode() == 0 {
		return ""
	}
	if reason := end.GetError(); reason != "" && reason != end.GetStatus() {
		return end.GetStatus() + " (" + reason + ")"
	}
	return end.GetStatus()
}

// MakeDir makes a folder, and those above it, that belongs to a user. One that is
// there stays as it is.
func (w *Workshop) MakeDir(ctx context.Context, path, user string) error {
	request := connect.NewRequest(&filesystemrpc.MakeDirRequest{Path: path})
	request.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
	_, err := filesystemconnect.NewFilesystemClient(&http.Client{Transport: w.calls}, "http://agent").MakeDir(ctx, request)
	if connect.CodeOf(err) == connect.CodeAlreadyExists {
		return nil
	}
	return err
}

// Stats is what the workshop uses.
func (w *Workshop) Stats(ctx context.Context) (engine.Stats, error) {
	return w.s.present().instance.Stats(ctx)
}

// CopyError says why a workshop could not copy what it was given; its text is for
// whoever asked for the copy.
type CopyError struct{ Message string }

func (e *CopyError) Error() string { return e.Message }

// Copy puts the content of a tar archive into the file system. The error is a
// *CopyError when the archive or the destination is the trouble.
func (w *Workshop) Copy(ctx context.Context, c hostapi.Copy, archive io.Reader) error {
	about, err := json.Marshal(c)
	if err != nil {
		return err
	}
	address := "http://agent/copy?" + url.Values{"copy": {string(about)}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, archive)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-tar")
	body, err := w.s.present().agent.stream(request)
	if err != nil {
		return err
	}
	return body.Close()
}

// Archive reads a tar archive of the files and folders that patterns name. The
// error is a *CopyError when there are none.
func (w *Workshop) Archive(ctx context.Context, patterns []string) (io.ReadCloser, error) {
	about, err := json.Marshal(hostapi.Archive{Patterns: patterns})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/archive", bytes.NewReader(about))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	return w.s.present().agent.stream(request)
}

// Save writes what was written in the workshop into the folder to, for
// WorkshopRequest.Disk.
func (w *Workshop) Save(ctx context.Context, to string) error {
	return w.s.present().instance.CheckpointDisk(ctx, to)
}

// WriteDisk writes what was written in the workshop into the file to, as
// engine.Instance.WriteDisk does.
func (w *Workshop) WriteDisk(ctx context.Context, to string) error {
	return w.s.present().instance.WriteDisk(ctx, to)
}

// Close ends the workshop and removes everything of it. It may be called again.
func (w *Workshop) Close(ctx context.Context) error {
	if w.calls != nil {
		w.calls.CloseIdleConnections()
	}
	defer w.m.vanished(w.s)
	return w.m.teardown(ctx, w.s)
}
