package e2b

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// maxPage is the most, and the default, of a page.
const maxPage = 100

// listV1 answers all running sandboxes, newest first.
func (a *api) listV1(w http.ResponseWriter, r *http.Request, k store.Key) error {
	metadata, err := parseMetadata(r.URL.Query().Get("metadata"))
	if err != nil {
		return err
	}
	infos := a.sandboxes.List(sandbox.Filter{KeyID: k.ID, States: wireRunning, Metadata: metadata})
	slices.SortFunc(infos, func(x, y sandbox.Info) int { return placeOf(x).compare(placeOf(y), false) })
	writeJSON(w, http.StatusOK, listedAll(infos))
	return nil
}

// listV2 answers a page of the sandboxes a query selects.
func (a *api) listV2(w http.ResponseWriter, r *http.Request, k store.Key) error {
	q, err := parseListQuery(r.URL.Query())
	if err != nil {
		return err
	}
	template, err := a.templateOf(r.Context(), k, q.template)
	if err != nil {
		return err
	}
	infos := a.sandboxes.List(sandbox.Filter{KeyID: k.ID, States: q.states, Metadata: q.metadata, Template: template})
	infos = slices.DeleteFunc(infos, func(i sandbox.Info) bool { return !i.StartedAt.After(q.startedAfter) })
	running := 0
	for _, info := range infos {
		if wireState(info.State) == sandbox.Running {
			running++
		}
	}
	w.Header().Set("X-Total-Running", strconv.Itoa(running))
	writeJSON(w, http.StatusOK, listedAll(page(w, infos, placeOf, q.after, q.ascending, q.limit)))
	return nil
}

// placeOf orders sandboxes by the start of their run.
func placeOf(info sandbox.Info) cursor { return cursor{info.StartedAt.UTC(), info.ID} }

func listedAll(infos []sandbox.Info) []listedSandbox {
	all := make([]listedSandbox, len(infos)) // an empty list is [], not null
	for i, info := range infos {
		all[i] = listed(info)
	}
	return all
}

type listQuery struct {
	states       []sandbox.State
	metadata     map[string]string
	template     string
	startedAfter time.Time
	ascending    bool
	limit        int
	after        cursor
}

func parseListQuery(v url.Values) (q listQuery, err error) {
	if q.states, err = parseStates(v["state"]); err != nil {
		return q, err
	}
	if q.metadata, err = parseMetadata(v.Get("metadata")); err != nil {
		return q, err
	}
	if q.startedAfter, err = parseTime(v.Get("startedAfter")); err != nil {
		return q, err
	}
	if q.ascending, err = parseOrder(v.Get("order")); err != nil {
		return q, err
	}
	if q.limit, q.after, err = parsePaging(v); err != nil {
		return q, err
	}
	q.template = v.Get("template")
	return q, nil
}

// templateOf is the template asked for, as the core knows it: with a tag the build
// that it points at.
func (a *api) templateOf(ctx context.Context, k store.Key, ref string) (string, error) {
	n, own := splitName(k, ref)
	if !own {
		return ref, nil // which none has
	}
	if !tagged(ref) {
		return n.Alias, nil
	}
	t, err := a.store.Template(ctx, n.Full())
	if errors.Is(err, store.ErrNotFound) {
		return ref, nil
	}
	return t.BuildID, err
}

// The core's states by what clients know of them. A sandbox on its way is shown
// as paused: it takes no requests.
var (
	wireRunning = []sandbox.State{sandbox.Running}
	wirePaused  = []sandbox.State{sandbox.Pausing, sandbox.Paused, sandbox.Resuming}
)

// wireState is the state clients are told.
func wireState(s sandbox.State) sandbox.State {
	if slices.Contains(wirePaused, s) {
		return sandbox.Paused
	}
	return s
}

// parseStates takes state=running,paused as well as one state a parameter; none
// means both.
func parseStates(values []string) ([]sandbox.State, error) {
	var states []sandbox.State
	for _, s := range strings.Split(strings.Join(values, ","), ",") {
		switch s {
		case "":
		case "running":
			states = append(states, wireRunning...)
		case "paused":
			states = append(states, wirePaused...)
		default:
			return nil, invalid("state %q: use running or paused", s)
		}
	}
	if len(states) == 0 {
		return slices.Concat(wireRunning, wirePaused), nil
	}
	return states, nil
}

// parseMetadata reads k=v&k2=v2. Clients escape keys and values, then each pair,
// then the whole; the query took the outermost off.
func parseMetadata(s string) (map[string]string, error) {
	if s == "" {
		return nil, nil
	}
	pairs, err := url.QueryUnescape(s)
	if err != nil {
		return nil, badMetadata()
	}
	metadata := map[string]string{}
	for pair := range strings.SplitSeq(pairs, "&") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, badMetadata()
		}
		if key, err = url.QueryUnescape(key); err != nil {
			return nil, badMetadata()
		}
		if value, err = url.QueryUnescape(value); err != nil {
			return nil, badMetadata()
		}
		metadata[key] = value
	}
	return metadata, nil
}

func badMetadata() error {
	return invalid("metadata must be pairs key=value joined by &, escaped as in a query")
}

func parseTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	// The '+' of an offset that was not escaped has become a space.
	t, err := time.Parse(time.RFC3339, strings.ReplaceAll(s, " ", "+"))
	if err != nil {
		return time.Time{}, invalid("startedAfter %q: use a time like 2026-01-02T03:04:05Z", s)
	}
	return t, nil
}

func parseOrder(s string) (ascending bool, err error) {
	switch s {
	case "", "desc":
		return false, nil
	case "asc":
		return true, nil
	}
	return false, invalid("order %q: use asc or desc", s)
}

func parseLimit(s string) (int, error) {
	if s == "" {
		return maxPage, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxPage {
		return 0, invalid("limit %q: use 1 to %d", s, maxPage)
	}
	return n, nil
}
