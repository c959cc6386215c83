package kernel

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// signed are the frames of a message as a kernel sends it.
func signed(s jupyterSession, parts ...string) [][]byte {
	var frames [][]byte
	for _, part := range parts {
		frames = append(frames, []byte(part))
	}
	return append([][]byte{[]byte("topic"), []byte(delimiter), s.sign(frames)}, frames...)
}

func TestMessagesOfOthersAreNotRead(t *testing.T) {
	s := newJupyterSession()
	good := signed(s, `{"msg_type":"stream"}`, `{"msg_id":"p"}`, `{}`, `{"name":"stdout","text":"hi"}`)
	m, err := s.parse(append(good, []byte("a buffer")))
	require.NoError(t, err)
	require.Equal(t, "p", m.parent)
	e, ok := m.event()
	require.True(t, ok)
	require.Equal(t, event{Kind: eventStdout, Text: "hi"}, e)

	for name, frames := range map[string][][]byte{
		"nothing":         nil,
		"no delimiter":    good[2:],
		"a part missing":  good[:6],
		"no JSON":         signed(s, `{`, `{}`, `{}`, `{}`),
		"a list":          signed(s, `[]`, `{}`, `{}`, `{}`),
		"parent no JSON":  signed(s, `{}`, `x`, `{}`, `{}`),
		"another's key":   signed(newJupyterSession(), `{}`, `{}`, `{}`, `{}`),
		"without any key": append([][]byte{[]byte(delimiter), nil}, good[3:]...),
	} {
		_, err := s.parse(frames)
		require.Error(t, err, name)
	}
}

func TestContentThatIsNotAsDefinedIsLeftOut(t *testing.T) {
	for _, m := range []jupyterMessage{
		{kind: "stream", content: json.RawMessage(`{"name":"stdout","text":7}`)},
		{kind: "stream", content: json.RawMessage(`{}`)},
		{kind: "display_data", content: json.RawMessage(`{"data":[]}`)},
		{kind: "execute_result", content: json.RawMessage(`{"data":{}}`)},
		{kind: "error", content: json.RawMessage(`nonsense`)},
		{kind: "comm_open", content: json.RawMessage(`{}`)},
		{kind: "clear_output", content: json.RawMessage(`{}`)},
		{kind: "update_display_data", content: json.RawMessage(`{"data":{"text/plain":"x"}}`)},
	} {
		_, ok := m.event()
		require.False(t, ok, "%s %s", m.kind, m.content)
	}
}

func TestASlowClientHasItsOutputCut(t *testing.T) {
	box := newOutbox()
	piece := string(make([]byte, 1<<20))
	for range 2 * maxWaiting >> 20 {
		box.put(event{Kind: eventStdout, Text: piece})
	}
	box.put(event{Kind: eventError, Name: "E"})
	box.put(event{Kind: eventEnd})
	box.close()
	size, kinds := 0, []eventKind{}
	for e := range box.out {
		size += len(e.Text)
		if e.Kind != eventStdout {
			kinds = append(kinds, e.Kind)
		}
	}
	require.LessOrEqual(t, size, maxWaiting+2<<20)
	require.Equal(t, []eventKind{eventStderr, eventError, eventEnd}, kinds, "the loss must be told, and the end come")
}

// FuzzJupyterMessage checks that nothing a kernel signs breaks the agent.
func FuzzJupyterMessage(f *testing.F) {
	f.Add("stream", `{"msg_id":"p"}`, `{"name":"stdout","text":"hi"}`)
	f.Add("display_data", `{}`, `{"data":{"text/plain":"'x'","image/png":null}}`)
	f.Add("error", `null`, `{"ename":"E","traceback":["a"]}`)
	s := newJupyterSession()
	f.Fuzz(func(t *testing.T, kind, parent, content string) {
		header, _ := json.Marshal(map[string]string{"msg_type": kind})
		m, err := s.parse(signed(s, string(header), parent, `{}`, content))
		if err != nil {
			return
		}
		if e, ok := m.event(); ok && e.Kind == 0 {
			t.Fatalf("%q gave an event of no kind", content)
		}
		languageInfo(m.content)
	})
}
