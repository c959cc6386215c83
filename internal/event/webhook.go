package event

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// The bounds of webhooks.
const (
	MaxWebhooks  = 10 // of a key
	maxName      = 128
	maxURL       = 2048
	minSecret    = 8
	maxSecret    = 256
	testPatience = 2 * attemptTimeout
)

// Errors a dialect decides on.
var (
	// ErrNotFound: the key has no webhook with this id.
	ErrNotFound = errors.New("webhook not found")
	// ErrFull: the key has MaxWebhooks webhooks.
	ErrFull = fmt.Errorf("a key may have %d webhooks; delete one first", MaxWebhooks)
)

// Webhooks are the rules by which webhooks are made and changed. Where a method
// takes a key, the id of another key's webhook is ErrNotFound; an empty key is the
// machine's owner, who sees all. Safe for concurrent use.
type Webhooks struct {
	store  store.Store
	sender *Sender
}

// NewWebhooks makes the rules over a store. sender makes the test deliveries and
// knows which destinations are allowed.
func NewWebhooks(s store.Store, sender *Sender) *Webhooks {
	return &Webhooks{store: s, sender: sender}
}

// Spec is what a caller sets of a webhook; nil leaves a field as it is.
type Spec struct {
	Name    *string
	URL     *string
	Kinds   *[]string
	Secret  *string
	Enabled *bool
}

// Create makes a webhook for a key, or for the events of all keys where keyID is
// empty; Enabled may be nil and means true. Errors:
// *sandbox.InvalidError, ErrFull.
func (h *Webhooks) Create(ctx context.Context, keyID string, spec Spec) (store.Webhook, error) {
	w := store.Webhook{ID: uuid.NewString(), KeyID: keyID, Enabled: true, CreatedAt: time.Now().UTC().Truncate(time.Microsecond)}
	// What is missing is refused as if it were empty.
	spec.Name, spec.URL = cmp.Or(spec.Name, new(string)), cmp.Or(spec.URL, new(string))
	spec.Kinds, spec.Secret = cmp.Or(spec.Kinds, new([]string)), cmp.Or(spec.Secret, new(string))
	if err := h.apply(spec, &w); err != nil {
		return store.Webhook{}, err
	}
	err := h.store.AddWebhook(ctx, w, MaxWebhooks)
	if errors.Is(err, store.ErrFull) {
		return store.Webhook{}, ErrFull
	}
	return w, err
}

// List returns a key's webhooks, oldest first.
func (h *Webhooks) List(ctx context.Context, keyID string) ([]store.Webhook, error) {
	return h.store.Webhooks(ctx, keyID)
}

// Get finds a webhook.
func (h *Webhooks) Get(ctx context.Context, keyID, id string) (store.Webhook, error) {
	w, err := h.store.Webhook(ctx, id)
	if errors.Is(err, store.ErrNotFound) || (err == nil && !owns(keyID, w)) {
		return store.Webhook{}, ErrNotFound
	}
	return w, err
}

// Update changes a webhook. A change of address, secret or state forgets its
// failures. Errors: *sandbox.InvalidError, ErrNotFound.
func (h *Webhooks) Update(ctx context.Context, keyID, id string, spec Spec) (store.Webhook, error) {
	w, err := h.store.UpdateWebhook(ctx, id, func(w *store.Webhook) error {
		if !owns(keyID, *w) {
			return ErrNotFound
		}
		return h.apply(spec, w)
	})
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, ErrNotFound) {
		return store.Webhook{}, ErrNotFound
	}
	return w, err
}

// Delete removes a webhook, with what waits for it and its log.
func (h *Webhooks) Delete(ctx context.Context, keyID, id string) error {
	if _, err := h.Get(ctx, keyID, id); err != nil {
		return err
	}
	err := h.store.DeleteWebhook(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return ErrNotFound
	}
	return err
}

// Deliveries lists what is to be sent to f.WebhookID and what was, newest first.
func (h *Webhooks) Deliveries(ctx context.Context, keyID string, f store.DeliveryFilter) ([]store.Delivery, error) {
	if _, err := h.Get(ctx, keyID, f.WebhookID); err != nil {
		return nil, err
	}
	return h.store.Deliveries(ctx, f)
}

// Test sends one event of [KindTest] at once, whether the webhook is enabled or
// not, and tells what came of it. It is not tried again and not in the log.
func (h *Webhooks) Test(ctx context.Context, keyID, id string) (store.Attempt, error) {
	w, err := h.Get(ctx, keyID, id)
	if err != nil {
		return store.Attempt{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, testPatience)
	defer cancel()
	now := time.Now().UTC()
	e := store.Event{ID: uuid.NewString(), Kind: KindTest, At: now, KeyID: w.KeyID, StartedAt: now, EndAt: now, Detail: "a test of the webhook"}
	attempt, _ := h.sender.send(ctx, store.DueDelivery{
		Delivery: store.Delivery{ID: uuid.NewString(), WebhookID: w.ID, EventID: e.ID, EventKind: e.Kind},
		Event:    e, Webhook: w,
	})
	return attempt, ctx.Err()
}

func owns(keyID string, w store.Webhook) bool { return keyID == "" || keyID == w.KeyID }

// apply checks a spec and puts what it sets into w.
func (h *Webhooks) apply(spec Spec, w *store.Webhook) error {
	if spec.Name != nil {
		if err := checkText("name", *spec.Name, 1, maxName); err != nil {
			return err
		}
		w.Name = *spec.Name
	}
	if spec.Kinds != nil {
		kinds, err := checkKinds(*spec.Kinds)
		if err != nil {
			return err
		}
		w.Kinds = kinds
	}
	if spec.URL != nil {
		if err := h.checkURL(*spec.URL); err != nil {
			return err
		}
		w.URL = *spec.URL
	}
	if spec.Secret != nil {
		if err := checkText("signature secret", *spec.Secret, minSecret, maxSecret); err != nil {
			return err
		}
		w.Secret = *spec.Secret
	}
	if spec.Enabled != nil {
		w.Enabled = *spec.Enabled
	}
	if spec.URL != nil || spec.Secret != nil || spec.Enabled != nil {
		w.DisabledReason, w.Failures, w.FailingSince = "", 0, time.Time{}
	}
	return nil
}

func checkText(what, s string, shortest, longest int) error {
	if len(s) < shortest || len(s) > longest {
		return invalid("the webhook's %s must have %d to %d bytes, not %d", what, shortest, longest, len(s))
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		return invalid("the webhook's %s must have no control characters", what)
	}
	return nil
}

func checkKinds(kinds []string) ([]string, error) {
	if len(kinds) == 0 {
		return nil, invalid("the webhook wants no events: name one at least")
	}
	var unique []string
	for _, kind := range kinds {
		if !slices.Contains(Kinds, kind) {
			return nil, invalid("there are no events of the kind %.64q; there are %s", kind, strings.Join(Kinds, ", "))
		}
		if !slices.Contains(unique, kind) {
			unique = append(unique, kind)
		}
	}
	return unique, nil
}

// checkURL judges what can be judged before a name is looked up; the address that
// is connected to is judged again each time.
func (h *Webhooks) checkURL(text string) error {
	if err := checkText("url", text, 1, maxURL); err != nil {
		return err
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return invalid("the webhook's url is none: %s", errors.Unwrap(err))
	case u.Scheme != "http" && u.Scheme != "https":
		return invalid("the webhook's url must begin with https:// or http://")
	case u.Hostname() == "":
		return invalid("the webhook's url names no host")
	case u.User != nil:
		return invalid("the webhook's url must hold no user and password: everybody who may read the webhook would see them")
	case u.Fragment != "":
		return invalid("the webhook's url must have no fragment (#…): it would not be sent")
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		if why := h.sender.config.Refuse(addr); why != "" {
			return invalid("the webhook's url: %s", refusal(addr, why))
		}
	}
	return nil
}

func invalid(format string, args ...any) error {
	return &sandbox.InvalidError{Message: fmt.Sprintf(format, args...)}
}

// Keep makes the webhook with this id, of all keys, what spec says; nil leaves none. It is
// for one that the server's settings name. Errors: *sandbox.InvalidError.
func (h *Webhooks) Keep(ctx context.Context, id string, spec *Spec) error {
	if spec == nil {
		err := h.store.DeleteWebhook(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	}
	_, err := h.store.UpdateWebhook(ctx, id, func(w *store.Webhook) error {
		if w.URL == *spec.URL && w.Secret == *spec.Secret && slices.Equal(w.Kinds, *spec.Kinds) && w.Enabled {
			return nil // its failures still count
		}
		return h.apply(*spec, w)
	})
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	w := store.Webhook{ID: id, CreatedAt: time.Now().UTC().Truncate(time.Microsecond)}
	if err := h.apply(*spec, &w); err != nil {
		return err
	}
	return h.store.AddWebhook(ctx, w, MaxWebhooks)
}
