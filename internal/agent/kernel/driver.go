package kernel

import (
	"context"
	"encoding/json"
)

// A starter starts a kernel of one language.
type starter interface {
	// start returns an idle kernel whose first process runs in dir with env. Its
	// error says what the template lacks when the language cannot run in it.
	start(ctx context.Context, dir string, env []string) (driver, error)
}

// A driver is one live kernel. Its life: start, any number of execute one after
// another, kill; or it dies by itself. done tells of both.
//
// setEnv, reseed, interrupt and kill may be called at any time, from any
// goroutine. setEnv and reseed take effect in order with execute: before the
// next one, at the latest.
type driver interface {
	// execute runs code with extra variables that are undone after it. Only one
	// run may be open: the caller reads the channel until it is closed. The last
	// event says how it ended: eventEnd, or eventDied.
	execute(code string, env map[string]string) <-chan event
	// refuses says why a run cannot have these variables; nil when it can.
	refuses(env map[string]string) error
	// interrupt asks the running code to stop: its own process first, and with
	// everything set the children in its process group too. No effect on an idle
	// kernel is promised.
	interrupt(everything bool)
	// setEnv replaces the variables that all code in the sandbox sees. It may
	// change the map.
	setEnv(env map[string]string) error
	// reseed mixes fresh randomness into what the kernel keeps in memory.
	reseed(entropy []byte) error
	// warm runs what a first run would have to load, imports modules and gives
	// unused memory back.
	warm(ctx context.Context, modules []string) error
	// kill ends the kernel and every process of its session. It does not wait;
	// done tells when they have ended. An open run ends with eventDied and the
	// reason.
	kill(reason string)
	// done is closed when the kernel has ended, which waits for the reader of an
	// open run.
	done() <-chan struct{}
}

type eventKind int

const (
	eventCount  eventKind = iota + 1 // Count
	eventStdout                      // Text
	eventStderr                      // Text
	eventResult                      // Bundle, Main
	eventError                       // Name, Value, Traceback
	eventEnd
	eventDied // Value: why, in words
)

// An event is one thing that happened in a run, in no language's own form.
type event struct {
	Kind  eventKind
	Text  string
	Count int64
	// Bundle holds one representation for each MIME type, as Jupyter kernels
	// have them: a JSON string for text and base64, any JSON for JSON types.
	Bundle map[string]json.RawMessage
	// Main marks the value of the last expression.
	Main bool

	Name, Value, Traceback string
}

// MIME types of our own in a Bundle.
const (
	// dataMIME carries a table as {column: [values]}.
	dataMIME = "application/vnd.tombolo.data+json"
	// chartMIME carries what a figure shows, in the form of E2B's clients.
	chartMIME = "application/vnd.tombolo.chart+json"
)
