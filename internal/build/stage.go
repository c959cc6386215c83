package build

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/image/rootfs"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// stage makes one root file system. settle tells what its steps come to, without
// running any; reach runs what has to be run.
type stage struct {
	build *build
	plan  Stage
	last  bool // of its plan: it becomes the template

	base  store.Template // whose image it begins with
	tasks []task
	key   string // of the last task

	// In force after the last task.
	env, args     map[string]string
	together      map[string]string // see seen
	user, workdir string
	shell         []string // that the image says, empty for none

	shop    *sandbox.Workshop // nil until it is needed
	reached bool
	saved   string // the folder that has the state after the last task; empty for none
}

// task is a step with its variables put in and its key.
type task struct {
	Step
	number  int // in the plan, from 1
	key     string
	env     map[string]string
	user    string // in force
	workdir string
	source  *stage // of a Copy
	forced  bool
}

// writes tells whether a task changes the file system.
func (t task) writes() bool {
	switch t.Kind {
	case Run, Copy, Workdir:
		return true
	case Env:
		return slices.ContainsFunc(t.Vars, func(v Var) bool { return v.Name == "PATH" })
	}
	return false
}

// StageUser is who the steps of a stage run as when nothing says so, as in sandboxes.
const StageUser = "user"

const stageHome = "/home/user" // and where

// settle finds what the stage begins with and works out its tasks.
func (s *stage) settle(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	forced := s.build.plan.Force
	for _, step := range s.plan.Steps {
		s.build.step++
		forced = forced || step.Force
		t := task{Step: step, number: s.build.step, forced: forced}
		if err := s.settleOne(ctx, &t, s.args); err != nil {
			return s.failed(t, err.Error(), err)
		}
		s.tasks = append(s.tasks, t)
		s.key = t.key
	}
	return nil
}

// values puts variables into the values of one step.
func (s *stage) values(vars []Var, args map[string]string) ([]Var, error) {
	vars = slices.Clone(vars)
	set, room := map[string]string{}, envBytes
	for i, v := range vars {
		value, err := expand(v.Value, s.plan.Words, set, s.env, args)
		if err != nil {
			return nil, err
		}
		vars[i].Value = value
		if room -= len(value); room < 0 {
			return nil, errTooManyVars
		}
		if !s.plan.Words { // to a Dockerfile the variables of one instruction are new together
			set[v.Name] = value
		}
	}
	return vars, nil
}

// seen are the variables that a step sees. Steps that see the same share them.
func (s *stage) seen(args map[string]string) (map[string]string, error) {
	if s.together == nil {
		s.together = maps.Clone(args)
		maps.Copy(s.together, s.env) // ENV wins over ARG
		for name, value := range s.together {
			s.build.seenBytes += len(name) + len(value) + nameBytes
		}
		if s.build.seenBytes > seenMost {
			return nil, fmt.Errorf("the variables that the steps see are larger than %d MiB together: set large ones once", seenMost>>20)
		}
	}
	return s.together, nil
}

// settleOne works out one task and what is in force after it.
func (s *stage) settleOne(ctx context.Context, t *task, args map[string]string) (err error) {
	if t.Path, err = expand(t.Path, s.plan.Words, s.env, args); err != nil { // ENV wins over ARG
		return err
	}
	if len(t.Path) > pathBytes {
		return fmt.Errorf("its path is longer than %d bytes", pathBytes)
	}
	if t.Vars, err = s.values(t.Vars, args); err != nil {
		return err
	}
	if err := s.words(t, args); err != nil {
		return err
	}
	switch t.Kind {
	case Env:
		for _, v := range t.Vars {
			s.env[v.Name] = v.Value
		}
	case Arg:
		for _, v := range t.Vars {
			args[v.Name] = v.Value
		}
	case Run:
		if t.ImageShell && len(s.shell) > 0 {
			t.Argv = slices.Concat(s.shell, t.Argv[len(defaultShell):])
		}
	case User:
		s.user = t.User
	case Workdir:
		t.Path = s.absolute(t.Path)
		s.workdir = t.Path
	case Copy:
		t.Path = s.absolute(t.Path)
		if t.From != nil {
			if t.source, err = s.build.source(ctx, *t.From); err != nil {
				return err
			}
		}
	}
	if t.Kind == Env || t.Kind == Arg {
		if err := checkEnv(s.env, args); err != nil {
			return err
		}
		s.together = nil
	}
	if t.Kind == Run || t.writes() {
		if t.env, err = s.seen(args); err != nil {
			return err
		}
	}
	t.user, t.workdir = s.user, s.workdir
	var from, owner string
	switch {
	case t.source != nil:
		from = t.source.key
	case t.Kind == Copy:
		// The hash of an upload is a name that its owner chose, so another key's layer
		// may have other files.
		owner = s.build.record.KeyID
	}
	t.key = layerKey(s.key, struct {
		Kind                            Kind
		Argv, Sources                   []string
		User, Who, Dir, Path, Files, Of string
		Owner                           string
		Vars                            []Var
		Mode                            *uint32
		Unpack                          bool
		Contents                        []Content `json:",omitempty"`
	}{t.Kind, t.Argv, t.Sources, t.User, t.user, t.workdir, t.Path, t.Files, from, owner, t.Vars, t.Mode, t.Unpack, t.Contents})
	for i := range t.Vars {
		t.Vars[i].Value = "" // those that the step sees are in env
	}
	return nil
}

// words puts variables into what else of a Dockerfile's step may have some.
func (s *stage) words(t *task, args map[string]string) (err error) {
	if !s.plan.Words {
		return nil
	}
	if word := t.User; word != "" && (t.Kind == User || t.Kind == Copy) {
		if t.User, err = expand(word, true, s.env, args); err != nil {
			return err
		}
		if t.Kind == User {
			group := ""
			if t.User, group, _ = strings.Cut(t.User, ":"); t.User == "" {
				return fmt.Errorf("%q names nobody: a variable of it has no value", word)
			}
			if group != "" {
				s.build.log.say(LevelWarn, strconv.Itoa(t.number), fmt.Sprintf("USER has the groups that the account has; the group %q is left out", group))
			}
		}
	}
	t.Contents = slices.Clone(t.Contents)
	for i, c := range t.Contents {
		text, err := expandWord(contentLex(), c.Text, textBytes, s.env, args)
		if err != nil {
			return err
		}
		t.Contents[i].Text = text.Result
		if s.build.seenBytes += len(text.Result); s.build.seenBytes > seenMost {
			return fmt.Errorf("the contents of its files, and what steps see, are larger than %d MiB together", seenMost>>20)
		}
	}
	return nil
}

// absolute makes a path of a step absolute; a "/" at its end stays, and "/." is one.
func (s *stage) absolute(name string) string {
	slash := strings.HasSuffix(name, "/") || name == "." || strings.HasSuffix(name, "/.")
	if !path.IsAbs(name) {
		name = path.Join(s.workdir, name)
	}
	name = path.Clean(name)
	if slash && name != "/" {
		name += "/"
	}
	return name
}

// begin finds what the stage begins with.
func (s *stage) begin(ctx context.Context) error {
	r := s.build
	s.env, s.args = map[string]string{"PATH": defaultPath}, map[string]string{}
	s.user, s.workdir = StageUser, stageHome
	from := s.plan.From
	switch {
	case from.Template != "":
		t, err := r.template(ctx, from.Template)
		if err != nil {
			return err
		}
		if t.SourceSandbox != "" { // its memory comes with its processes
			if err := r.quota.Holds(t); err != nil {
				return &StepError{Step: StepBase, Message: "template '" + from.Template + "': " + err.Error(), Err: err}
			}
		}
		r.log.say(LevelInfo, StepBase, "[base] FROM template "+from.Template)
		s.base = t
		r.use(rootFiles{t.Image, t.Upper})
		maps.Copy(s.env, t.EnvVars)
		s.setUser(t.User, t.Workdir)
	case from.Stage != 0:
		before := r.stages[from.Stage-1]
		s.base, s.env, s.key = before.base, maps.Clone(before.env), before.key
		s.args, s.user, s.workdir, s.shell = maps.Clone(before.args), before.user, before.workdir, before.shell
		s.tasks = slices.Clone(before.tasks)
		return nil
	default:
		imported, err := r.imported(ctx, from)
		if err != nil {
			return err
		}
		s.base = store.Template{Image: filepath.Base(imported.Path)}
		r.use(rootFiles{Image: s.base.Image})
		s.beginAs(imported.Config)
	}
	if err := checkEnv(s.env); err != nil {
		return &StepError{Step: StepBase, Message: "what the template is made from sets too much: " + err.Error(), Err: err}
	}
	info, err := os.Stat(r.b.imagePath(s.base.Image))
	if err != nil {
		return &StepError{Step: StepBase, Message: "the image of what the template is made from is gone", Err: err}
	}
	snapshot := ""
	if s.base.SourceSandbox != "" {
		snapshot = s.base.Snapshot
	}
	s.key = layerKey("", struct {
		Engine, Image, Upper, Snapshot string
		Size, Time                     int64
		Env                            map[string]string // templates of one image may differ in it
	}{r.b.config.Manager.EngineVersion(), s.base.Image, s.base.Upper, snapshot, info.Size(), info.ModTime().Unix(), s.env})
	return nil
}

// beginAs takes over what an image says.
func (s *stage) beginAs(says image.Config) {
	for _, entry := range says.Env {
		if name, value, ok := strings.Cut(entry, "="); ok {
			s.env[name] = value
		}
	}
	if s.plan.AsImage {
		s.setUser("root", "/")
		user, _, _ := strings.Cut(says.User, ":") // the groups are the account's
		s.setUser(user, says.WorkingDir)
		s.workdir = path.Join("/", s.workdir) // some say it without the slash
		s.shell = says.Shell
	}
}

func (s *stage) setUser(user, workdir string) {
	if user != "" {
		s.user = user
	}
	if workdir != "" {
		s.workdir = workdir
	}
}

// imported brings in an image.
func (r *build) imported(ctx context.Context, from From) (image.Imported, error) {
	if have, ok := r.images[from.place()]; ok {
		return have, nil
	}
	what := from.Image + from.Archive
	r.log.say(LevelInfo, StepBase, "[base] FROM "+what)
	source := image.Source{Reference: from.Image, Path: from.Archive, Login: from.Login}
	images := r.b.config.Images
	images.MayImport = func() error { return r.b.mayImport(ctx) }
	if most := r.quota.DiskBytes; most > 0 { // all of it: the key may have the image already
		images.Limits.Bytes = min(most, rootfs.DefaultLimits.Bytes)
	}
	imported, err := images.Import(ctx, source, r.progress())
	if err != nil {
		return image.Imported{}, r.notImported(err)
	}
	if triggers := imported.Config.OnBuild; len(triggers) > 0 {
		r.log.say(LevelWarn, StepBase, fmt.Sprintf("[base] the image's ONBUILD instructions are not run: %.500s", strings.Join(triggers, "; ")))
	}
	r.images[from.place()] = imported
	return imported, nil
}

// notImported says why an image was not brought in.
func (r *build) notImported(err error) error {
	var reason *StepError
	if errors.As(err, &reason) {
		return reason
	}
	message := firstLine(err.Error())
	var limit *rootfs.LimitError
	if errors.As(err, &limit) && limit.Limit == r.quota.DiskBytes {
		message += ", which is the key's --max-disk"
	}
	return &StepError{Step: StepBase, Message: message, Err: err}
}

// progressEvery is how often the bytes of a download are told.
const progressEvery = 2 * time.Second

// progress tells how far an import has come, each text once and bytes now and then.
func (r *build) progress() func(image.Progress) {
	var text string
	var told time.Time
	return func(p image.Progress) {
		if p.Text == text && time.Since(told) < progressEvery {
			return
		}
		line := "[base] " + p.Text
		if p.Text == text && p.TotalBytes > 0 {
			line += fmt.Sprintf(": %d of %d MB", p.Bytes/1e6, p.TotalBytes/1e6)
		}
		text, told = p.Text, time.Now()
		r.log.say(LevelInfo, StepBase, line)
	}
}

// source is a stage to copy from: an earlier one, or one of an image or a template,
// which the build has once.
func (r *build) source(ctx context.Context, from From) (*stage, error) {
	if from.Stage != 0 {
		return r.stages[from.Stage-1], nil
	}
	s := r.outside[from.place()]
	if s == nil {
		s = &stage{build: r, plan: Stage{From: from, AsImage: true}}
		if err := s.begin(ctx); err != nil {
			return nil, err
		}
		r.outside[from.place()] = s
	}
	return s, nil
}

// reach brings the workshop to the state after the last task, from the last layer
// that there is.
func (s *stage) reach(ctx context.Context) error {
	if s.reached && s.shop != nil {
		s.build.uses(s)
		return nil
	}
	if s.reached { // it rests
		return s.open(ctx, s.saved)
	}
	next, layer := s.cached()
	// Stages that this one copies from come first, so that only one is half done.
	for _, t := range s.tasks[next:] {
		if t.source != nil && len(t.source.tasks) > 0 {
			if err := t.source.reach(ctx); err != nil {
				return err
			}
		}
	}
	s.sayCached(s.tasks[:next])
	s.saved = layer
	if err := s.open(ctx, layer); err != nil {
		return err
	}
	spent := time.Duration(0) // on tasks since the last layer
	for _, t := range s.tasks[next:] {
		s.say(t, s.title(t))
		began := time.Now()
		if err := s.do(ctx, t); err != nil {
			return err
		}
		if !t.writes() {
			continue
		}
		s.saved = ""
		spent += time.Since(began)
		kept, err := s.keep(ctx, t, spent)
		if err != nil {
			return s.failed(t, "its layer could not be kept", err)
		}
		if kept {
			spent, s.saved = 0, s.build.b.layer(t.key)
		}
	}
	s.reached = true
	return nil
}

// workshopsMost is how many sandboxes a build has at a time: that of the stage that
// is being made, and those that it copied from last.
const workshopsMost = 4

// makeRoom lets stages rest until there may be one more workshop.
func (r *build) makeRoom(ctx context.Context) error {
	for _, s := range slices.Clone(r.open) {
		if len(r.open) < workshopsMost {
			break
		}
		if !s.reached && len(s.tasks) > 0 {
			continue // it is being made
		}
		if err := s.rest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rest closes the workshop of a stage that is done, for reach to open it again.
func (s *stage) rest(ctx context.Context) error {
	last := -1
	for i, t := range s.tasks {
		if t.writes() {
			last = i
		}
	}
	if last >= 0 && s.saved == "" {
		t := s.tasks[last]
		stats, err := s.shop.Stats(ctx)
		if err != nil {
			return err
		}
		if err := s.build.b.roomFor(stats.DiskBytes); err != nil {
			return s.failed(t, err.Error(), err)
		}
		if err := s.save(ctx, t, stats.DiskBytes); err != nil {
			return s.failed(t, "what it wrote could not be put aside", err)
		}
	}
	return s.close(ctx)
}

// save puts what the stage wrote aside: as a layer, or, where the layers have no room
// for it, for this build alone, which is bounded in what it may write.
func (s *stage) save(ctx context.Context, t task, bytes int64) (err error) {
	r := s.build
	if r.b.layerRoom(bytes) {
		err = r.b.keepLayer(ctx, t.key, s.shop.Save)
		s.saved = r.b.layer(t.key)
		return err
	}
	if r.resting == "" {
		if r.resting, err = r.partialFolder(); err != nil {
			return err
		}
	}
	folder, err := os.MkdirTemp(r.resting, "")
	if err != nil {
		return err
	}
	to := filepath.Join(folder, "disk")
	if err := s.shop.Save(ctx, to); err != nil {
		return err
	}
	s.saved = to
	return nil
}

// leastDisk is with how little room a stage still begins, bytes.
const leastDisk = 16 << 20

// diskLeft is how much a stage that begins with a layer may write, its bytes among
// them: what the others have left of what all may.
func (s *stage) diskLeft(ctx context.Context, layer string) (int64, error) {
	r := s.build
	if s.reached { // it writes nothing more
		return r.disk, nil
	}
	for _, other := range r.open {
		stats, err := other.shop.Stats(ctx)
		if err != nil {
			return 0, err
		}
		r.wrote[other] = stats.DiskBytes
	}
	left := r.disk
	for other, bytes := range r.wrote {
		if other != s {
			left -= bytes
		}
	}
	if left < max(leastDisk, sandbox.DiskBytes(layer)) {
		step := StepBase
		if len(s.tasks) > 0 {
			step = strconv.Itoa(s.tasks[0].number)
		}
		return 0, &StepError{Step: step, Message: fmt.Sprintf("the steps write more than %d MB, in all stages together", r.disk/1e6)}
	}
	return left, nil
}

// uses notes that the workshop of a stage is used now.
func (r *build) uses(s *stage) {
	r.closed(s)
	r.open = append(r.open, s)
}

func (r *build) closed(s *stage) {
	r.open = slices.DeleteFunc(r.open, func(other *stage) bool { return other == s })
}

// cached finds how many tasks a layer makes good, and the layer.
func (s *stage) cached() (done int, layer string) {
	for i, t := range s.tasks {
		if t.forced {
			break
		}
		if !t.writes() {
			continue
		}
		if found := s.build.b.layer(t.key); found != "" {
			done, layer = i+1, found
		}
	}
	// What changes no file costs nothing, so it is as good as cached.
	for done < len(s.tasks) && !s.tasks[done].writes() && !s.tasks[done].forced {
		done++
	}
	return done, layer
}

// open boots the workshop from a layer; empty is none.
func (s *stage) open(ctx context.Context, layer string) error {
	t := s.base
	record := s.build.record
	left, err := s.diskLeft(ctx, layer)
	if err != nil {
		return err
	}
	if err := s.build.makeRoom(ctx); err != nil {
		return err
	}
	if t.SourceSandbox == "" {
		t.CPUs, t.MemoryBytes, t.DiskBytes = record.CPUs, record.MemoryBytes, left
		t.EnvVars, t.Kernels = nil, nil
	}
	if layer != "" {
		held, err := s.build.hold(layer)
		if err != nil {
			return &StepError{Step: StepBase, Message: "a layer of the build is gone: " + firstLine(err.Error()), Err: err}
		}
		defer os.RemoveAll(held)
		layer = held
	}
	shop, err := s.build.b.config.Manager.OpenWorkshop(ctx, sandbox.WorkshopRequest{Template: t, Disk: layer, KeyID: record.KeyID})
	if err != nil {
		return &StepError{Step: StepBase, Message: "the build's sandbox did not start: " + firstLine(err.Error()), Err: err}
	}
	s.shop = shop
	s.build.uses(s)
	return nil
}

// keepRate is what is reckoned to be written of a layer in a second, bytes.
const keepRate = 300 << 20

// keep keeps a layer unless it would take longer to keep than to make again. Small
// ones are always kept.
func (s *stage) keep(ctx context.Context, t task, spent time.Duration) (bool, error) {
	stats, err := s.shop.Stats(ctx)
	if err != nil {
		return false, err
	}
	cost := time.Duration(float64(stats.DiskBytes) / keepRate * float64(time.Second))
	if cost > time.Second && cost > spent {
		return false, nil
	}
	if s.build.b.roomFor(stats.DiskBytes) != nil || !s.build.b.layerRoom(stats.DiskBytes) {
		s.build.log.say(LevelWarn, strconv.Itoa(t.number), "there is no room to keep the layer of this step")
		return false, nil
	}
	return true, s.build.b.keepLayer(ctx, t.key, s.shop.Save)
}

// template is what the last stage comes to, with its image made.
func (s *stage) template(ctx context.Context) (store.Template, error) {
	record, plan := s.build.record, s.build.plan
	made, err := s.image(ctx)
	if err != nil {
		return store.Template{}, err
	}
	env := maps.Clone(s.env)
	if env["PATH"] == defaultPath {
		delete(env, "PATH")
	}
	t := store.Template{
		ID: record.TemplateID, Name: record.Alias, KeyID: record.KeyID, Tags: record.Tags, BuildID: record.ID,
		CPUs: record.CPUs, MemoryBytes: record.MemoryBytes, DiskBytes: record.DiskBytes,
		Image: made.Image, Upper: made.Upper, EnvVars: env, User: s.user, Workdir: strings.TrimSuffix(s.workdir, "/"),
		StartCmd: s.base.StartCmd, ReadyCmd: s.base.ReadyCmd, Kernels: s.base.Kernels,
	}
	if t.Workdir == "" {
		t.Workdir = "/"
	}
	if plan.StartCmd != "" || plan.ReadyCmd != "" {
		t.StartCmd, t.ReadyCmd = plan.StartCmd, plan.ReadyCmd
	}
	return t, nil
}

func (s *stage) close(ctx context.Context) error {
	if s.shop == nil {
		return nil
	}
	shop := s.shop
	s.shop = nil
	s.build.closed(s)
	return shop.Close(ctx)
}

// title is a task as people see it.
func (s *stage) title(t task) string {
	return fmt.Sprintf("[%s]: %s", s.place(t), t.Text)
}

// sayCached tells of tasks whose work was done before, or that have none.
func (s *stage) sayCached(tasks []task) {
	for _, t := range tasks {
		title := s.title(t)
		if t.writes() {
			title = "CACHED " + title
		}
		s.say(t, title)
	}
}

// place says which step of how many, as E2B does.
func (s *stage) place(t task) string {
	name := "builder"
	if s.plan.Name != "" && !s.last {
		name = s.plan.Name
	}
	return fmt.Sprintf("%s %d/%d", name, t.number, s.build.plan.steps())
}

func (s *stage) say(t task, message string) {
	s.build.log.say(LevelInfo, strconv.Itoa(t.number), message)
}

func (s *stage) failed(t task, message string, err error) error {
	var step *StepError
	if errors.As(err, &step) && step.Step != "" {
		return err
	}
	return &StepError{Step: strconv.Itoa(t.number), Message: message, Err: err}
}
