package build

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// DockerfileOptions say how a Dockerfile is read.
type DockerfileOptions struct {
	BuildArgs map[string]string
	// Target is the stage to build, by name or number from 0; empty is the last.
	Target string
	// Context is where files are copied from; nil is no context.
	Context *os.Root
	// Ignore is the text of the .dockerignore file; nil is that of the context.
	Ignore []byte
	// Login returns the login for an image's registry; nil is anonymous everywhere.
	Login LoginFor
}

// Dockerfile is what was read of one.
type Dockerfile struct {
	Plan Plan
	// Uploads are the archives that the plan's steps copy from.
	Uploads []Upload
	// Notes tell what is not honoured, a line each.
	Notes []string
}

// TemplatePrefix makes FROM, and --from of COPY, name a template: FROM template:base.
const TemplatePrefix = "template:"

// DockerfileError is what is wrong with a Dockerfile.
type DockerfileError struct {
	Line    int // from 1; 0 when no line is to blame
	Message string
}

func (e *DockerfileError) Error() string {
	if e.Line == 0 {
		return "Dockerfile: " + e.Message
	}
	return fmt.Sprintf("Dockerfile, line %d: %s", e.Line, e.Message)
}

// dockerfileBytes bounds the text of a Dockerfile.
const dockerfileBytes = 1 << 20

// ParseDockerfile makes a plan of a Dockerfile: the stages that the target needs.
// Files of the context are looked at, and hashed, and packed later by the uploads.
// The error is a *DockerfileError, or one of the context's file system.
func ParseDockerfile(text string, o DockerfileOptions) (Dockerfile, error) {
	if len(text) > dockerfileBytes {
		return Dockerfile{}, &DockerfileError{Message: fmt.Sprintf("it is longer than %d KiB", dockerfileBytes>>10)}
	}
	if strings.ContainsRune(text, 0) {
		return Dockerfile{}, &DockerfileError{Message: "it has a NUL byte; it is no text"}
	}
	tree, err := parser.Parse(bytes.NewReader([]byte(text)))
	if err != nil {
		return Dockerfile{}, located(err)
	}
	if tree.EscapeToken != '\\' {
		return Dockerfile{}, &DockerfileError{Message: "the directive escape can only be a backslash"}
	}
	stages, global, err := instructions.Parse(tree.AST, nil)
	if err != nil {
		return Dockerfile{}, located(err)
	}
	if len(stages) > stepsMost {
		return Dockerfile{}, &DockerfileError{Message: fmt.Sprintf("it has more than %d stages", stepsMost)}
	}
	r := &reading{o: o, stages: stages, lex: shell.NewLex('\\'), numbers: map[int]int{}, room: planRoom{stepsMost, planBytes}}
	if err := r.readGlobal(global); err != nil {
		return Dockerfile{}, err
	}
	if err := r.chooseStages(); err != nil {
		return Dockerfile{}, err
	}
	for _, index := range r.needed {
		if err := r.readStage(index); err != nil {
			return Dockerfile{}, err
		}
	}
	r.finish()
	return r.out, nil
}

// located finds the line that an error of the parser is about.
func located(err error) error {
	wrong := &DockerfileError{Message: err.Error()}
	var at *parser.LocationError
	if errors.As(err, &at) && len(at.Locations) > 0 && len(at.Locations[0]) > 0 {
		wrong.Line = at.Locations[0][0].Start.Line
	}
	// The parser names the line itself too, at times.
	if _, rest, ok := strings.Cut(wrong.Message, "parse error on line "); ok && strings.HasPrefix(wrong.Message, "dockerfile ") {
		number, message, _ := strings.Cut(rest, ": ")
		if line, err := strconv.Atoi(number); err == nil {
			wrong.Line, wrong.Message = line, message
		}
	}
	return wrong
}

// reading is a Dockerfile that is being read.
type reading struct {
	o       DockerfileOptions
	stages  []instructions.Stage
	lex     *shell.Lex
	global  map[string]string // ARGs before the first FROM
	needed  []int             // stages, in order
	numbers map[int]int       // of needed stages in the plan, from 1
	read    []*stageReading   // by number in the plan, less 1
	context *buildContext
	room    planRoom
	out     Dockerfile
}

// stageReading is what is known of a stage.
type stageReading struct {
	stage Stage
	// env and args are the variables that the Dockerfile sets; unknown are those
	// whose value depends on variables of the image.
	env, args map[string]string
	unknown   map[string]bool
	declared  map[string]bool // by an ARG that has no value, which counts as none
	shell     []string        // of SHELL; nil is the image's
	room      *planRoom
	// ofTemplate: it goes back to a template, whose user and directory it has.
	ofTemplate      bool
	userSet, dirSet bool
	command, entry  *startLine
	health          string
}

// startLine is a CMD or an ENTRYPOINT, and the SHELL in force there.
type startLine struct {
	instructions.ShellDependantCmdLine
	shell []string
}

// platformArgs are the variables that say what is built.
func platformArgs() map[string]string {
	platform := "linux/" + runtime.GOARCH
	return map[string]string{
		"TARGETPLATFORM": platform, "TARGETOS": "linux", "TARGETARCH": runtime.GOARCH, "TARGETVARIANT": "",
		"BUILDPLATFORM": platform, "BUILDOS": "linux", "BUILDARCH": runtime.GOARCH, "BUILDVARIANT": "",
	}
}

// proxyArgs need no ARG.
var proxyArgs = []string{
	"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "FTP_PROXY", "ftp_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy",
}

func (r *reading) readGlobal(commands []instructions.ArgCommand) error {
	r.global = platformArgs()
	for name, value := range r.o.BuildArgs {
		if _, known := r.global[name]; known {
			r.global[name] = value
		}
	}
	for _, command := range commands {
		for _, arg := range command.Args {
			if value, ok := r.o.BuildArgs[arg.Key]; ok {
				r.global[arg.Key] = value
				continue
			}
			if arg.Value == nil {
				continue
			}
			value, err := expandWord(r.lex, *arg.Value, valueBytes, r.global)
			if err == nil {
				r.global[arg.Key] = value.Result
				err = checkEnv(r.global)
			}
			if err != nil {
				return wrongAt(command.Location(), "%v", err)
			}
		}
	}
	return nil
}

func wrongAt(where []parser.Range, format string, args ...any) error {
	wrong := &DockerfileError{Message: fmt.Sprintf(format, args...)}
	if len(where) > 0 {
		wrong.Line = where[0].Start.Line
	}
	return wrong
}

func (r *reading) note(where []parser.Range, format string, args ...any) {
	r.out.Notes = append(r.out.Notes, wrongAt(where, format, args...).Error())
}

// chooseStages finds the stages that the target begins with or copies from.
func (r *reading) chooseStages() error {
	target := len(r.stages) - 1
	if r.o.Target != "" {
		index, ok := r.stageNamed(r.o.Target, len(r.stages))
		if !ok {
			return &DockerfileError{Message: fmt.Sprintf("it has no stage %q", r.o.Target)}
		}
		target = index
	}
	need := map[int]bool{}
	var visit func(index int) error
	visit = func(index int) error {
		if need[index] {
			return nil
		}
		need[index] = true
		stage := &r.stages[index]
		base, err := r.expandGlobal(stage.BaseName, stage.Location)
		if err != nil {
			return err
		}
		stage.BaseName = base
		if before, ok := r.stageNamed(base, index); ok && !isNumber(base) {
			if err := visit(before); err != nil {
				return err
			}
		}
		for _, name := range copiedFrom(stage.Commands) {
			if before, ok := r.stageNamed(name, index); ok {
				if err := visit(before); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := visit(target); err != nil {
		return err
	}
	if len(need) > stagesMost {
		return &DockerfileError{Message: fmt.Sprintf("a template is made of at most %d stages, not %d", stagesMost, len(need))}
	}
	for index := range r.stages {
		if need[index] {
			r.needed = append(r.needed, index)
			r.numbers[index] = len(r.needed)
		}
	}
	return nil
}

// copiedFrom are the names that --from has in the commands of a stage.
func copiedFrom(commands []instructions.Command) []string {
	var names []string
	for _, command := range commands {
		switch c := command.(type) {
		case *instructions.CopyCommand:
			names = append(names, c.From)
		case *instructions.RunCommand:
			for _, mount := range instructions.GetMounts(c) {
				names = append(names, mount.From)
			}
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

func isNumber(text string) bool {
	_, err := strconv.Atoi(text)
	return err == nil
}

// stageNamed finds a stage before the one with an index, by name or number.
func (r *reading) stageNamed(name string, before int) (int, bool) {
	for index := before - 1; index >= 0; index-- { // the last of a name counts
		if strings.EqualFold(r.stages[index].Name, name) && name != "" {
			return index, true
		}
	}
	if index, err := strconv.Atoi(name); err == nil && index >= 0 && index < before {
		return index, true
	}
	return 0, false
}

func (r *reading) expandGlobal(word string, where []parser.Range) (string, error) {
	value, err := expandWord(r.lex, word, valueBytes, r.global)
	if err != nil {
		return "", wrongAt(where, "%v", err)
	}
	if value.Result == "" {
		return "", wrongAt(where, "FROM %q names nothing: a variable of it has no value", word)
	}
	return value.Result, nil
}

// readStage makes a stage of the plan.
func (r *reading) readStage(index int) error {
	source := r.stages[index]
	s := &stageReading{
		stage: Stage{Name: source.Name, AsImage: true, Words: true},
		env:   map[string]string{}, args: map[string]string{}, unknown: map[string]bool{}, declared: map[string]bool{},
		room: &r.room,
	}
	if err := r.readFrom(s, source, index); err != nil {
		return err
	}
	for _, name := range proxyArgs {
		if value, ok := r.o.BuildArgs[name]; ok {
			s.setArg(name, value, "ARG "+name)
		}
	}
	for _, command := range source.Commands {
		if err := r.readCommand(s, index, command); err != nil {
			return err
		}
		if err := r.room.check(); err != nil {
			return wrongAt(command.Location(), "%v", err)
		}
	}
	r.read = append(r.read, s)
	r.out.Plan.Stages = append(r.out.Plan.Stages, s.stage)
	return nil
}

func (r *reading) readFrom(s *stageReading, source instructions.Stage, index int) error {
	if source.Platform != "" {
		platform, err := r.expandGlobal(source.Platform, source.Location)
		if err != nil {
			return err
		}
		if want := "linux/" + runtime.GOARCH; platform != want && !strings.HasPrefix(platform, want+"/") {
			return wrongAt(source.Location, "--platform=%s cannot be built here, where sandboxes are %s", platform, want)
		}
	}
	base := source.BaseName
	if before, ok := r.stageNamed(base, index); ok && !isNumber(base) {
		from := r.read[r.numbers[before]-1]
		s.stage.From = From{Stage: r.numbers[before]}
		s.env, s.args, s.shell = maps.Clone(from.env), maps.Clone(from.args), from.shell
		s.unknown, s.declared = maps.Clone(from.unknown), maps.Clone(from.declared)
		s.ofTemplate, s.userSet, s.dirSet = from.ofTemplate, from.userSet, from.dirSet
		s.command, s.entry, s.health = from.command, from.entry, from.health
		return nil
	}
	from, err := r.outside(base, source.Location)
	if err != nil {
		return err
	}
	s.stage.From, s.ofTemplate = from, from.Template != ""
	return nil
}

// outside is what a name that is no stage's means.
func (r *reading) outside(name string, where []parser.Range) (From, error) {
	switch {
	case name == "scratch":
		return From{}, wrongAt(where, "FROM scratch is an empty file system, in which no sandbox can run; begin with an image, such as alpine or debian")
	case strings.HasPrefix(name, TemplatePrefix):
		ref := strings.TrimPrefix(name, TemplatePrefix)
		if ref == "" {
			return From{}, wrongAt(where, "%s needs the name of a template", TemplatePrefix)
		}
		return From{Template: ref}, nil
	case OwnTemplate(name) != "":
		return From{Template: OwnTemplate(name)}, nil
	}
	from := From{Image: name}
	if r.o.Login != nil {
		login, err := r.o.Login(name)
		if err != nil {
			return From{}, wrongAt(where, "%v", err)
		}
		from.Login = login
	}
	return from, nil
}

// OwnTemplate is the template of this machine that stands for one of the images that
// E2B's templates are made of, with which its clients and their Dockerfiles begin.
// Other images have none.
func OwnTemplate(image string) string {
	switch strings.TrimSuffix(image, ":latest") {
	case "e2bdev/base":
		return "base"
	case "e2bdev/code-interpreter":
		return "code-interpreter-v1"
	case "e2bdev/desktop":
		return "desktop"
	}
	return ""
}

// text is a command as people see it: its source on one line.
func text(command instructions.Command) string {
	source := strings.ToUpper(command.Name())
	if s, ok := command.(fmt.Stringer); ok {
		source = s.String()
	}
	return source
}

func (r *reading) readCommand(s *stageReading, index int, command instructions.Command) error {
	where := command.Location()
	switch c := command.(type) {
	case *instructions.RunCommand:
		return r.readRun(s, index, c)
	case *instructions.CopyCommand:
		return r.readCopy(s, index, c)
	case *instructions.AddCommand:
		return r.readAdd(s, c)
	case *instructions.EnvCommand:
		return r.readEnv(s, c)
	case *instructions.ArgCommand:
		return r.readArg(s, c)
	case *instructions.WorkdirCommand:
		s.dirSet = true
		s.add(Step{Kind: Workdir, Text: text(c), Path: c.Path})
	case *instructions.UserCommand:
		name, group, grouped := strings.Cut(c.User, ":")
		if strings.ContainsAny(c.User, "$\"'\\") {
			name = c.User // known when it is built, without its quotes
		} else if grouped {
			r.note(where, "USER has the groups that the account has; the group %q is left out", group)
		}
		s.userSet = true
		s.add(Step{Kind: User, Text: text(c), User: name})
	case *instructions.ShellCommand:
		s.shell = c.Shell
	case *instructions.CmdCommand:
		s.command = &startLine{c.ShellDependantCmdLine, s.shell}
	case *instructions.EntrypointCommand:
		s.entry = &startLine{c.ShellDependantCmdLine, s.shell}
		if s.stage.From.Stage != 0 && s.command != nil && !slices.ContainsFunc(r.stages[index].Commands, isCmd) {
			s.command = nil // Docker's rule: an ENTRYPOINT takes away the CMD of what it is made from
		}
	case *instructions.HealthCheckCommand:
		s.health = healthCommand(c)
	case *instructions.ExposeCommand:
		r.note(where, "EXPOSE says nothing to a sandbox, whose every port can be reached")
	case *instructions.VolumeCommand:
		r.note(where, "VOLUME is left out; what is in the folder is part of the template")
	case *instructions.StopSignalCommand:
		r.note(where, "STOPSIGNAL is left out; a sandbox ends at once")
	case *instructions.OnbuildCommand:
		r.note(where, "ONBUILD is left out; templates run nothing in the builds that begin with them")
	case *instructions.LabelCommand, *instructions.MaintainerCommand:
		r.note(where, "%s is left out; templates have no labels", strings.ToUpper(c.Name()))
	default:
		return wrongAt(where, "%s is not known", strings.ToUpper(command.Name()))
	}
	return nil
}

func isCmd(command instructions.Command) bool {
	_, ok := command.(*instructions.CmdCommand)
	return ok
}

// add adds a step, while there is room for one.
func (s *stageReading) add(step Step) {
	s.room.steps--
	s.room.bytes -= step.size()
	if s.room.check() == nil {
		s.stage.Steps = append(s.stage.Steps, step)
	}
}

// planRoom is what a plan may still grow by.
type planRoom struct{ steps, bytes int }

func (p *planRoom) check() error {
	if p.steps < 0 || p.bytes < 0 {
		return fmt.Errorf("there are too many instructions: a template has at most %d steps, of %d MiB together", stepsMost, planBytes>>20)
	}
	return nil
}

// expand puts variables into a word that has to be understood before the build.
func (r *reading) expand(s *stageReading, word string, where []parser.Range) (string, error) {
	result, err := expandWord(r.lex, word, valueBytes, s.env, s.args) // ENV wins over ARG
	if err != nil {
		return "", wrongAt(where, "%v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(result.Unmatched)) {
		if !s.declared[name] {
			return "", wrongAt(where, "the variable %s in %s has no value in the Dockerfile; those of the image cannot be used here", name, word)
		}
	}
	for name := range result.Matched {
		if s.unknown[name] {
			return "", wrongAt(where, "the variable %s in %s depends on variables of the image, which cannot be used here", name, word)
		}
	}
	return result.Result, nil
}

// depends tells whether what a word comes to depends on variables of the image.
func (s *stageReading) depends(found shell.ProcessWordResult) bool {
	for name := range found.Unmatched {
		if !s.declared[name] {
			return true
		}
	}
	for name := range found.Matched {
		if s.unknown[name] {
			return true
		}
	}
	return false
}

// value is the value of a variable as far as it can be known.
func (r *reading) value(s *stageReading, word string, where []parser.Range) (value string, unknown bool, err error) {
	result, err := expandWord(r.lex, word, valueBytes, s.env, s.args)
	if err != nil {
		return "", false, wrongAt(where, "%v", err)
	}
	return result.Result, s.depends(result), nil
}

// set notes the value of a variable.
func (r *reading) set(s *stageReading, to map[string]string, name, value string, unknown bool, where []parser.Range) error {
	to[name], s.unknown[name] = value, unknown
	if err := checkEnv(s.env, s.args); err != nil {
		return wrongAt(where, "%v", err)
	}
	return nil
}

func (r *reading) readEnv(s *stageReading, c *instructions.EnvCommand) error {
	step := Step{Kind: Env, Text: text(c)}
	type known struct {
		name, value string
		unknown     bool
	}
	var set []known
	room := envBytes
	for _, pair := range c.Env { // all values of one ENV see the variables of before it
		name, err := r.expand(s, pair.Key, c.Location())
		if err != nil {
			return err
		}
		step.Vars = append(step.Vars, Var{name, pair.Value})
		value, unknown, err := r.value(s, pair.Value, c.Location())
		if err != nil {
			return err
		}
		if room -= len(value); room < 0 {
			return wrongAt(c.Location(), "%v", errTooManyVars)
		}
		set = append(set, known{name, value, unknown})
	}
	for _, v := range set {
		if err := r.set(s, s.env, v.name, v.value, v.unknown, c.Location()); err != nil {
			return err
		}
	}
	s.add(step)
	return nil
}

func (r *reading) readArg(s *stageReading, c *instructions.ArgCommand) error {
	for _, arg := range c.Args {
		name, err := r.expand(s, arg.Key, c.Location())
		if err != nil {
			return err
		}
		title := "ARG " + name
		if value, ok := r.o.BuildArgs[name]; ok {
			s.setArg(name, value, title)
			continue
		}
		if arg.Value != nil {
			known, unknown, err := r.value(s, *arg.Value, c.Location())
			if err != nil {
				return err
			}
			if err := r.set(s, s.args, name, known, unknown, c.Location()); err != nil {
				return err
			}
			s.add(Step{Kind: Arg, Text: title + "=" + *arg.Value, Vars: []Var{{name, *arg.Value}}})
			continue
		}
		if value, ok := r.global[name]; ok {
			s.setArg(name, value, title)
		} else {
			s.declared[name] = true
		}
	}
	return nil
}

// setArg sets an ARG to a value that is no word.
func (s *stageReading) setArg(name, value, title string) {
	s.args[name], s.unknown[name] = value, false
	s.add(Step{Kind: Arg, Text: title + "=" + value, Vars: []Var{{name, quoted(value)}}})
}

// quoted is the word, of a Dockerfile and of a shell, that means a text.
func quoted(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

var plainWord = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// shellWords writes a command for a shell.
func shellWords(words []string) string {
	written := make([]string, len(words))
	for i, word := range words {
		written[i] = word
		if !plainWord.MatchString(word) {
			written[i] = quoted(word)
		}
	}
	return strings.Join(written, " ")
}

func (r *reading) readRun(s *stageReading, index int, c *instructions.RunCommand) error {
	where := c.Location()
	if err := c.Expand(func(word string) (string, error) { return r.expand(s, word, where) }); err != nil {
		return located(parser.WithLocation(unlocated(err), where))
	}
	var bound []*instructions.Mount
	for _, mount := range instructions.GetMounts(c) {
		switch mount.Type {
		case instructions.MountTypeCache, instructions.MountTypeTmpfs:
			r.note(where, "--mount=type=%s is left out: what the command writes to %s stays in the template", mount.Type, mount.Target)
		case instructions.MountTypeBind:
			bound = append(bound, mount)
		default:
			return wrongAt(where, "--mount=type=%s is not there: a build has no secrets; give what is not secret as --build-arg", mount.Type)
		}
	}
	if network := instructions.GetNetwork(c); network == instructions.NetworkNone {
		return wrongAt(where, "--network=none is not there: the steps of a build have the network that sandboxes have")
	}
	if instructions.GetSecurity(c) == instructions.SecurityInsecure {
		return wrongAt(where, "--security=insecure is not there; the steps of a build run in a sandbox, as root if USER says so")
	}
	argv := slices.Clone(c.CmdLine)
	if len(c.Files) > 0 {
		if len(argv) != 1 || !c.PrependShell {
			return wrongAt(where, "RUN with a heredoc needs the shell form")
		}
		argv[0] = heredocCommand(argv[0], c.Files)
	}
	imageShell := c.PrependShell && s.shell == nil
	if c.PrependShell {
		argv = slices.Concat(shellOr(s.shell), argv)
	}
	if len(argv) == 0 {
		return wrongAt(where, "RUN needs a command")
	}
	for _, mount := range bound {
		if err := r.bind(s, index, mount, where); err != nil {
			return err
		}
	}
	s.add(Step{Kind: Run, Text: text(c), Argv: argv, ImageShell: imageShell})
	for _, mount := range slices.Backward(bound) {
		s.add(mountStep(mount, "remove what was mounted at "+mount.Target, mountRemoval))
	}
	return nil
}

// A bind mount is made of a copy that is removed when the command is done. What is
// there already is not covered: the copy would stay mixed with it.
const (
	mountCheck = `if [ -d "$1" ] && [ -z "$(ls -A "$1")" ]; then exit 0; fi
if [ ! -e "$1" ] && [ ! -L "$1" ]; then exit 0; fi
echo "--mount=type=bind: $1 is there already and not empty; mount elsewhere, or COPY" >&2
exit 1`
	mountRemoval = `if [ ! -d "$1" ]; then exec rm -f "$1"; fi
rm -rf "$1"/* "$1"/.[!.]* "$1"/..?*
rmdir "$1" 2>/dev/null || true # the working directory stays`
)

func mountStep(mount *instructions.Mount, title, script string) Step {
	return Step{Kind: Run, Text: "RUN (" + title + ")", User: "root", Argv: []string{"/bin/sh", "-c", script, "sh", mount.Target}}
}

// bind copies what a bind mount shows to its target.
func (r *reading) bind(s *stageReading, index int, mount *instructions.Mount, where []parser.Range) error {
	if path.Clean("/"+mount.Target) == "/" && path.IsAbs(mount.Target) {
		return wrongAt(where, "--mount=type=bind cannot cover the root of the file system")
	}
	s.add(mountStep(mount, "see that nothing is at "+mount.Target, mountCheck))
	step := Step{Kind: Copy, Text: "COPY (mount) " + mount.Source + " " + mount.Target, Path: quoted(mount.Target)}
	if mount.From == "" {
		return r.addFiles(s, step, packing{sources: []string{mount.Source}}, where)
	}
	step.From = &From{}
	if before, ok := r.stageNamed(mount.From, index); ok {
		step.From.Stage = r.numbers[before]
	} else {
		from, err := r.outside(mount.From, where)
		if err != nil {
			return err
		}
		step.From = &from
	}
	step.Sources = []string{path.Clean("/" + mount.Source)}
	s.add(step)
	return nil
}

// unlocated takes the location from an error, which is given again.
func unlocated(err error) error {
	var wrong *DockerfileError
	if errors.As(err, &wrong) {
		return errors.New(wrong.Message)
	}
	return err
}

// heredocCommand is the shell command that a RUN with heredocs means.
func heredocCommand(line string, files []instructions.ShellInlineFile) string {
	alone, err := parser.ParseHeredoc(strings.TrimSpace(line))
	if len(files) != 1 || alone == nil || err != nil {
		for _, file := range files {
			line += "\n" + file.Data + file.Name
		}
		return line
	}
	content := files[0].Data
	if files[0].Chomp {
		content = parser.ChompHeredocContent(content)
	}
	if !strings.HasPrefix(content, "#!") {
		return content
	}
	// A script for a program of its own is run as a file.
	end := files[0].Name
	for strings.Contains(content, end) {
		end += "_"
	}
	return "script=$(mktemp) && cat >\"$script\" <<'" + end + "' && chmod +x \"$script\" && \"$script\"; status=$?; rm -f \"$script\"; exit $status\n" +
		strings.TrimSuffix(content, "\n") + "\n" + end + "\n"
}

// healthCommand is the command of a HEALTHCHECK, empty for none.
func healthCommand(c *instructions.HealthCheckCommand) string {
	if c.Health == nil || len(c.Health.Test) < 2 {
		return ""
	}
	if c.Health.Test[0] == "CMD-SHELL" {
		return c.Health.Test[1]
	}
	return shellWords(c.Health.Test[1:])
}

func shellOr(shell []string) []string {
	if shell == nil {
		return defaultShell
	}
	return shell
}

// words are the command with the shell that runs it.
func (l *startLine) words() []string {
	if l.PrependShell && len(l.CmdLine) > 0 {
		return slices.Concat(shellOr(l.shell), l.CmdLine)
	}
	return l.CmdLine
}

// text is the command for a shell. One for the default shell is what it says.
func (l *startLine) text() string {
	if l.PrependShell && l.shell == nil {
		return strings.Join(l.CmdLine, " ")
	}
	return shellWords(l.words())
}

// startCommand joins ENTRYPOINT and CMD as Docker does.
func (s *stageReading) startCommand() string {
	switch {
	case s.entry != nil && s.command != nil && !s.entry.PrependShell:
		return shellWords(slices.Concat(s.entry.CmdLine, s.command.words()))
	case s.entry != nil:
		return s.entry.text()
	case s.command != nil:
		return s.command.text()
	}
	return ""
}

// finish says what sandboxes of the template begin as: unless the Dockerfile says
// so, as user in /home/user, as with E2B's clients.
func (r *reading) finish() {
	last := r.read[len(r.read)-1]
	stage := &r.out.Plan.Stages[len(r.out.Plan.Stages)-1]
	if !last.userSet && !last.ofTemplate {
		stage.Steps = append(stage.Steps, Step{Kind: User, Text: "USER " + StageUser, User: StageUser})
	}
	if !last.dirSet && !last.ofTemplate {
		stage.Steps = append(stage.Steps, Step{Kind: Workdir, Text: "WORKDIR " + stageHome, Path: stageHome})
	}
	r.out.Plan.StartCmd = last.startCommand()
	if r.out.Plan.StartCmd != "" {
		r.out.Plan.ReadyCmd = last.health
	}
}

func (r *reading) readCopy(s *stageReading, index int, c *instructions.CopyCommand) error {
	where := c.Location()
	step, err := r.copyStep(s, text(c), c.SourcesAndDest, c.Chown, c.Chmod, where)
	if err != nil {
		return err
	}
	sources, err := r.expandAll(s, c.SourcePaths, where)
	if err != nil {
		return err
	}
	if c.From != "" {
		if c.Parents || len(c.ExcludePatterns) > 0 || len(c.SourceContents) > 0 {
			return wrongAt(where, "COPY --from takes no --parents, no --exclude and no heredoc")
		}
		step.From = &From{}
		if before, ok := r.stageNamed(c.From, index); ok {
			step.From.Stage = r.numbers[before]
		} else if *step.From, err = r.outside(c.From, where); err != nil {
			return err
		}
		for _, source := range sources {
			step.Sources = append(step.Sources, path.Clean("/"+source))
		}
		s.add(step)
		return nil
	}
	return r.addFiles(s, step, packing{sources: sources, contents: c.SourceContents, exclude: c.ExcludePatterns, parents: c.Parents}, where)
}

var remote = regexp.MustCompile(`^([a-zA-Z][a-zA-Z0-9+.-]*://|git@)`)

func (r *reading) readAdd(s *stageReading, c *instructions.AddCommand) error {
	where := c.Location()
	step, err := r.copyStep(s, text(c), c.SourcesAndDest, c.Chown, c.Chmod, where)
	if err != nil {
		return err
	}
	sources, err := r.expandAll(s, c.SourcePaths, where)
	if err != nil {
		return err
	}
	for _, source := range sources {
		if remote.MatchString(source) {
			return wrongAt(where, "ADD of %s is not there; RUN curl or git instead", source)
		}
	}
	if c.Checksum != "" {
		return wrongAt(where, "ADD --checksum is for addresses, which are not there")
	}
	step.Unpack = c.Unpack == nil || *c.Unpack
	return r.addFiles(s, step, packing{sources: sources, contents: c.SourceContents, exclude: c.ExcludePatterns, apart: step.Unpack}, where)
}

func (r *reading) expandAll(s *stageReading, words []string, where []parser.Range) ([]string, error) {
	var all []string
	for _, word := range words {
		value, err := r.expand(s, word, where)
		if err != nil {
			return nil, err
		}
		all = append(all, value)
	}
	return all, nil
}

var octal = regexp.MustCompile(`^[0-7]{1,4}$`)

// copyStep is what COPY and ADD have in common. The destination stays a word.
func (r *reading) copyStep(s *stageReading, title string, c instructions.SourcesAndDest, chown, chmod string, where []parser.Range) (Step, error) {
	step := Step{Kind: Copy, Text: title, Path: c.DestPath, User: chown}
	if chmod != "" {
		text, err := r.expand(s, chmod, where)
		if err != nil {
			return Step{}, err
		}
		if !octal.MatchString(text) {
			return Step{}, wrongAt(where, "--chmod=%s: give an octal mode, such as 0755", text)
		}
		mode, err := strconv.ParseUint(text, 8, 32)
		if err != nil {
			return Step{}, wrongAt(where, "--chmod=%s: %v", text, err)
		}
		bits := uint32(mode)
		step.Mode = &bits
	}
	if many := len(c.SourcePaths) + len(c.SourceContents); many > 1 {
		dest, err := r.expand(s, c.DestPath, where)
		if err == nil && !strings.HasSuffix(dest, "/") && dest != "." && !strings.HasSuffix(dest, "/.") {
			return Step{}, wrongAt(where, "with %d sources the destination must be a folder and end with a \"/\"", many)
		}
	}
	return step, nil
}

// addFiles adds a step that copies files of the context, or contents of heredocs.
func (r *reading) addFiles(s *stageReading, step Step, p packing, where []parser.Range) error {
	known, later, err := s.contents(p.contents)
	if err != nil {
		return wrongAt(where, "%v", err)
	}
	if len(later) > 0 {
		step := step
		step.Contents, step.Unpack = later, false
		s.add(step)
		if len(known)+len(p.sources) == 0 {
			return nil
		}
	}
	p.contents = known
	if r.context == nil {
		opened, err := openContext(r.o.Context, r.o.Ignore)
		if err != nil {
			return err
		}
		r.context = opened
	}
	packed, err := r.context.pack(p)
	if err != nil {
		return wrongAt(where, "%v", err)
	}
	for _, note := range packed.notes {
		r.note(where, "%s", note)
	}
	step.Files, step.Sources = packed.upload.Hash, packed.names
	s.add(step)
	if !slices.ContainsFunc(r.out.Uploads, func(u Upload) bool { return u.Hash == packed.upload.Hash }) {
		r.out.Uploads = append(r.out.Uploads, packed.upload)
	}
	return nil
}

// contents puts variables into heredocs. Those with variables of the image are left for
// the build.
func (s *stageReading) contents(all []instructions.SourceContent) (known []instructions.SourceContent, later []Content, err error) {
	for _, c := range all {
		if c.Expand {
			data, err := expandWord(contentLex(), c.Data, dockerfileBytes, s.env, s.args)
			if err != nil {
				return nil, nil, err
			}
			if s.depends(data) {
				later = append(later, Content{Name: path.Base(c.Path), Text: c.Data})
				continue
			}
			c.Data = data.Result
		}
		known = append(known, c)
	}
	return known, later, nil
}
