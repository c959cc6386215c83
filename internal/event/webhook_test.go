package event_test

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/event"
	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

func TestWebhookThatIsWrongIsRefused(t *testing.T) {
	w := newWorld(t, options{refuse: gateway.NewPublic().Refuses})
	good := spec("https://example.com/hook")
	hook, err := w.webhooks.Create(t.Context(), "alice", good)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		spec event.Spec
		want string
	}{
		"no name":           {event.Spec{Name: ptr("")}, "name"},
		"long name":         {event.Spec{Name: ptr(strings.Repeat("a", 129))}, "name"},
		"control in name":   {event.Spec{Name: ptr("a\nb")}, "control"},
		"no url":            {event.Spec{URL: ptr("")}, "url"},
		"long url":          {event.Spec{URL: ptr("https://example.com/" + strings.Repeat("a", 2048))}, "url"},
		"no scheme":         {event.Spec{URL: ptr("example.com/hook")}, "https://"},
		"other scheme":      {event.Spec{URL: ptr("file:///etc/passwd")}, "https://"},
		"no host":           {event.Spec{URL: ptr("https:///hook")}, "host"},
		"no host, but port": {event.Spec{URL: ptr("https://:443/hook")}, "host"},
		"bad port":          {event.Spec{URL: ptr("https://example.com:99x/")}, "port"},
		"password":          {event.Spec{URL: ptr("https://me:pass@example.com/")}, "password"},
		"fragment":          {event.Spec{URL: ptr("https://example.com/#a")}, "fragment"},
		"loopback":          {event.Spec{URL: ptr("http://127.0.0.1:80/")}, "loopback"},
		"loopback as IPv6":  {event.Spec{URL: ptr("http://[::ffff:127.0.0.1]/")}, "loopback"},
		"metadata":          {event.Spec{URL: ptr("http://169.254.169.254/latest")}, "link-local"},
		"private":           {event.Spec{URL: ptr("http://192.168.1.1/")}, "private"},
		"short secret":      {event.Spec{Secret: ptr("1234567")}, "secret"},
		"long secret":       {event.Spec{Secret: ptr(strings.Repeat("s", 257))}, "secret"},
		"no events":         {event.Spec{Kinds: &[]string{}}, "no events"},
		"unknown events":    {event.Spec{Kinds: &[]string{"created", "exploded"}}, "exploded"},
		"test events":       {event.Spec{Kinds: &[]string{event.KindTest}}, "test"},
	} {
		t.Run(name, func(t *testing.T) {
			var invalid *sandbox.InvalidError
			_, err := w.webhooks.Update(t.Context(), "alice", hook.ID, test.spec)
			require.ErrorAs(t, err, &invalid)
			require.Contains(t, invalid.Message, test.want)
			require.NotContains(t, invalid.Message, "me:pass")
		})
	}
	after, err := w.webhooks.Get(t.Context(), "alice", hook.ID)
	require.NoError(t, err)
	require.Equal(t, hook, after, "what was refused changed nothing")
	_, err = w.webhooks.Create(t.Context(), "alice", event.Spec{})
	require.ErrorContains(t, err, "name", "what is missing is refused too")
}

func TestWebhooksOfOthersAreNotFound(t *testing.T) {
	w := newWorld(t, options{})
	hook := w.webhook("https://example.com")
	ctx := t.Context()
	for name, try := range map[string]func(key string) error{
		"get":    func(key string) error { _, err := w.webhooks.Get(ctx, key, hook.ID); return err },
		"update": func(key string) error { _, err := w.webhooks.Update(ctx, key, hook.ID, event.Spec{}); return err },
		"deliveries": func(key string) error {
			_, err := w.webhooks.Deliveries(ctx, key, store.DeliveryFilter{WebhookID: hook.ID, Most: 1})
			return err
		},
		"delete": func(key string) error { return w.webhooks.Delete(ctx, key, hook.ID) },
	} {
		require.ErrorIs(t, try("bob"), event.ErrNotFound, name)
	}
	_, err := w.webhooks.Test(ctx, "bob", hook.ID)
	require.ErrorIs(t, err, event.ErrNotFound)
	require.NoError(t, w.webhooks.Delete(ctx, "", hook.ID), "the machine's owner may")
	require.ErrorIs(t, w.webhooks.Delete(ctx, "alice", hook.ID), event.ErrNotFound)
}

func TestWebhooksOfAKeyAreLimited(t *testing.T) {
	w := newWorld(t, options{})
	for range event.MaxWebhooks {
		w.webhook("https://example.com")
	}
	_, err := w.webhooks.Create(t.Context(), "alice", spec("https://example.com"))
	require.ErrorIs(t, err, event.ErrFull)
	_, err = w.webhooks.Create(t.Context(), "bob", spec("https://example.com"))
	require.NoError(t, err)
}

func TestSecretIsNeverGivenBack(t *testing.T) {
	w := newWorld(t, options{})
	hook := w.webhook("https://example.com")
	list, err := w.webhooks.List(t.Context(), "alice")
	require.NoError(t, err)
	for _, v := range []any{hook, list} {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		require.NotContains(t, string(text), secret)
	}
}

func TestTestIsSentAtOnceAndKeptNowhere(t *testing.T) {
	w, r := newWorld(t, options{}), newReceiver(t, nil)
	hook := w.webhook(r.URL)
	_, err := w.webhooks.Update(t.Context(), "alice", hook.ID, event.Spec{Enabled: ptr(false)})
	require.NoError(t, err)

	attempt, err := w.webhooks.Test(t.Context(), "alice", hook.ID)
	require.NoError(t, err)
	require.Empty(t, attempt.Error)
	require.Equal(t, 204, attempt.StatusCode)
	require.Len(t, r.requests(), 1)
	require.Equal(t, event.KindTest, r.requests()[0].event.Kind)
	requireStandardSignature(t, r.requests()[0])

	r.set(code(500))
	attempt, err = w.webhooks.Test(t.Context(), "alice", hook.ID)
	require.NoError(t, err)
	require.Contains(t, attempt.Error, "500")
	require.Empty(t, w.deliveries(hook))
	events, err := w.store.Events(t.Context(), store.EventFilter{KeyID: "alice", Most: 1})
	require.NoError(t, err)
	require.Empty(t, events)
}

// TestNameIsJudgedByWhatItResolvesTo reaches for loopback by a name, which no look
// at the URL can tell.
func TestNameIsJudgedByWhatItResolvesTo(t *testing.T) {
	r := newReceiver(t, nil)
	address := strings.Replace(r.URL, "127.0.0.1", "localhost", 1)
	w := newWorld(t, options{refuse: gateway.NewPublic().Refuses, backoff: func(int) (time.Duration, bool) { return 0, false }})
	hook := w.webhook(address)
	w.record(sandbox.EventCreated, "i1")
	d := w.await(hook, "the delivery is given up", in(store.Failed))
	require.Contains(t, d.Attempts[0].Error, "loopback")
	require.Contains(t, d.Attempts[0].Error, "--webhook-allow-private", "it says what to do")
	require.Empty(t, r.requests())

	w = newWorld(t, options{refuse: event.AllowPrivate(gateway.NewPublic().Refuses)})
	hook = w.webhook(address)
	w.record(sandbox.EventCreated, "i1")
	w.await(hook, "the event is delivered", in(store.Delivered))
}

// TestRedirectToLoopbackIsNoWayIn has a receiver that may be reached point to one
// that may not.
func TestRedirectToLoopbackIsNoWayIn(t *testing.T) {
	inside := newReceiver(t, nil)
	outside := newReceiver(t, func(rw http.ResponseWriter, q *http.Request) { http.Redirect(rw, q, inside.URL, http.StatusFound) })
	w := newWorld(t, options{})
	attempt, err := w.webhooks.Test(t.Context(), "alice", w.webhook(outside.URL).ID)
	require.NoError(t, err)
	require.Equal(t, 302, attempt.StatusCode)
	require.NotEmpty(t, attempt.Error)
	require.Empty(t, inside.requests())
}

func TestAllowedAddresses(t *testing.T) {
	public := gateway.NewPublic().Refuses
	private := event.AllowPrivate(public)
	for addr, test := range map[string]struct{ public, private bool }{
		"8.8.8.8":                  {true, true},
		"2001:4860:4860::8888":     {true, true},
		"127.0.0.1":                {false, true},
		"127.8.9.1":                {false, true},
		"::1":                      {false, true},
		"::ffff:127.0.0.1":         {false, true},
		"10.1.2.3":                 {false, true},
		"172.31.255.255":           {false, true},
		"192.168.1.1":              {false, true},
		"fd12:3456::1":             {false, true},
		"::ffff:10.1.2.3":          {false, true},
		"169.254.169.254":          {false, false},
		"::ffff:169.254.169.254":   {false, false},
		"64:ff9b::169.254.169.254": {false, false},
		"64:ff9b::10.0.0.1":        {false, false},
		"2002:7f00:1::":            {false, false},
		"100.100.100.200":          {false, false},
		"fd00:ec2::254":            {false, false},
		"fd20:ce::254":             {false, false},
		"fe80::1":                  {false, false},
		"fe80::1%eth0":             {false, false},
		"0.0.0.0":                  {false, false},
		"::":                       {false, false},
		"224.0.0.1":                {false, false},
		"255.255.255.255":          {false, false},
		"ff02::1":                  {false, false},
	} {
		a := netip.MustParseAddr(addr)
		require.Equal(t, test.public, public(a) == "", "%s by default: %s", addr, public(a))
		require.Equal(t, test.private, private(a) == "", "%s with private ones allowed: %s", addr, private(a))
	}
}
