package intercept

import (
	"encoding/json"
	"net/http"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// FailedHeader is in answers that come from here and are no refusals. It has the code
// of the answer.
const FailedHeader = "Tombolo-Failed"

// code says for programs why a request that was not refused has no answer of its
// destination's.
type code string

const (
	tooMany    code = "too-many"   // requests are under way
	noAnswer   code = "no-answer"  // came from the destination, or none that may be passed on
	unreadable code = "unreadable" // the answer would be, so the request was not sent
)

// refuse answers with a decision that denies.
func refuse(w http.ResponseWriter, status int, r gateway.Request, d gateway.Decision) {
	w.Header().Set(gateway.RefusedHeader, gateway.RefusedBy(d))
	send(w, status, gateway.RefusalBody(r, d))
}

// fail says why there is no answer of the destination's, in the form of a refusal.
func fail(w http.ResponseWriter, status int, c code, reason string) {
	w.Header().Set(FailedHeader, string(c))
	body, err := json.Marshal(struct {
		Error  code   `json:"error"`
		Reason string `json:"reason"`
	}{c, reason})
	if err != nil {
		panic(err) // strings only
	}
	send(w, status, append(body, '\n'))
}

func send(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}
