package intercept

import (
	"errors"
	"net/http"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

func scrubWebSocket(res *http.Response, s gateway.Scrubber) error {
	return errors.New("it opened a WebSocket, and those cannot be looked through for secrets")
}
