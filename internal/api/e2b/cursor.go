package e2b

import (
	"cmp"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// cursor is the place of one element in a list: when it began and its id, which
// tells apart what began together. The last one of a page is where the next page
// begins, though the element may be gone by then. The zero cursor is the
// beginning.
type cursor struct {
	at time.Time
	id string
}

// String is the token clients hand back.
func (c cursor) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(c.at.Format(time.RFC3339Nano) + "__" + c.id))
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
	begun, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return cursor{}, badCursor()
	}
	return cursor{begun, id}, nil
}

func badCursor() error {
	return invalid("nextToken is none of this server's: take it from the header X-Next-Token of the page before")
}

// parsePaging reads which page of a list is wanted.
func parsePaging(v url.Values) (limit int, after cursor, err error) {
	if limit, err = parseLimit(v.Get("limit")); err != nil {
		return 0, cursor{}, err
	}
	after, err = parseCursor(v.Get("nextToken"))
	return limit, after, err
}

// compare orders cursors by time, then by id.
func (c cursor) compare(other cursor, ascending bool) int {
	order := cmp.Or(c.at.Compare(other.at), cmp.Compare(c.id, other.id))
	if ascending {
		return order
	}
	return -order
}

// page answers one page of a list in order: what comes after a cursor, limit at
// most. It says in the header where the next one begins.
func page[T any](w http.ResponseWriter, all []T, place func(T) cursor, after cursor, ascending bool, limit int) []T {
	slices.SortFunc(all, func(x, y T) int { return place(x).compare(place(y), ascending) })
	if after.id != "" {
		all = slices.DeleteFunc(all, func(x T) bool { return after.compare(place(x), ascending) >= 0 })
	}
	if len(all) > limit {
		all = all[:limit]
		w.Header().Set("X-Next-Token", place(all[limit-1]).String())
	}
	return all
}
