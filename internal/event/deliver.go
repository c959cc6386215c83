package event

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store"
)

const (
	// maxAtOnce is how many deliveries are under way at once, perWebhook how many of
	// them to one webhook. One that failed last gets one at a time.
	maxAtOnce, perWebhook = 64, 4
	// orderedTries is how often a delivery is tried before later ones of the same
	// sandbox overtake it.
	orderedTries = 3
	// lookEvery is how often the queue is looked at for what another process changed.
	lookEvery = 15 * time.Second

	maxTries     = 8
	firstBackoff = 5 * time.Second
	backoffBase  = 4

	// A webhook is disabled when it failed for disableAfter, and disableTries times at
	// least.
	disableAfter = 3 * 24 * time.Hour
	disableTries = 10
)

// Backoff says how long to wait after a delivery failed that many times, and
// whether to try again at all: 8 times within about 8 hours, each wait four times
// the one before, more or less by a quarter so that what failed together does not
// come back together.
func Backoff(failed int) (wait time.Duration, again bool) {
	if failed >= maxTries {
		return 0, false
	}
	wait = firstBackoff
	for range failed - 1 {
		wait *= backoffBase
	}
	return wait*3/4 + rand.N(wait/2), true
}

// DelivererConfig is what a deliverer works with. Backoff and OnAttempt may be nil.
type DelivererConfig struct {
	Store    store.Store
	Sender   *Sender
	Recorder *Recorder
	Log      *slog.Logger
	Backoff  func(failed int) (wait time.Duration, again bool)
	// OnAttempt is told of each attempt, delivered or not.
	OnAttempt func(store.Attempt)
}

// Deliverer sends events to webhooks. One at a time works on a store.
//
// # Life of a delivery
//
//  1. Recorder.Record stores it with its event, pending.
//  2. The deliverer finds it due and sends it. A delivery is written down as done
//     only after the answer, so one that a crash interrupted is sent again: a
//     receiver may get it twice, with the same id.
//  3. An answer of 2xx ends it as delivered. After anything else it is due again
//     after a wait, the receiver's Retry-After at least, and after the last attempt
//     it ends as failed. 410 Gone disables the webhook.
//  4. Deliveries of one sandbox to one webhook go one after the other; one that
//     failed orderedTries times is overtaken.
type Deliverer struct {
	config DelivererConfig
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when the loop has ended
	drain  chan struct{} // closed to end it when nothing is due
	once   sync.Once     // closes drain

	ended  chan struct{} // an attempt has ended
	mu     sync.Mutex
	flying map[string]string    // webhooks by delivery
	landed []string             // of flying, those that have ended since the queue was read
	held   map[string]time.Time // webhooks that asked to be left alone, and until when
}

// NewDeliverer starts to deliver what is queued, until Close.
func NewDeliverer(c DelivererConfig) *Deliverer {
	if c.Backoff == nil {
		c.Backoff = Backoff
	}
	d := &Deliverer{
		config: c, done: make(chan struct{}), drain: make(chan struct{}), ended: make(chan struct{}, 1),
		flying: map[string]string{}, held: map[string]time.Time{},
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	go d.run()
	return d
}

// Close delivers what is due and ends. When ctx ends first, what is under way is
// broken off and sent again by the next deliverer.
func (d *Deliverer) Close(ctx context.Context) {
	d.once.Do(func() { close(d.drain) })
	select {
	case <-d.done:
	case <-ctx.Done():
		d.cancel()
		<-d.done
	}
	d.cancel()
	d.config.Sender.Close()
}

func (d *Deliverer) run() {
	defer close(d.done)
	var work sync.WaitGroup
	defer work.Wait()
	drain, draining := d.drain, false
	for {
		wait := d.start(&work)
		if d.ctx.Err() != nil || (draining && d.idle()) {
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-d.ctx.Done():
		case <-d.config.Recorder.queued:
		case <-d.ended:
		case <-drain:
			drain, draining = nil, true
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (d *Deliverer) idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.flying) == 0
}

// start begins what is due and says when to look again.
func (d *Deliverer) start(work *sync.WaitGroup) (wait time.Duration) {
	// What ended while the queue is read may still be in what was read as due, so it
	// counts as under way until the queue is read the next time.
	d.mu.Lock()
	for _, id := range d.landed {
		delete(d.flying, id)
	}
	d.landed = nil
	d.mu.Unlock()
	now := time.Now()
	due, next, err := d.config.Store.DueDeliveries(d.ctx, now, perWebhook, orderedTries)
	if err != nil {
		if d.ctx.Err() == nil {
			d.config.Log.Error("what is due to webhooks cannot be read", "error", err)
		}
		return lookEvery
	}
	// Receivers that answer come first: those that let us wait must not use up the
	// places.
	slices.SortStableFunc(due, func(a, b store.DueDelivery) int { return min(a.Webhook.Failures, 1) - min(b.Webhook.Failures, 1) })
	for _, delivery := range due {
		if d.take(delivery, now) {
			work.Go(func() {
				d.attempt(delivery)
				d.release(delivery.ID)
			})
		}
	}
	return d.until(now, next)
}

// take enters a delivery as under way if it may be.
func (d *Deliverer) take(delivery store.DueDelivery, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, flies := d.flying[delivery.ID]; flies || len(d.flying) >= maxAtOnce || now.Before(d.held[delivery.WebhookID]) {
		return false
	}
	most := perWebhook
	if delivery.Webhook.Failures > 0 {
		most = 1
	}
	for _, webhook := range d.flying {
		if webhook == delivery.WebhookID {
			most--
		}
	}
	if most <= 0 {
		return false
	}
	d.flying[delivery.ID] = delivery.WebhookID
	return true
}

func (d *Deliverer) release(id string) {
	d.mu.Lock()
	d.landed = append(d.landed, id)
	d.mu.Unlock()
	notify(d.ended)
}

// until says how long nothing can become due: next is when the next delivery's
// time comes.
func (d *Deliverer) until(now, next time.Time) time.Duration {
	wait := lookEvery
	if !next.IsZero() {
		wait = min(wait, next.Sub(now))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for webhook, until := range d.held {
		if !now.Before(until) {
			delete(d.held, webhook)
			continue
		}
		wait = min(wait, until.Sub(now))
	}
	return max(wait, time.Millisecond)
}

// attempt sends a delivery once and writes down what came of it.
func (d *Deliverer) attempt(delivery store.DueDelivery) {
	a, wait := d.config.Sender.send(d.ctx, delivery)
	if d.ctx.Err() != nil && a.Error != "" {
		return // broken off; the next deliverer sends it again
	}
	if d.config.OnAttempt != nil {
		d.config.OnAttempt(a)
	}
	if wait > 0 {
		d.mu.Lock()
		d.held[delivery.WebhookID] = time.Now().Add(wait)
		d.mu.Unlock()
	}
	var disabled string
	err := d.config.Store.UpdateDelivery(context.WithoutCancel(d.ctx), delivery.ID, func(record *store.Delivery, w *store.Webhook) {
		d.settle(record, a, wait)
		if w.URL == delivery.Webhook.URL {
			disabled = judge(w, a)
		}
	})
	switch {
	case errors.Is(err, store.ErrNotFound): // deleted meanwhile
	case err != nil:
		d.config.Log.Error("what came of a delivery was not written; it is sent again", "delivery", delivery.ID, "error", err)
		d.mu.Lock() // but not at once
		d.held[delivery.WebhookID] = time.Now().Add(lookEvery)
		d.mu.Unlock()
	case disabled != "":
		d.config.Log.Warn("a webhook was disabled", "webhook", delivery.WebhookID, "key", delivery.Webhook.KeyID, "reason", disabled)
	}
}

// settle writes an attempt into a delivery. wait is the least until the next.
func (d *Deliverer) settle(record *store.Delivery, a store.Attempt, wait time.Duration) {
	record.Attempts = append(record.Attempts, a)
	now := a.At.Add(a.Duration)
	if a.Error == "" {
		record.State, record.NextAt, record.EndedAt = store.Delivered, time.Time{}, now
		return
	}
	backoff, again := d.config.Backoff(len(record.Attempts))
	if !again {
		record.State, record.NextAt, record.EndedAt = store.Failed, time.Time{}, now
		return
	}
	record.NextAt = now.Add(max(wait, backoff))
}

// judge writes an attempt into a webhook's health. It returns why the webhook is
// disabled by it, or "".
func judge(w *store.Webhook, a store.Attempt) (disabled string) {
	if a.Error == "" {
		w.Failures, w.FailingSince = 0, time.Time{}
		return ""
	}
	w.Failures++
	if w.FailingSince.IsZero() {
		w.FailingSince = a.At
	}
	switch {
	case !w.Enabled:
		return ""
	case a.StatusCode == http.StatusGone:
		disabled = "the receiver answered 410 Gone: it wants no more"
	case w.Failures >= disableTries && a.At.Sub(w.FailingSince) >= disableAfter:
		disabled = fmt.Sprintf("every attempt since %s failed (%d); the last: %s", w.FailingSince.UTC().Format(time.RFC3339), w.Failures, a.Error)
	default:
		return ""
	}
	w.Enabled, w.DisabledReason = false, disabled
	return disabled
}
