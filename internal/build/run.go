package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Steps that are none of the plan's, for messages and logs (the names are E2B's).
const (
	StepBase     = "base"
	StepFinalize = "finalize"
)

// FailedPrefix begins the line of a log that says why a build failed.
const FailedPrefix = "build failed: "

// StepError is why a build failed, in words for whoever asked for it.
type StepError struct {
	Step    string // StepBase, StepFinalize or the number of a step, from 1; empty for none
	Message string
	Err     error // what the machine said; may be nil
}

func (e *StepError) Error() string { return e.Message }
func (e *StepError) Unwrap() error { return e.Err }

// build is one run of a plan.
type build struct {
	b      *Builds
	record store.Build
	plan   Plan
	log    *journal
	lock   *os.File // held while it runs
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}

	stages  []*stage
	outside map[From]*stage         // images and templates that are only copied from, without Login
	images  map[From]image.Imported // that were brought in, without Login
	open    []*stage                // that have a workshop, the one used last at the end
	wrote   map[*stage]int64        // by those that had a workshop, bytes
	resting string                  // the folder of those that rest and have no layer; empty for none
	step    int                     // the last that was settled, from 1
	disk    int64                   // what the steps of all stages may write, bytes
	quota   sandbox.Quota           // of its key, since it runs
	release func()                  // of what it has of its key's quota; nil when that is nothing
	// seenBytes is what the variables take that steps see.
	seenBytes int
	used      []string // files under images/, some of them twice
}

// live takes a build from its start to its end.
func (r *build) live() {
	defer r.b.work.Done()
	err := r.wait()
	if err == nil {
		ctx, cancel := context.WithTimeoutCause(r.ctx, patience, &StepError{Message: fmt.Sprintf("the build took longer than %s", patience)})
		err = r.safely(ctx)
		if ctx.Err() != nil && err != nil {
			err = r.ended(context.Cause(ctx), err)
		}
		cancel()
		r.leave()
		r.b.turns.give(r.record.KeyID)
	}
	r.unuse()
	r.finish(err)
	r.b.mu.Lock()
	delete(r.b.live, r.record.ID)
	r.b.mu.Unlock()
	r.cancel(nil)
	close(r.done)
	select {
	case r.b.ended <- struct{}{}:
	default:
	}
}

// wait waits for the build's turn, and for room within the quota of its key.
func (r *build) wait() error {
	said := false
	var limited time.Time // since when the key has no room
	for {
		err := r.b.turns.take(r.ctx, r.record.KeyID, func() {
			if !said {
				r.log.say(LevelInfo, "", "waiting for other builds to end")
			}
			said = true
		})
		if err != nil {
			return r.ended(context.Cause(r.ctx), err)
		}
		err = r.admit()
		if err == nil {
			return nil
		}
		r.b.turns.give(r.record.KeyID)
		var limit *sandbox.LimitError
		isLimit := errors.As(err, &limit)
		if limited.IsZero() {
			limited = time.Now()
		}
		switch {
		case r.ctx.Err() != nil:
			return r.ended(context.Cause(r.ctx), err)
		case !isLimit:
			return err
		case time.Since(limited) > patience:
			return &StepError{Message: limit.Error(), Err: err}
		case !said:
			r.log.say(LevelInfo, "", "waiting: "+limit.Error())
		}
		said = true
		select {
		case <-time.After(admitEvery):
		case <-r.ctx.Done():
			return r.ended(context.Cause(r.ctx), r.ctx.Err())
		}
	}
}

// admitEvery is how often a build that its key has no room for looks for it.
const admitEvery = time.Second

// admit enters a build that has a turn as one that runs.
func (r *build) admit() error {
	record := r.record
	q, found, err := r.b.keyQuota(r.ctx, record.KeyID)
	if err != nil {
		return err
	}
	if !found {
		return &StepError{Message: keyDeleted}
	}
	r.quota = q
	left, err := r.b.keptRoom(r.ctx, q, store.Template{KeyID: record.KeyID, Name: record.Alias, Tags: record.Tags})
	if err != nil {
		return err
	}
	if left < 1 {
		return &StepError{Message: q.KeptLimit().Error()}
	}
	r.disk = min(buildDisk, left)
	if q != (sandbox.Quota{}) {
		t := store.Template{KeyID: record.KeyID, CPUs: record.CPUs, MemoryBytes: record.MemoryBytes, DiskBytes: record.DiskBytes}
		if r.release, err = r.b.config.Manager.Reserve(q, t); err != nil {
			return err
		}
	}
	err = r.update(func(b *store.Build) error {
		if !b.FinishedAt.IsZero() { // another process took it for one that nobody runs
			return &StepError{Message: b.Reason}
		}
		b.State = store.Building
		return nil
	})
	if errors.Is(err, store.ErrNotFound) {
		err = &StepError{Message: templateDeleted, Err: err}
	}
	if err != nil {
		r.leave()
	}
	return err
}

// keyQuota is that of the build's key as it is now.
func (b *Builds) keyQuota(ctx context.Context, keyID string) (q sandbox.Quota, found bool, err error) {
	if keyID == "" {
		return q, true, nil
	}
	keys, err := b.config.Store.Keys(ctx)
	for _, k := range keys {
		if k.ID == keyID {
			return sandbox.QuotaOf(k), true, nil
		}
	}
	return q, false, err
}

// leave takes back admit.
func (r *build) leave() {
	if r.release != nil {
		r.release()
		r.release = nil
	}
}

// ended says why a build was given up.
func (r *build) ended(cause, err error) error {
	var why *StepError
	if errors.As(cause, &why) {
		return &StepError{Step: why.Step, Message: why.Message, Err: err}
	}
	return &StepError{Message: "the server was stopped while it was building", Err: err}
}

// safely is run, in which what strangers wrote is parsed: a panic there is the end of
// this build and not of the server.
func (r *build) safely(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.b.config.Log.Error("a build ended in a panic", "build", r.record.ID, "panic", p, "stack", string(debug.Stack()))
			err = &StepError{Message: "something went wrong in the server; its log says more", Err: fmt.Errorf("panic: %v", p)}
		}
	}()
	return r.run(ctx)
}

// run does all of a plan and makes the template.
func (r *build) run(ctx context.Context) error {
	defer func() {
		var errs []error
		for _, s := range slices.Clone(r.open) {
			errs = append(errs, s.close(context.WithoutCancel(ctx)))
		}
		if r.resting != "" {
			errs = append(errs, os.RemoveAll(r.resting))
		}
		if err := errors.Join(errs...); err != nil {
			r.b.config.Log.Error("a build left something behind", "build", r.record.ID, "error", err)
		}
	}()
	last := len(r.plan.Stages) - 1
	for i, plan := range r.plan.Stages {
		s := &stage{build: r, plan: plan, last: i == last}
		r.stages = append(r.stages, s)
		if err := s.settle(ctx); err != nil {
			return err
		}
	}
	t, err := r.stages[last].template(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	printed := &tail{}
	made, err := r.b.config.Manager.FinishBuild(ctx, r.quota, t, func(step string) {
		r.log.say(LevelInfo, StepFinalize, "[finalize] "+step)
		if line, of := strings.CutPrefix(step, sandbox.StartPrefix); of {
			printed.add(line)
		}
	})
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, sandbox.ErrTemplateNotFound) {
		return &StepError{Message: templateDeleted, Err: err}
	}
	var limit *sandbox.LimitError
	if errors.As(err, &limit) {
		return &StepError{Step: StepFinalize, Message: limit.Error(), Err: err}
	}
	if err != nil {
		message := firstLine(err.Error())
		if len(printed.lines) > 0 {
			message += "\nthe start command printed:\n" + strings.Join(printed.lines, "\n")
		}
		return &StepError{Step: StepFinalize, Message: message, Err: err}
	}
	r.log.say(LevelInfo, StepFinalize, fmt.Sprintf("[finalize] template %s is ready, %d MB on disk, after %.1f s", made.ID, made.SizeBytes/1e6, time.Since(began).Seconds()))
	return nil
}

// finish writes what came of the build.
func (r *build) finish(err error) {
	state := store.BuildReady
	var why StepError
	if err != nil {
		state = store.BuildError
		why = StepError{Message: firstLine(err.Error()), Err: err}
		var step *StepError
		if errors.As(err, &step) {
			why = *step
		}
		r.log.say(LevelError, why.Step, FailedPrefix+why.Message)
		if cause := why.Err; cause != nil {
			r.b.config.Log.Info("build failed", "build", r.record.ID, "step", why.Step, "error", cause)
		}
	}
	err = r.update(func(b *store.Build) error {
		b.State, b.Step, b.Reason, b.FinishedAt = state, why.Step, why.Message, time.Now().UTC()
		return nil
	})
	if errors.Is(err, store.ErrNotFound) {
		err = nil // its template was deleted, and its record with it
	}
	if err := errors.Join(err, r.log.close(), os.Remove(r.lock.Name()), r.lock.Close()); err != nil {
		r.b.config.Log.Error("the end of a build was not written", "build", r.record.ID, "error", err)
	}
}

func (r *build) update(change func(*store.Build) error) error {
	_, err := r.b.config.Store.UpdateBuild(context.WithoutCancel(r.ctx), r.record.ID, func(b *store.Build) error {
		b.UpdatedAt = time.Now().UTC()
		return change(b)
	})
	return err
}

// partialFolder makes a folder for what is of use during the build only.
func (r *build) partialFolder() (string, error) {
	return os.MkdirTemp(r.b.dir(logsDir), partialPrefix)
}

// template finds a template that the build's owner may use.
func (r *build) template(ctx context.Context, ref string) (store.Template, error) {
	t, err := r.b.config.Store.Template(ctx, ref)
	if err == nil && !t.UsableBy(r.record.KeyID) {
		err = store.ErrNotFound
	}
	if errors.Is(err, store.ErrNotFound) {
		return t, &StepError{Step: StepBase, Message: fmt.Sprintf("template '%s' not found", ref), Err: sandbox.ErrTemplateNotFound}
	}
	return t, err
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func (b *Builds) imagePath(name string) string {
	return filepath.Join(b.config.DataDir, "images", name)
}
