package build

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// do runs one task in the workshop.
func (s *stage) do(ctx context.Context, t task) error {
	switch t.Kind {
	case Run:
		return s.run(ctx, t)
	case Copy:
		return s.copy(ctx, t)
	case Workdir:
		if err := s.shop.MakeDir(ctx, t.Path, t.user); err != nil {
			return s.failed(t, fmt.Sprintf("failed to make the working directory '%s': %v", t.Path, err), err)
		}
	case Env:
		if t.writes() {
			return s.layPath(ctx, t)
		}
	}
	return nil
}

// run runs a command. The texts of its failures are E2B's.
func (s *stage) run(ctx context.Context, t task) error {
	user := t.User
	if user == "" {
		user = t.user
	}
	number, last := strconv.Itoa(t.number), &tail{}
	stdout := &lines{journal: s.build.log, level: LevelInfo, step: number, prefix: "[" + s.place(t) + "] [stdout]: ", tail: last}
	stderr := &lines{journal: s.build.log, level: LevelInfo, step: number, prefix: "[" + s.place(t) + "] [stderr]: ", tail: last}
	failure, err := s.shop.Run(ctx, sandbox.Command{Argv: t.Argv, User: user, Dir: t.workdir, Env: t.env}, stdout, stderr)
	stdout.flush()
	stderr.flush()
	command := t.Argv[len(t.Argv)-1]
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return s.failed(t, fmt.Sprintf("failed to run command '%s': command failed: %v", command, err), err)
	case failure != "":
		message := fmt.Sprintf("failed to run command '%s': command failed: %s", command, failure)
		if len(last.lines) > 0 {
			message += "\n" + strings.Join(last.lines, "\n")
		}
		return s.failed(t, message, nil)
	}
	return nil
}

// copy copies files of an upload or of another stage.
func (s *stage) copy(ctx context.Context, t task) error {
	sources := t.Sources
	for _, c := range t.Contents {
		sources = append(sources, c.Name)
	}
	if t.source != nil {
		sources = []string{strings.Join(t.Sources, " ")} // all in one archive
	}
	for _, source := range sources {
		err := s.copyOne(ctx, t, source)
		var reason *sandbox.CopyError
		if errors.As(err, &reason) {
			return s.failed(t, fmt.Sprintf("failed to copy '%s' to '%s': %s", source, t.Path, reason.Message), err)
		}
		if err != nil {
			return s.failed(t, fmt.Sprintf("failed to copy '%s' to '%s': %v", source, t.Path, err), err)
		}
	}
	return nil
}

func (s *stage) copyOne(ctx context.Context, t task, source string) error {
	archive, err := s.archive(ctx, t)
	if err != nil {
		return err
	}
	defer archive.Close()
	if t.source != nil {
		source = "" // the archive has just what was asked for
	}
	return s.shop.Copy(ctx, hostapi.Copy{
		Source: source, Destination: t.Path, User: t.User, Mode: t.Mode, Unpack: t.Unpack,
	}, archive)
}

// archive has what a task copies.
func (s *stage) archive(ctx context.Context, t task) (io.ReadCloser, error) {
	if len(t.Contents) > 0 {
		archive, err := archived(t.Contents)
		return io.NopCloser(archive), err
	}
	if t.source == nil {
		return s.build.b.openUpload(s.build.record.KeyID, t.Files)
	}
	if err := t.source.reach(ctx); err != nil {
		return nil, err
	}
	return t.source.shop.Archive(ctx, t.Sources)
}

// profile is read by login shells, which the clients run, after what an image's
// own profile makes of the PATH.
const profile = "/etc/profile.d/template-path.sh"

// layPath makes login shells keep the PATH that the task sets.
func (s *stage) layPath(ctx context.Context, t task) error {
	value := t.env["PATH"]
	text := "PATH='" + strings.ReplaceAll(value, "'", `'\''`) + "'\nexport PATH\n"
	archive, err := archived([]Content{{Name: "path", Text: text}})
	if err == nil {
		err = s.shop.Copy(ctx, hostapi.Copy{Source: "path", Destination: profile}, archive)
	}
	if err != nil {
		return s.failed(t, fmt.Sprintf("failed to set PATH: %v", err), err)
	}
	return nil
}

// archived puts files into an archive.
func archived(files []Content) (*bytes.Buffer, error) {
	archive := &bytes.Buffer{}
	w := tar.NewWriter(archive)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.Name, Mode: 0o644, Size: int64(len(f.Text))}); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, f.Text); err != nil {
			return nil, err
		}
	}
	return archive, w.Close()
}

// steps is how many steps a plan has.
func (p Plan) steps() int {
	n := 0
	for _, s := range p.Stages {
		n += len(s.Steps)
	}
	return n
}

// Limits on plans.
const (
	stagesMost = 64
	// outsideMost is how many images and templates one may be made from: each is asked
	// for at its registry.
	outsideMost = 32
	stepsMost   = 1000
	textBytes   = 256 << 10 // of one step
	planBytes   = 4 << 20   // of all steps
	pathBytes   = 4095      // of a path, as Linux has it
	// commandBytes is what Linux takes as one argument of a program.
	commandBytes = 128<<10 - 1
)

// check returns a *sandbox.InvalidError unless a plan can be run.
func (p Plan) check() error {
	bad := func(format string, args ...any) error {
		return &sandbox.InvalidError{Message: fmt.Sprintf(format, args...)}
	}
	if len(p.Stages) == 0 || len(p.Stages) > stagesMost || p.steps() > stepsMost {
		return bad("a template has 1 to %d stages and at most %d steps", stagesMost, stepsMost)
	}
	for _, command := range []string{p.StartCmd, p.ReadyCmd} {
		if len(command) > commandBytes || strings.Contains(command, "\x00") {
			return bad("a start or ready command may have %d KiB and no NUL byte", commandBytes>>10)
		}
	}
	number, room, outside := 0, planBytes, map[From]bool{}
	for i, stage := range p.Stages {
		if err := stage.From.check(i); err != nil {
			return bad("stage %d: %v", i+1, err)
		}
		outside[stage.From.place()] = stage.From.Stage == 0
		for _, step := range stage.Steps {
			number++
			if err := step.check(i); err != nil {
				return bad("step %d (%.60s): %v", number, step.Text, err)
			}
			if step.From != nil {
				outside[step.From.place()] = step.From.Stage == 0
			}
			if room -= step.size(); room < 0 {
				return bad("the steps are larger than %d MiB together", planBytes>>20)
			}
		}
	}
	maps.DeleteFunc(outside, func(_ From, is bool) bool { return !is })
	if len(outside) > outsideMost {
		return bad("a template is made from at most %d images and templates, not %d", outsideMost, len(outside))
	}
	return nil
}

// kindsOfSources counts what a Copy copies from.
func (s Step) kindsOfSources() (kinds int) {
	for _, given := range []bool{s.From != nil, s.Files != "", len(s.Contents) > 0} {
		if given {
			kinds++
		}
	}
	return kinds
}

// check looks at the beginning of a stage, or what a step copies from, in the stage
// with this index.
func (f From) check(index int) error {
	count := 0
	for _, given := range []bool{f.Template != "", f.Image != "", f.Archive != "", f.Stage != 0} {
		if given {
			count++
		}
	}
	switch {
	case count != 1:
		return errors.New("exactly one of a template and an image must be given to begin with")
	case f.Stage < 0 || f.Stage > index:
		return errors.New("only an earlier stage can be used")
	case len(f.Template)+len(f.Image) > 1024:
		return errors.New("the name of what it begins with is too long")
	}
	return nil
}

// size is what the texts of a step take, bytes.
func (s Step) size() int {
	size := len(s.Text) + len(s.Path) + len(s.User)
	for _, text := range slices.Concat(s.Argv, s.Sources) {
		size += len(text)
	}
	for _, v := range s.Vars {
		size += len(v.Name) + len(v.Value)
	}
	for _, c := range s.Contents {
		size += len(c.Name) + len(c.Text)
	}
	return size
}

func (s Step) check(index int) error {
	for _, text := range slices.Concat([]string{s.Text, s.Path, s.User}, s.Argv, s.Sources) {
		if strings.Contains(text, "\x00") {
			return errors.New("there is a NUL byte in it")
		}
	}
	for _, c := range s.Contents {
		if c.Name == "" || strings.ContainsAny(c.Name, "/\x00") || strings.Contains(c.Text, "\x00") {
			return fmt.Errorf("%.80q is not the name of a file with a text", c.Name)
		}
	}
	for _, v := range s.Vars {
		if v.Name == "" || strings.ContainsAny(v.Name, "=\x00") || strings.Contains(v.Value, "\x00") {
			return fmt.Errorf("%.80q is not the name of a variable", v.Name)
		}
	}
	switch {
	case s.size() > textBytes:
		return fmt.Errorf("it is longer than %d KiB", textBytes>>10)
	case s.Kind == Run && (len(s.Argv) == 0 || s.Argv[0] == ""):
		return errors.New("there is no command to run")
	case (s.Kind == Workdir || s.Kind == Copy) && s.Path == "":
		return errors.New("the path is missing")
	case s.Kind == User && s.User == "":
		return errors.New("the user is missing")
	case (s.Kind == Env || s.Kind == Arg) && len(s.Vars) == 0:
		return errors.New("there is no variable to set")
	case s.Kind == Run && s.ImageShell && (len(s.Argv) < 3 || s.Argv[0] != defaultShell[0] || s.Argv[1] != defaultShell[1]):
		return errors.New("without a shell it cannot be run by the image's")
	case s.Kind == Copy && len(s.Sources)+len(s.Contents) == 0:
		return errors.New("there is nothing to copy")
	case s.Kind == Copy && s.kindsOfSources() != 1:
		return errors.New("it must copy one of uploaded files, those of a stage, and given contents")
	case s.Kind == Copy && s.Files != "" && !hashPattern.MatchString(s.Files):
		return errors.New("the hash of its files must be 64 hex digits")
	}
	switch s.Kind {
	case Run, Copy, Env, Arg, Workdir, User:
	default:
		return fmt.Errorf("there is no step of the kind %.40q; there are COPY, RUN, ENV, ARG, WORKDIR and USER", s.Kind)
	}
	if s.From != nil {
		return s.From.check(index)
	}
	return nil
}
