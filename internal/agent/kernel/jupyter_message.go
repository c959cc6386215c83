package kernel

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Messages of Jupyter's protocol 5.3
// (https://jupyter-client.readthedocs.io/en/stable/messaging.html).

const delimiter = "<IDS|MSG>"

// A jupyterSession signs and checks the messages of one kernel.
type jupyterSession struct {
	id  string
	key string
}

func newJupyterSession() jupyterSession {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	return jupyterSession{id: newID(), key: hex.EncodeToString(key[:])}
}

// A jupyterMessage is one from a kernel. Its content is not checked.
type jupyterMessage struct {
	kind    string // msg_type
	parent  string // msg_id of the request it belongs to
	content json.RawMessage
}

type jupyterHeader struct {
	ID       string `json:"msg_id"`
	Session  string `json:"session"`
	Username string `json:"username"`
	Date     string `json:"date"`
	Type     string `json:"msg_type"`
	Version  string `json:"version"`
}

// request returns the frames of a message to the kernel.
func (s jupyterSession) request(id, kind string, content any) ([][]byte, error) {
	header, err := json.Marshal(jupyterHeader{
		ID: id, Session: s.id, Username: "user", Type: kind, Version: "5.3",
		Date: time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"),
	})
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(content); err != nil {
		return nil, err
	}
	parts := [][]byte{header, []byte("{}"), []byte("{}"), bytes.TrimSpace(text.Bytes())}
	return append([][]byte{[]byte(delimiter), s.sign(parts)}, parts...), nil
}

// parse reads the frames of a message from the kernel. Before the delimiter are
// the addresses of a ROUTER, or the topic of a PUB.
func (s jupyterSession) parse(frames [][]byte) (jupyterMessage, error) {
	start := 0
	for start < len(frames) && string(frames[start]) != delimiter {
		start++
	}
	if len(frames)-start < 6 {
		return jupyterMessage{}, errors.New("malformed message: it has too few parts")
	}
	signature, parts := frames[start+1], frames[start+2:start+6]
	if !hmac.Equal(signature, s.sign(parts)) {
		return jupyterMessage{}, errors.New("the message has a wrong signature")
	}
	var header, parent struct {
		ID   string `json:"msg_id"`
		Type string `json:"msg_type"`
	}
	if err := json.Unmarshal(parts[0], &header); err != nil {
		return jupyterMessage{}, fmt.Errorf("malformed header: %w", err)
	}
	// Kernels send {}, and some null, when there is no parent.
	if err := json.Unmarshal(parts[1], &parent); err != nil {
		return jupyterMessage{}, fmt.Errorf("malformed parent header: %w", err)
	}
	return jupyterMessage{header.Type, parent.ID, parts[3]}, nil
}

func (s jupyterSession) sign(parts [][]byte) []byte {
	mac := hmac.New(sha256.New, []byte(s.key))
	for _, part := range parts {
		mac.Write(part)
	}
	return []byte(hex.EncodeToString(mac.Sum(nil)))
}

// executeContent is the content of an execute_request. A silent one shows
// nothing and is not counted.
type executeContent struct {
	Code            string         `json:"code"`
	Silent          bool           `json:"silent"`
	StoreHistory    bool           `json:"store_history"`
	UserExpressions map[string]any `json:"user_expressions"`
	AllowStdin      bool           `json:"allow_stdin"`
	StopOnError     bool           `json:"stop_on_error"`
}

func newExecuteContent(code string, silent bool) executeContent {
	return executeContent{Code: code, Silent: silent, StoreHistory: !silent, UserExpressions: map[string]any{}}
}

// event is what a message on the publishing socket means to the client; ok is
// false for one that it has no line for. Progress that only replaces what was
// shown before is left out, as for Python.
func (m jupyterMessage) event() (e event, ok bool) {
	var content struct {
		Name      string                     `json:"name"`
		Text      string                     `json:"text"`
		Count     int64                      `json:"execution_count"`
		Data      map[string]json.RawMessage `json:"data"`
		Ename     string                     `json:"ename"`
		Evalue    string                     `json:"evalue"`
		Traceback []string                   `json:"traceback"`
	}
	switch m.kind {
	case "stream", "execute_input", "execute_result", "display_data", "error":
	default:
		return event{}, false
	}
	if err := json.Unmarshal(m.content, &content); err != nil {
		return event{}, false
	}
	switch m.kind {
	case "stream":
		kind := eventStdout
		if content.Name == "stderr" {
			kind = eventStderr
		}
		return event{Kind: kind, Text: content.Text}, content.Text != ""
	case "execute_input":
		return event{Kind: eventCount, Count: content.Count}, true
	case "error":
		return errorEvent(content.Ename, content.Evalue, content.Traceback), true
	}
	return event{Kind: eventResult, Bundle: content.Data, Main: m.kind == "execute_result"}, len(content.Data) > 0
}
