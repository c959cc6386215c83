package kernel

import (
	"encoding/json"
	"strings"
	"time"
)

// The lines of a run, as the E2B clients read them (models.py of the Python
// package e2b-code-interpreter 2.9, messaging of the npm package 2.8).

type countLine struct {
	Type  string `json:"type"`
	Count int64  `json:"execution_count"`
}

type outputLine struct {
	Type      string `json:"type"`
	Text      string `json:"text"`
	Timestamp int64  `json:"timestamp"` // nanoseconds since the epoch
}

type resultLine struct {
	Type       string                     `json:"type"`
	Text       json.RawMessage            `json:"text,omitempty"`
	HTML       json.RawMessage            `json:"html,omitempty"`
	Markdown   json.RawMessage            `json:"markdown,omitempty"`
	SVG        json.RawMessage            `json:"svg,omitempty"`
	PNG        json.RawMessage            `json:"png,omitempty"`
	JPEG       json.RawMessage            `json:"jpeg,omitempty"`
	PDF        json.RawMessage            `json:"pdf,omitempty"`
	LaTeX      json.RawMessage            `json:"latex,omitempty"`
	JSON       json.RawMessage            `json:"json,omitempty"`
	JavaScript json.RawMessage            `json:"javascript,omitempty"`
	Data       json.RawMessage            `json:"data,omitempty"`
	Chart      json.RawMessage            `json:"chart,omitempty"`
	Extra      map[string]json.RawMessage `json:"extra,omitempty"`
	Main       bool                       `json:"is_main_result"`
}

type errorLine struct {
	Type      string `json:"type"`
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

type bareLine struct {
	Type string `json:"type"`
}

// line encodes an event for the client; nil for one that has no line.
func line(e event, now time.Time) any {
	switch e.Kind {
	case eventCount:
		return countLine{"number_of_executions", e.Count}
	case eventStdout:
		return outputLine{"stdout", e.Text, now.UnixNano()}
	case eventStderr:
		return outputLine{"stderr", e.Text, now.UnixNano()}
	case eventResult:
		return newResultLine(e)
	case eventError:
		return errorLine{"error", e.Name, e.Value, e.Traceback}
	case eventDied:
		return errorLine{"error", "KernelDied", e.Value, e.Value}
	}
	return nil
}

func newResultLine(e event) resultLine {
	r := resultLine{Type: "result", Main: e.Main}
	named := map[string]*json.RawMessage{
		"text/plain":             &r.Text,
		"text/html":              &r.HTML,
		"text/markdown":          &r.Markdown,
		"image/svg+xml":          &r.SVG,
		"image/png":              &r.PNG,
		"image/jpeg":             &r.JPEG,
		"application/pdf":        &r.PDF,
		"text/latex":             &r.LaTeX,
		"application/json":       &r.JSON,
		"application/javascript": &r.JavaScript,
		dataMIME:                 &r.Data,
		chartMIME:                &r.Chart,
	}
	for mime, value := range e.Bundle {
		if len(value) == 0 || string(value) == "null" {
			continue
		}
		if field, ok := named[mime]; ok {
			*field = value
			continue
		}
		if r.Extra == nil {
			r.Extra = map[string]json.RawMessage{}
		}
		r.Extra[mime] = value
	}
	r.Text = unquoted(r.Text)
	return r
}

// unquoted takes the quotes off the text of a string value, as upstream does.
func unquoted(text json.RawMessage) json.RawMessage {
	if !strings.HasPrefix(string(text), `"'`) || !strings.HasSuffix(string(text), `'"`) || len(text) < 4 {
		return text
	}
	return json.RawMessage(`"` + string(text[2:len(text)-2]) + `"`)
}
