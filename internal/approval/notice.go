package approval

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// Notice is what programs are told of a hold, those that post it in a chat above
// all: what waits, in words, and how it is answered.
type Notice struct {
	ID        string         `json:"id"`
	State     State          `json:"state"`
	Action    string         `json:"action"` // in words
	Kind      policy.Kind    `json:"kind"`
	Hash      string         `json:"hash"`
	Subject   policy.Subject `json:"subject"`
	Rule      string         `json:"rule"`
	Reason    string         `json:"reason,omitempty"`
	CreatedAt time.Time      `json:"createdAt"`
	Deadline  time.Time      `json:"deadline"`
	Count     int            `json:"count"`
	Proposed  *Proposal      `json:"proposed,omitempty"`
	Answer    *Answer        `json:"answer,omitempty"`
	// Respond says how a pending one is answered, with the key of an approver.
	Respond *Respond `json:"respond,omitempty"`
}

// Respond is the request that approves an action once. See the API for what else an
// answer can say.
type Respond struct {
	Method string      `json:"method"`
	Path   string      `json:"path"`
	Body   RespondBody `json:"body"`
}

// RespondBody is its body; Approve false denies.
type RespondBody struct {
	Approve bool   `json:"approve"`
	Hash    string `json:"hash"`
}

// Notice is the notice of a hold as it is.
func (h Hold) Notice() Notice {
	n := Notice{
		ID: h.ID, State: h.State, Action: h.Action.String(), Kind: h.Action.Kind, Hash: h.Hash, Subject: h.Subject,
		Rule: h.Rule, Reason: h.Reason, CreatedAt: h.CreatedAt, Deadline: h.Deadline, Count: h.Count,
		Proposed: h.Proposed, Answer: h.Answer,
	}
	if h.State == Pending {
		n.Respond = &Respond{
			Method: http.MethodPost, Path: "/tombolo/v1/approvals/" + url.PathEscape(h.ID) + "/answer", Body: RespondBody{Approve: true, Hash: h.Hash},
		}
	}
	return n
}

// JSON writes a notice, with <, > and & as they are.
func (n Notice) JSON() (json.RawMessage, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(n)
	return bytes.TrimSpace(b.Bytes()), err
}
