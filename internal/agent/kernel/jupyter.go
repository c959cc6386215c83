package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/kernel/zmtp"
	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// jupyter starts kernels by a spec of the template's.
type jupyter struct {
	spawner *spawn.Spawner
	spec    kernelSpec
}

func (j jupyter) start(ctx context.Context, dir string, env []string) (driver, error) {
	k, err := j.spawn(dir, j.spec.environ(env))
	if err != nil {
		return nil, fmt.Errorf("start the kernel %s: %w", j.spec.name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := k.connect(ctx); err != nil {
		return nil, fmt.Errorf("start the kernel %s: %w; it wrote: %q", j.spec.name, err, k.abandon())
	}
	if k.syntax.started {
		k.applied = environment(env)
	}
	k.env = environment(env)
	go k.loop()
	return k, nil
}

// A connectionFile tells a kernel where to listen and with which key its
// messages are signed.
type connectionFile struct {
	Transport string `json:"transport"`
	IP        string `json:"ip"`
	Shell     int    `json:"shell_port"`
	IOPub     int    `json:"iopub_port"`
	Stdin     int    `json:"stdin_port"`
	Control   int    `json:"control_port"`
	Heartbeat int    `json:"hb_port"`
	Scheme    string `json:"signature_scheme"`
	Key       string `json:"key"`
}

// spawn starts the process; all but its children's output comes by the protocol.
func (j jupyter) spawn(dir string, env []string) (*jupyterKernel, error) {
	session := newJupyterSession()
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	address.Scheme, address.Key = "hmac-sha256", session.key
	folder, err := writeConnectionFile(address)
	if err != nil {
		return nil, err
	}
	keep := false
	defer func() {
		if !keep {
			_ = os.RemoveAll(folder)
		}
	}()
	argv := j.spec.argv(filepath.Join(folder, connectionName))
	path := argv[0]
	if !strings.Contains(path, "/") {
		if path = findExecutable(env, argv[0]); path == "" {
			return nil, fmt.Errorf("the sandbox has no program %s, which %s asks for", argv[0], j.spec.dir)
		}
	}
	d, err := newDescriptors()
	if err != nil {
		return nil, err
	}
	defer d.close()
	process, err := d.start(j.spawner, path, argv, dir, env)
	if err != nil {
		return nil, err
	}
	keep = true
	return &jupyterKernel{
		process: process,
		spec:    j.spec,
		session: session,
		address: address,
		folder:  folder,
		pipes:   []*watchedPipe{newWatchedPipe(d.agent[0], eventStdout), newWatchedPipe(d.agent[1], eventStderr)},
		inbox:   make(chan jupyterInput),
		wake:    make(chan struct{}, 1),
		applied: map[string]string{},
		stop:    make(chan struct{}),
		ended:   make(chan struct{}),
	}, nil
}

// freeAddress finds ports on a loopback address that no other kernel has, and
// at which the edge, which dials 127.0.0.1, reaches nobody: what a kernel
// publishes is for whoever connects.
func freeAddress() (connectionFile, error) {
	var lastErr error
	for range 10 {
		ip := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
		a := connectionFile{Transport: "tcp", IP: ip}
		if lastErr = takePorts(ip, &a.Shell, &a.IOPub, &a.Stdin, &a.Control, &a.Heartbeat); lastErr == nil {
			return a, nil
		}
	}
	return connectionFile{}, fmt.Errorf("find ports for the kernel: %w", lastErr)
}

func takePorts(ip string, ports ...*int) error {
	for _, port := range ports {
		listener, err := net.Listen("tcp4", net.JoinHostPort(ip, "0"))
		if err != nil {
			return err
		}
		defer listener.Close() // all are held until each has one
		*port = listener.Addr().(*net.TCPAddr).Port
	}
	return nil
}

const connectionName = "connection.json"

func writeConnectionFile(address connectionFile) (folder string, err error) {
	text, err := json.Marshal(address)
	if err != nil {
		return "", err
	}
	folder, err = os.MkdirTemp("", "kernel-")
	if err != nil {
		return "", fmt.Errorf("make a folder for the kernel's connection file: %w", err)
	}
	if err := os.WriteFile(filepath.Join(folder, connectionName), text, 0o600); err != nil {
		_ = os.RemoveAll(folder)
		return "", fmt.Errorf("write the kernel's connection file: %w", err)
	}
	return folder, nil
}

// maxMessage bounds one message of a kernel, bytes. What is larger is left out,
// and the run is told.
const maxMessage = 32 << 20

const (
	dialEvery = 10 * time.Millisecond
	askEvery  = 500 * time.Millisecond
)

// connect waits until the kernel listens, answers, and is heard on the socket
// where it publishes.
func (k *jupyterKernel) connect(ctx context.Context) error {
	var err error
	if k.shell, err = k.open(ctx, k.address.Shell, zmtp.Dealer); err != nil {
		return err
	}
	if k.control, err = k.open(ctx, k.address.Control, zmtp.Dealer); err != nil {
		return err
	}
	if k.stdin, err = k.open(ctx, k.address.Stdin, zmtp.Dealer); err != nil {
		return err
	}
	if k.iopub, err = k.open(ctx, k.address.IOPub, zmtp.Sub); err != nil {
		return err
	}
	if err := k.iopub.Subscribe(); err != nil {
		return fmt.Errorf("subscribe to what it publishes: %w", err)
	}
	k.readers.Add(4)
	go k.receive(k.shell, fromShell)
	go k.receive(k.control, fromControl)
	go k.receive(k.stdin, fromStdin)
	go k.receive(k.iopub, fromIOPub)
	return k.greet(ctx)
}

// open connects to one socket as soon as the kernel has it.
func (k *jupyterKernel) open(ctx context.Context, port int, as zmtp.SocketType) (*zmtp.Conn, error) {
	dialer := net.Dialer{Control: widen}
	address := net.JoinHostPort(k.address.IP, fmt.Sprint(port))
	for {
		conn, err := dialer.DialContext(ctx, "tcp4", address)
		if err == nil {
			deadline, _ := ctx.Deadline()
			_ = conn.SetDeadline(deadline)
			identity := "" // that of the session: a question comes to who has that of the request
			if as == zmtp.Dealer {
				identity = k.session.id
			}
			c, err := zmtp.Open(conn, as, identity, maxMessage)
			if err == nil {
				return c, nil
			}
			// It may have listened for a moment only, to find a port.
			if ctx.Err() != nil {
				return nil, err
			}
		}
		select {
		case <-k.process.Done():
			return nil, errors.New(epitaph(k.process))
		case <-ctx.Done():
			return nil, fmt.Errorf("it does not listen: %w", ctx.Err())
		case <-time.After(dialEvery):
		}
	}
}

// receiveBuffer is what a socket takes in while the agent gets no processor, bytes.
// A kernel has room for 1000 messages more (ZMQ_SNDHWM) and then drops them.
const receiveBuffer = 8 << 20

func widen(_, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) {
		// As much as is allowed.
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
		}
	})
}

// greet asks who the kernel is until it answers. That something was heard of
// its work on the question shows that the subscription is in force.
func (k *jupyterKernel) greet(ctx context.Context) error {
	again := time.NewTicker(askEvery)
	defer again.Stop()
	if err := k.ask("kernel_info_request", struct{}{}); err != nil {
		return err
	}
	heard, language := false, ""
	for !heard || language == "" {
		select {
		case in := <-k.inbox:
			switch {
			case in.err != nil && !errors.Is(in.err, zmtp.ErrTooLarge):
				return fmt.Errorf("its connection broke: %w", in.err)
			case in.from == fromIOPub:
				heard = true
			case in.from == fromShell && in.kind == "kernel_info_reply":
				language = languageInfo(in.content)
			}
		case <-again.C:
			if err := k.ask("kernel_info_request", struct{}{}); err != nil {
				return err
			}
		case <-k.process.Done():
			return errors.New(epitaph(k.process))
		case <-ctx.Done():
			return fmt.Errorf("no answer from it: %w", ctx.Err())
		}
	}
	k.syntax, k.tellable = syntaxes[language]
	return nil
}

func (k *jupyterKernel) ask(kind string, content any) error {
	frames, err := k.session.request(newID(), kind, content)
	if err != nil {
		return err
	}
	return k.shell.Send(frames...)
}

// languageInfo is the name of the kernel's language, "unknown" if it has none.
func languageInfo(content json.RawMessage) string {
	var info struct {
		Language struct {
			Name string `json:"name"`
		} `json:"language_info"`
	}
	if err := json.Unmarshal(content, &info); err != nil || info.Language.Name == "" {
		return "unknown"
	}
	return strings.ToLower(info.Language.Name)
}

type socket int

const (
	fromShell socket = iota + 1
	fromControl
	fromStdin
	fromIOPub
)

// A jupyterInput is a message, or why there is none.
type jupyterInput struct {
	jupyterMessage
	from socket
	err  error
}

// receive hands on what comes by one socket, until its end.
func (k *jupyterKernel) receive(c *zmtp.Conn, from socket) {
	defer k.readers.Done()
	waiting := newBacklog()
	go waiting.fill(c)
	defer waiting.abandon()
	for {
		frames, err := waiting.next()
		in := jupyterInput{from: from, err: err}
		if err == nil {
			if in.jupyterMessage, err = k.session.parse(frames); err != nil {
				continue // not of this kernel
			}
		}
		select {
		case k.inbox <- in:
		case <-k.stop:
			return
		}
		if in.err != nil && !errors.Is(in.err, zmtp.ErrTooLarge) {
			return
		}
	}
}
