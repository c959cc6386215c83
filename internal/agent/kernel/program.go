package kernel

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// startTimeout bounds the start of a kernel: Python, IPython and its imports
// take about 3 s in a cold sandbox on a slow machine.
const startTimeout = 60 * time.Second

// programPath is the program as its interpreter finds it.
const programPath = "/proc/self/fd/5"

// A program makes kernels of one language: it is an interpreter of the
// template's, and a text for it that serves the requests of a [programKernel].
// It has these descriptors, and the agent the other ends:
//
//	0  /dev/null
//	1  a pipe: output of child processes and native code; likewise 2
//	3  a stream socket: one JSON object a line, requests in (unless encode
//	   says how), frames out
//	4  a pipe: one byte for each "sync" frame the agent has dealt with
//	5  the text
//	6  a pipe, if it asks for it: one byte for each interrupt, the low one of
//	   the number of the run; then 4 and 6 do not block
type program struct {
	spawner    *spawn.Spawner
	language   string // for messages
	path       string // of the interpreter
	args       []string
	text       []byte
	defaults   map[string]string // variables the kernel has unless the sandbox sets them
	interrupts bool              // give it descriptor 6, in place of a SIGINT
	// encode writes a request for a program that cannot read JSON, without the
	// last line end.
	encode func(request) ([]byte, error)
	group  bool // an interrupt is for the children too: it waits for them
}

// start returns an idle kernel.
func (p program) start(ctx context.Context, dir string, env []string) (driver, error) {
	k, err := p.spawn(dir, env)
	if err != nil {
		return nil, fmt.Errorf("start the %s kernel: %w", p.language, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := k.waitReady(ctx); err != nil {
		k.kill("it did not start")
		<-k.done()
		return nil, fmt.Errorf("start the %s kernel: %w", p.language, err)
	}
	return k, nil
}

// spawn starts the process with the descriptors above.
func (p program) spawn(dir string, env []string) (*programKernel, error) {
	d, err := p.descriptors()
	if err != nil {
		return nil, err
	}
	defer d.close()
	env = slices.Clone(env)
	for name, value := range p.defaults {
		if lookup(env, name) == "" {
			env = append(env, name+"="+value)
		}
	}
	process, err := d.start(p.spawner, p.path, append([]string{p.path}, p.args...), dir, env)
	if err != nil {
		return nil, err
	}
	if p.encode == nil {
		p.encode = func(r request) ([]byte, error) { return json.Marshal(r) }
	}
	k := &programKernel{
		process:    process,
		defaults:   p.defaults,
		encode:     p.encode,
		group:      p.group,
		out:        &outputPipe{fd: d.agent[0], kind: eventStdout},
		err:        &outputPipe{fd: d.agent[1], kind: eventStderr},
		socket:     d.agent[2],
		acks:       d.agent[3],
		interrupts: -1,
		ready:      make(chan error, 1),
		warmed:     make(chan error, 1),
		runs:       make(chan chan<- event, 1),
		held:       map[string][]byte{},
		swept:      make(chan struct{}),
		ended:      make(chan struct{}),
	}
	if p.interrupts {
		k.interrupts = d.agent[4]
	}
	go k.watch()
	go k.loop()
	return k, nil
}

// descriptors returns those above. The caller closes them.
func (p program) descriptors() (d *descriptors, err error) {
	d, err = newDescriptors()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if err := d.socket(); err != nil {
		return nil, err
	}
	if err := d.pipe(); err != nil {
		return nil, err
	}
	text, err := programFile(p.text)
	if err != nil {
		return nil, err
	}
	d.kernel = append(d.kernel, text)
	if !p.interrupts {
		return d, nil
	}
	if err := d.pipe(); err != nil {
		return nil, err
	}
	for _, number := range []int{4, 6} {
		if err := unix.SetNonblock(d.kernel[number], true); err != nil {
			return nil, fmt.Errorf("make the kernel's descriptor %d non-blocking: %w", number, err)
		}
	}
	return d, nil
}

// programFile puts the program in a memory file, so that the template needs no
// copy of it and cannot have a wrong one.
func programFile(text []byte) (int, error) {
	fd, err := unix.MemfdCreate("kernel", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make a memory file for the kernel program: %w", err)
	}
	if err := writeAll(fd, text, time.Second); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("write the kernel program: %w", err)
	}
	return fd, nil
}

// programText joins the files of a program.
func programText(files embed.FS, dir, suffix string, parts []string) []byte {
	var text []byte
	for _, part := range parts {
		data, err := files.ReadFile(dir + "/" + part + suffix)
		if err != nil {
			panic(err) // not embedded: parts is wrong
		}
		text = append(append(text, data...), '\n')
	}
	return text
}
