package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// maxFrame bounds one frame from a kernel, bytes. The program keeps results well
// under it, so a larger one is a kernel that no longer runs our code.
const maxFrame = 16 << 20

// A frame is one line a kernel sends; T says what it is.
type frame struct {
	T    string                     `json:"t"`
	S    string                     `json:"s"`     // out, err, fatal, warmed
	N    int64                      `json:"n"`     // count
	D    map[string]json.RawMessage `json:"d"`     // data
	Main bool                       `json:"main"`  // data
	Name string                     `json:"name"`  // error
	Val  string                     `json:"value"` // error
	TB   string                     `json:"tb"`    // error
}

var errFrameTooLong = fmt.Errorf("a frame is longer than %d bytes", maxFrame)

// parseFrame reads one line. The bytes are the kernel's, thus hostile.
func parseFrame(line []byte) (frame, error) {
	var f frame
	if err := json.Unmarshal(line, &f); err != nil {
		return frame{}, fmt.Errorf("malformed frame: %w", err)
	}
	if f.T == "" {
		return frame{}, errors.New("malformed frame: it has no type")
	}
	return f, nil
}

// event is what a frame of a run means to the client; ok is false for a frame
// that concerns only the driver.
func (f frame) event() (e event, ok bool) {
	switch f.T {
	case "out":
		return event{Kind: eventStdout, Text: f.S}, true
	case "err":
		return event{Kind: eventStderr, Text: f.S}, true
	case "count":
		return event{Kind: eventCount, Count: f.N}, true
	case "data":
		return event{Kind: eventResult, Bundle: f.D, Main: f.Main}, true
	case "error":
		return event{Kind: eventError, Name: f.Name, Value: f.Val, Traceback: f.TB}, true
	}
	return event{}, false
}

// A lineBuffer cuts a byte stream into lines of bounded length.
type lineBuffer struct {
	data    []byte
	scanned int // bytes known to hold no line end
}

func (b *lineBuffer) add(p []byte) { b.data = append(b.data, p...) }

// next returns the next whole line, valid until the next add, or nil when
// there is none yet; errFrameTooLong when the unfinished one passes maxFrame.
func (b *lineBuffer) next() ([]byte, error) {
	if i := bytes.IndexByte(b.data[b.scanned:], '\n'); i >= 0 {
		end := b.scanned + i
		line := b.data[:end]
		b.data, b.scanned = b.data[end+1:], 0
		return line, nil
	}
	b.scanned = len(b.data)
	if b.scanned > maxFrame {
		return nil, errFrameTooLong
	}
	if b.scanned == 0 && cap(b.data) > 1<<20 {
		b.data = nil // give a large frame's memory back
	}
	return nil, nil
}
