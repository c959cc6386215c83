package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/kernel/zmtp"
	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// A jupyterKernel is a live kernel that speaks Jupyter's protocol. After its
// start the loop goroutine alone has what is below "loop".
type jupyterKernel struct {
	process *spawn.Process
	spec    kernelSpec
	session jupyterSession
	address connectionFile
	folder  string // of the connection file

	syntax   syntax
	tellable bool // syntax is that of its language

	shell, control, stdin, iopub *zmtp.Conn
	controlling                  sync.Mutex // for sending on control
	pipes                        []*watchedPipe
	readable                     chan *watchedPipe
	inbox                        chan jupyterInput
	readers                      sync.WaitGroup
	wake                         chan struct{} // there is a run to begin
	stop                         chan struct{} // closed at the end, for readers
	ended                        chan struct{}

	mu   sync.Mutex
	env  map[string]string // what all code is to see
	seed []byte            // to be mixed in before the next run
	next *jupyterRun
	gone bool

	// loop
	run     *jupyterRun
	applied map[string]string // the variables that code sees now
	count   int64             // of the callers' runs
	told    bool              // a client knows the process's reason
	grace   *time.Timer       // runs while one of two words of a run's end is missing
}

// A jupyterRun is what one call of execute, or of warm, asks for.
type jupyterRun struct {
	box  *outbox
	code string
	env  map[string]string
	hide bool // nothing is shown or counted

	request   string // id of the request that is open
	preparing bool   // the request tells the kernel the variables, want, of the run
	want      map[string]string
	replied   bool
	idle      bool
	failed    bool // the request has, and why
	why       string
	unshown   *event // the error of a reply, if none is published
	held      *event // a value that is the run's if nothing follows
}

func (k *jupyterKernel) execute(code string, env map[string]string) <-chan event {
	return k.enqueue(&jupyterRun{box: newOutbox(), code: code, env: env})
}

func (k *jupyterKernel) enqueue(r *jupyterRun) <-chan event {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone {
		r.box.put(event{Kind: eventDied, Value: epitaph(k.process)})
		r.box.close()
		return r.box.out
	}
	k.next = r
	k.wake <- struct{}{}
	return r.box.out
}

func (k *jupyterKernel) setEnv(env map[string]string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.env = env
	return nil
}

func (k *jupyterKernel) reseed(entropy []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seed = entropy
	return nil
}

// refuses says why a run cannot have variables of its own.
func (k *jupyterKernel) refuses(env map[string]string) error {
	if len(env) == 0 || k.tellable {
		return nil
	}
	return &userError{400, fmt.Sprintf("the kernel %s cannot be given variables for one run (env_vars): set them in the code, or for the whole sandbox when it is created", k.spec.name)}
}

func (k *jupyterKernel) warm(ctx context.Context, _ []string) error {
	events := k.enqueue(&jupyterRun{box: newOutbox(), code: k.syntax.first, hide: true})
	var failed error
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return failed
			}
			if e.Kind == eventDied || e.Kind == eventError {
				failed = errors.New(e.Value)
			}
		case <-ctx.Done():
			k.kill("it was not warm in time")
			for range events { // until it has died
			}
			return fmt.Errorf("no answer from it: %w", ctx.Err())
		}
	}
}

// interrupt works as the spec asks: by a signal, or by a message, to which a
// kernel whose process ends at a signal can listen while code runs.
func (k *jupyterKernel) interrupt(everything bool) {
	if k.spec.InterruptMode != "message" {
		if err := k.process.Signal(syscall.SIGINT); err == nil && everything {
			_ = syscall.Kill(-k.process.PID, syscall.SIGINT)
		}
		return
	}
	frames, err := k.session.request(newID(), "interrupt_request", struct{}{})
	if err != nil {
		return
	}
	k.controlling.Lock()
	defer k.controlling.Unlock()
	_ = k.control.Send(frames...) // of one that does not listen, follow makes an end
}

func (k *jupyterKernel) kill(reason string) {
	k.process.SetReason(reason)
	_ = k.process.Signal(syscall.SIGKILL)
}

func (k *jupyterKernel) done() <-chan struct{} { return k.ended }

// loop takes what the kernel sends and never waits for a client.
func (k *jupyterKernel) loop() {
	k.readable = make(chan *watchedPipe)
	for _, p := range k.pipes {
		go p.watch(k.readable, k.stop)
	}
	k.grace = time.NewTimer(time.Hour)
	for !k.step() {
	}
	k.finish()
}

// step deals with one thing that happens; true when the kernel has ended.
func (k *jupyterKernel) step() bool {
	select {
	case <-k.process.Done():
		return true
	case in := <-k.inbox:
		k.take(in)
	case p := <-k.readable:
		k.read(p)
		p.again <- struct{}{}
	case <-k.wake:
		k.begin()
	case <-k.grace.C:
		k.over()
	}
	return false
}

// begin sends a run to the kernel, after what it has to be told first.
func (k *jupyterKernel) begin() {
	for _, p := range k.pipes {
		k.read(p) // of before, for nobody
		p.tail = nil
	}
	k.mu.Lock()
	k.run, k.next = k.next, nil
	code := k.prepareLocked(k.run)
	k.mu.Unlock()
	if k.run.preparing = code != ""; k.run.preparing {
		k.send(code, true)
		return
	}
	k.sendCode()
}

func (k *jupyterKernel) sendCode() {
	if !k.run.hide {
		k.count++
	}
	k.send(k.run.code, k.run.hide)
}

// prepareLocked returns code that tells the kernel what has changed since its
// last run, empty for nothing.
func (k *jupyterKernel) prepareLocked(r *jupyterRun) (code string) {
	if !k.tellable {
		return ""
	}
	if k.seed != nil && k.syntax.seed != nil {
		code = k.syntax.seed(k.seed)
	}
	k.seed = nil
	r.want = maps.Clone(k.env)
	maps.Copy(r.want, r.env)
	set, unset := map[string]string{}, []string{}
	for name, value := range r.want {
		if have, ok := k.applied[name]; !ok || have != value {
			set[name] = value
			k.applied[name] = unknownValue
		}
	}
	for name := range k.applied {
		if _, ok := r.want[name]; !ok {
			unset = append(unset, name)
			k.applied[name] = unknownValue
		}
	}
	if len(set)+len(unset) > 0 {
		code += k.syntax.variables(set, unset)
	}
	return code
}

// unknownValue is what a variable has until the code that changes it has run; no
// variable can have it.
const unknownValue = "\x00"

// hiddenPrefix begins the ids of requests of which clients see nothing.
const hiddenPrefix = "hidden-"

func (k *jupyterKernel) send(code string, hidden bool) {
	r := k.run
	r.request, r.replied, r.idle, r.failed, r.unshown = newID(), false, false, false, nil
	if hidden {
		r.request = hiddenPrefix + r.request
	}
	frames, err := k.session.request(r.request, "execute_request", newExecuteContent(code, hidden))
	if err == nil {
		err = k.shell.Send(frames...)
	}
	if err != nil {
		k.kill(fmt.Sprintf("its connection broke: %v", err))
	}
}

// take deals with a message, or the end of a connection.
func (k *jupyterKernel) take(in jupyterInput) {
	switch {
	case errors.Is(in.err, zmtp.ErrTooLarge):
		k.takeTooLarge(in.from)
	case in.err != nil:
		// Usually its process ends, and is to say how.
		time.AfterFunc(brokenWait, func() {
			select {
			case <-k.process.Done():
			default:
				k.kill("its connection broke: " + in.err.Error())
			}
		})
	case in.from == fromStdin && in.kind == "input_request":
		k.answer()
	case k.run == nil:
	case in.from == fromShell && in.kind == "execute_reply" && in.parent == k.run.request:
		k.takeReply(in.content)
	case in.from == fromIOPub:
		k.takePublished(in.jupyterMessage)
	}
}

// answer is an empty line: there is nobody to ask. Requests say so (allow_stdin),
// and kernels that ask all the same would wait for ever.
func (k *jupyterKernel) answer() {
	frames, err := k.session.request(newID(), "input_reply", map[string]string{"value": "", "status": "ok"})
	if err == nil {
		_ = k.stdin.Send(frames...) // of one that does not listen, its client will have enough
	}
}

// brokenWait is how long a kernel may live without its connections.
const brokenWait = time.Second

// takeTooLarge tells of a message that was left out. A reply's end is a reply.
func (k *jupyterKernel) takeTooLarge(from socket) {
	switch {
	case k.run == nil:
	case from == fromShell:
		k.run.replied = true
		k.settle()
	case from == fromIOPub:
		k.put(event{Kind: eventStderr, Text: fmt.Sprintf("[a message of more than %d MiB from the kernel is left out. Write large results to files.]\n", maxMessage>>20)})
	}
}

func (k *jupyterKernel) takeReply(content json.RawMessage) {
	var reply struct {
		Status    string   `json:"status"`
		Ename     string   `json:"ename"`
		Evalue    string   `json:"evalue"`
		Traceback []string `json:"traceback"`
	}
	r := k.run
	r.replied = true
	if err := json.Unmarshal(content, &reply); err == nil && reply.Status != "ok" {
		if reply.Ename == "" && reply.Evalue == "" {
			reply.Evalue = "the kernel says the code ended with the status " + reply.Status
		}
		e := errorEvent(reply.Ename, reply.Evalue, reply.Traceback)
		r.unshown = &e // the same is on its way on the other socket, or was there
	}
	k.settle()
}

func (k *jupyterKernel) takePublished(m jupyterMessage) {
	r, own := k.run, m.parent == k.run.request
	if m.kind == "status" {
		var status struct {
			State string `json:"execution_state"`
		}
		if err := json.Unmarshal(m.content, &status); err == nil && own && status.State == "idle" {
			r.idle = true
			k.settle()
		}
		return
	}
	if r.replied {
		k.settle() // not silent yet
	}
	// Work in the background may print in the name of an earlier run.
	background := m.kind == "stream" || m.kind == "display_data"
	if !own && (!background || strings.HasPrefix(m.parent, hiddenPrefix)) {
		return
	}
	e, ok := m.event()
	if !ok {
		return
	}
	switch e.Kind {
	case eventError:
		k.fail(e)
		return
	case eventCount: // some kernels count what is hidden too
		e.Count = k.count
	}
	k.put(e)
}

// fail notes that the open request has failed, and shows why.
func (k *jupyterKernel) fail(e event) {
	r := k.run
	if !r.failed {
		r.why = strings.TrimSpace(e.Name + ": " + e.Value)
	}
	r.failed = true
	k.put(e)
}

// put shows an event of the caller's code. What is printed between runs nobody
// hears.
func (k *jupyterKernel) put(e event) {
	r := k.run
	if r == nil || r.preparing || r.hide {
		return
	}
	k.letGo(false)
	if k.syntax.values && e.Kind == eventResult && !isPicture(e) {
		r.held = &e
		return
	}
	r.box.put(e)
}

// letGo shows a value that was kept back until it was known whether another
// event follows.
func (k *jupyterKernel) letGo(last bool) {
	if r := k.run; r.held != nil {
		r.held.Main = last
		r.box.put(*r.held)
		r.held = nil
	}
}

func isPicture(e event) bool {
	for mime := range e.Bundle {
		if strings.HasPrefix(mime, "image/") || mime == "application/pdf" {
			return true
		}
	}
	return false
}

// graceTime is how long one of the two words that a request is over, the reply
// and the state "idle", is waited for when the other has come and nothing else
// comes.
const graceTime = 2 * time.Second

func (k *jupyterKernel) settle() {
	if k.run.idle && k.run.replied {
		k.over()
		return
	}
	k.grace.Reset(graceTime)
}

// over goes on with what follows the request that has ended.
func (k *jupyterKernel) over() {
	r := k.run
	if r == nil || !r.idle && !r.replied {
		return
	}
	k.grace.Stop()
	if r.unshown != nil && !r.failed {
		k.fail(*r.unshown)
	}
	switch {
	case r.preparing && r.failed:
		r.preparing = false
		k.put(event{Kind: eventError, Name: "EnvironmentError", Value: "the variables of this run could not be set: " + r.why})
	case r.preparing:
		r.preparing = false
		k.applied = r.want
		k.sendCode()
		return
	}
	k.letGo(!r.failed)
	for _, p := range k.pipes {
		k.read(p)
		k.flush(p)
	}
	if e, ok := reasonEvent(k.process); ok && !k.told {
		k.told = true
		k.put(e)
	}
	if r.hide && r.failed {
		r.box.put(event{Kind: eventError, Value: r.why})
	}
	k.close(event{Kind: eventEnd})
}

// close ends the open run.
func (k *jupyterKernel) close(last event) {
	k.letGo(false)
	k.run.box.put(last)
	k.run.box.close()
	k.run = nil
}

// maxRead bounds what is read of a pipe at once, so that one that is always full
// does not keep the loop from all else.
const maxRead = 1 << 20

func (k *jupyterKernel) read(p *watchedPipe) {
	buf := make([]byte, 64<<10)
	for n := 0; n < maxRead; {
		got, err := unix.Read(p.fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || got == 0 {
			return
		}
		n += got
		if e, ok := p.take(buf[:got]); ok {
			k.put(e)
		}
	}
}

func (k *jupyterKernel) flush(p *watchedPipe) {
	if e, ok := p.takeTail(); ok {
		k.put(e)
	}
}

// lastWords bounds the wait for the end of the sockets of a kernel that has
// ended: a process that left its session may hold them open.
const lastWords = time.Second

// finish ends what is left when the process has ended.
func (k *jupyterKernel) finish() {
	killSession(k.process.PID)
	read := make(chan struct{})
	go func() { k.readers.Wait(); close(read) }()
	deadline := time.After(lastWords)
	for waiting := true; waiting; {
		select {
		case in := <-k.inbox:
			if in.err == nil {
				k.take(in)
			}
		case <-read:
			waiting = false
		case <-deadline:
			waiting = false
		}
	}
	for _, p := range k.pipes {
		k.read(p)
		k.flush(p)
	}
	k.mu.Lock()
	k.gone = true
	if k.run == nil {
		k.run = k.next
	}
	k.mu.Unlock()
	k.release()
	close(k.ended) // before the client hears of it: its next run is for another kernel
	if k.run != nil {
		k.close(event{Kind: eventDied, Value: epitaph(k.process)})
	}
}

// release closes what the agent has of the kernel.
func (k *jupyterKernel) release() {
	close(k.stop)
	for _, c := range []*zmtp.Conn{k.shell, k.control, k.stdin, k.iopub} {
		if c != nil {
			_ = c.Close()
		}
	}
	k.readers.Wait()
	for _, p := range k.pipes {
		_ = p.file.Close()
	}
	_ = os.RemoveAll(k.folder)
}

// abandon ends a kernel that did not start, and returns the begin of what it
// printed.
func (k *jupyterKernel) abandon() (wrote string) {
	k.kill("it did not start")
	<-k.process.Done()
	killSession(k.process.PID)
	for _, p := range k.pipes {
		buf := make([]byte, maxEarly)
		if n, _ := unix.Read(p.fd, buf); n > 0 {
			wrote += string(buf[:n])
		}
	}
	k.release()
	return wrote
}

func errorEvent(name, value string, traceback []string) event {
	return event{Kind: eventError, Name: name, Value: value, Traceback: strings.Join(traceback, "\n")}
}
