package e2b

import (
	"cmp"
	"encoding/base64"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// cursor is the place in a list after which the next page begins: that of the
// last sandbox shown, which may have ended meanwhile. The zero cursor is the
// beginning.
type cursor struct {
	startedAt time.Time
	id        string
}

func cursorAt(info sandbox.Info) cursor { return cursor{info.StartedAt.UTC(), info.ID} }

// String is the token clients hand back.
func (c cursor) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(c.startedAt.Format(time.RFC3339Nano) + "__" + c.id))
}

func parseCursor(token string) (cursor, error) {
	if token == "" {
		return cursor{}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(token, "="))
	if err != nil {
		return cursor{}, badCursor()
	}
	at, id, ok := strings.Cut(string(raw), "__")
	if !ok || id == "" {
		return cursor{}, badCursor()
	}
	startedAt, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return cursor{}, badCursor()
	}
	return cursor{startedAt, id}, nil
}

func badCursor() error {
	return invalid("nextToken is none of this server's: take it from the header X-Next-Token of the page before")
}

// precedes tells whether a sandbox comes after the cursor.
func (c cursor) precedes(info sandbox.Info, ascending bool) bool {
	if c.id == "" {
		return true
	}
	return directed(cmp.Or(c.startedAt.Compare(info.StartedAt), cmp.Compare(c.id, info.ID)), ascending) < 0
}
