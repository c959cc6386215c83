package kernel

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"
)

// FuzzFrames feeds the bytes of a hostile kernel, cut in two anywhere, through
// everything that looks at them before the client does.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("{\"t\":\"out\",\"s\":\"x\\ud800\"}\n{\"t\":\"end\"}\n"), 3)
	f.Add([]byte("{\"t\":\"data\",\"d\":{\"text/plain\":\"'a'\",\"x/y\":[1]},\"main\":true}\n"), 20)
	f.Add([]byte("{\"t\":\"data\",\"d\":{\"text/plain\":\"'\"}}\n\n[]\n"), 0)
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		cut = max(0, min(cut, len(data)))
		var b lineBuffer
		var lines int
		for _, part := range [][]byte{data[:cut], data[cut:]} {
			b.add(part)
			for {
				raw, err := b.next()
				if err != nil || raw == nil {
					break
				}
				lines++
				parsed, err := parseFrame(raw)
				if err != nil {
					continue
				}
				e, ok := parsed.event()
				if !ok {
					continue
				}
				out, err := json.Marshal(line(e, time.Unix(0, 0)))
				if err != nil {
					t.Fatalf("frame %q gives an event that cannot be sent: %v", raw, err)
				}
				if bytes.ContainsRune(out, '\n') {
					t.Fatalf("frame %q gives more than one line: %q", raw, out)
				}
			}
		}
		if want := bytes.Count(data, []byte("\n")); lines != want {
			t.Fatalf("%d lines from %q, want %d", lines, data, want)
		}
	})
}
