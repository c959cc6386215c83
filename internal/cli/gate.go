package cli

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/api/auth"
	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/event"
	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
	"github.com/tombolo-dev/tombolo/internal/guard"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/rules"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// gate is what decides on actions and keeps the record of it.
type gate struct {
	guard       *guard.Guard
	audit       *audit.Log
	interceptor *intercept.Interceptor
	desk        *approval.Desk
	refusals    *event.Refusals
	secrets     *secret.Vault
	stopSecrets func()
	stopRecords func() // of approvals; after the desk
	// bundle is what sandboxes trust, PEM; empty leaves what their images trust.
	bundle []byte
}

// openGate opens the gate of a data folder. keep is for the one process, the server,
// whose sandboxes outlive it and who can be asked; the caller closes the gate.
func openGate(ctx context.Context, c config, records *sqlite.Store, events *event.Recorder, keep bool, log *slog.Logger) (_ *gate, err error) {
	g := &gate{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	authority, err := intercept.OpenAuthority(c.Data)
	if err != nil {
		return g, err
	}
	roots, err := g.readBundle(c.CABundle)
	if err != nil {
		return g, err
	}
	if len(g.bundle) > 0 {
		g.bundle = append(append(bytes.TrimSpace(g.bundle), '\n'), authority.PEM()...)
	}
	if g.audit, err = openAudit(c, log, keep); err != nil {
		return g, err
	}
	g.interceptor = intercept.New(intercept.Config{Authority: authority, Roots: roots, Log: log})
	patience, err := approvalPatience(c)
	if err != nil {
		return g, err
	}
	var audited func(approval.Hold)
	audited, g.stopRecords = handOver(recordHolds(g.audit))
	told := recordApprovals(records, events, log)
	if g.desk, err = approval.Open(ctx, approval.Config{Store: records, Log: log, Patience: patience, OnChange: func(h approval.Hold) {
		audited(h)
		told(h)
	}}); err != nil {
		return g, err
	}
	if g.secrets, err = openVault(ctx, c, records, log); err != nil {
		return g, err
	}
	g.watchSecrets(ctx)
	g.refusals = event.NewRefusals(events)
	proxy, err := parseProxy(c.EgressProxy)
	if err != nil {
		return g, err
	}
	key, err := audit.ReadKey(audit.KeyFile(c.Data))
	if err != nil {
		return g, err
	}
	g.guard, err = guard.New(ctx, guard.Config{
		Proxy: proxy, DigestKey: key.For("digests"),
		Store: records, Tables: (&rules.Keeper{Store: records}).Tables, Audit: g.audit, Desk: g.desk, Vault: g.secrets, Interceptor: g.interceptor, Actor: actorOf, Log: log,
		OnRefusal: tellRefusals(g.refusals), OnStray: g.tellStray,
		Inside: func(n *guard.Network) http.Handler { return n.Page(authority.PEM()) },
	})
	return g, err
}

// watchSecrets follows what other processes do to secrets until the gate is closed.
func (g *gate) watchSecrets(ctx context.Context) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.secrets.Watch(ctx)
	}()
	g.stopSecrets = func() { stop(); <-done }
}

// tellStray tells webhooks of placeholders that went astray.
func (g *gate) tellStray(s policy.Subject, stray guard.Stray) {
	what := fmt.Sprintf("secret %s in %s to %s", stray.Secret, stray.Place, stray.Host)
	g.refusals.Tell(eventOf(event.SecretMisplaced, s, what), what, func(n event.Repeats) any {
		return struct {
			guard.Stray
			event.Repeats
		}{stray, n}
	})
}

func eventOf(kind sandbox.EventKind, s policy.Subject, detail string) sandbox.Event {
	return sandbox.Event{
		Kind: kind, Time: time.Now().UTC(), Detail: detail,
		Info: sandbox.Info{ID: s.SandboxID, KeyID: s.KeyID, TemplateID: s.TemplateID, TemplateName: s.TemplateName},
	}
}

// readBundle reads the machine's trust store; nil roots are those of the system.
func (g *gate) readBundle(path string) (roots *x509.CertPool, err error) {
	if path == "" {
		return nil, nil
	}
	if g.bundle, err = os.ReadFile(path); err != nil {
		return nil, fmt.Errorf("read CA bundle: %w", err)
	}
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(g.bundle)
	return roots, nil
}

// Close ends what the gate has, networks first.
func (g *gate) Close() error {
	var errs []error
	if g.stopSecrets != nil {
		g.stopSecrets()
	}
	if g.desk != nil {
		g.desk.Close()
	}
	if g.stopRecords != nil {
		g.stopRecords()
	}
	if g.refusals != nil {
		g.refusals.Close()
	}
	if g.interceptor != nil {
		errs = append(errs, g.interceptor.Close())
	}
	if g.audit != nil {
		errs = append(errs, g.audit.Close())
	}
	return errors.Join(errs...)
}

// maxHandedOver is how many values wait for who takes them.
const maxHandedOver = 1024

// handOver has take called for each value that is given, in order, by a goroutine of its
// own, so that who gives does not wait while the audit log cannot be written. Stop returns
// when all are taken; what is given later is dropped.
func handOver[T any](take func(T)) (give func(T), stop func()) {
	var giving sync.RWMutex // held for reading while a value is given
	stopped := false
	values, done := make(chan T, maxHandedOver), make(chan struct{})
	go func() {
		defer close(done)
		for v := range values {
			take(v)
		}
	}()
	give = func(v T) {
		giving.RLock()
		defer giving.RUnlock()
		if !stopped {
			values <- v
		}
	}
	return give, func() {
		giving.Lock()
		stopped = true
		close(values)
		giving.Unlock()
		<-done
	}
}

// actorOf tells who makes the request of a context, for records.
func actorOf(ctx context.Context) string {
	if p := auth.From(ctx); p.IsOwner() || p.KeyID() != "" {
		return p.Actor()
	}
	return ""
}
