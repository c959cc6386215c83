package intercept

import (
	"encoding/json"
	"net/http"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// Headers of answers that come from here and not from the destination.
const (
	// RefusedHeader has the id of the decision, or "-" when it has none.
	RefusedHeader = "Tombolo-Refused"
	// FailedHeader is there when a request was not refused, but could not be answered.
	FailedHeader = "Tombolo-Failed"
)

// answer is the body of an answer that comes from here.
type answer struct {
	Error     string `json:"error"` // what happened, in words
	Reason    string `json:"reason,omitempty"`
	Rule      string `json:"rule,omitempty"`
	RequestID string `json:"requestId,omitempty"`
	Ask       string `json:"ask,omitempty"` // how to ask for what was refused
}

func refuse(w http.ResponseWriter, r gateway.Request, d gateway.Decision) {
	id := d.ID
	if id == "" {
		id = "-"
	}
	w.Header().Set(RefusedHeader, id)
	send(w, http.StatusForbidden, answer{
		Error:     "The network policy of this sandbox refused " + describe(r),
		Reason:    d.Reason,
		Rule:      d.Rule,
		RequestID: d.ID,
		Ask:       d.Ask,
	})
}

// fail says why there is no answer of the destination's.
func fail(w http.ResponseWriter, status int, what, reason string) {
	w.Header().Set(FailedHeader, "1")
	send(w, status, answer{Error: what, Reason: reason})
}

func send(w http.ResponseWriter, status int, a answer) {
	body, err := json.Marshal(a)
	if err != nil {
		panic(err) // strings only
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the client may be gone
}

// describe is a request in words, without its query.
func describe(r gateway.Request) string {
	scheme, usual := "http", uint16(80)
	if r.Encrypted {
		scheme, usual = "https", 443
	}
	at := r.Name
	if port := r.Destination.Port(); at == "" || port != usual {
		if at == "" {
			at = addrText(r.Destination.Addr())
		}
		at = hostPort(at, port)
	}
	return r.Method + " " + scheme + "://" + at + r.Path
}
