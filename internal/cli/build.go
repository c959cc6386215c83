package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/build"
	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// planFlags make a template of something else than a recipe.
type planFlags struct {
	file, image, archive string
	args                 []string
	target               string
	cpus                 int
	memory, disk         string
	start, ready         string
	noCache              bool
	registry, user       string
	passwordStdin        bool
}

func (f *planFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "file", "f", "", "build from this Dockerfile, \"-\" for standard input")
	flags.StringVar(&f.image, "image", "", "make a template of this image in a registry")
	flags.StringVar(&f.archive, "archive", "", "make a template of this docker-archive or OCI layout, a file or a folder")
	flags.StringArrayVar(&f.args, "build-arg", nil, "NAME=VALUE of an ARG of the Dockerfile; NAME alone takes it from the environment")
	flags.StringVar(&f.target, "target", "", "stage of the Dockerfile to build")
	flags.IntVar(&f.cpus, "cpus", 0, "processors of the template's sandboxes (default 2)")
	flags.StringVar(&f.memory, "memory", "", "their memory, such as 2GiB (default 1GiB)")
	flags.StringVar(&f.disk, "disk", "", "what they may write (default 10GiB)")
	flags.StringVar(&f.start, "start", "", "command that is running already when a sandbox starts (default: the Dockerfile's)")
	flags.StringVar(&f.ready, "ready", "", "command that succeeds when the start command is ready")
	flags.BoolVar(&f.noCache, "no-cache", false, "run every step again")
	flags.StringVar(&f.registry, "registry", "", "registry of --registry-user (default: that of --image)")
	flags.StringVar(&f.user, "registry-user", "", "user of the registry (default: what docker login has stored)")
	flags.BoolVar(&f.passwordStdin, "registry-password-stdin", false, "read the password of the registry from standard input")
}

// given tells whether a plan is asked for.
func (f *planFlags) given() bool { return f.file != "" || f.image != "" || f.archive != "" }

// planOnly names the flags that say nothing about recipes.
var planOnly = []string{"build-arg", "target", "cpus", "memory", "disk", "start", "ready", "no-cache", "registry", "registry-user", "registry-password-stdin"}

// request is what the flags ask of the build.
func (f *planFlags) request(as string) (build.Request, error) {
	if as == "" {
		return build.Request{}, errors.New("give the template a name: --name NAME or NAME:TAG")
	}
	split := store.SplitName(as)
	if err := split.Check(); err != nil {
		return build.Request{}, err
	}
	r := build.Request{Alias: split.Alias, Tags: []string{split.Tag}, CPUs: f.cpus}
	for text, size := range map[*string]*int64{&f.memory: &r.MemoryBytes, &f.disk: &r.DiskBytes} {
		if *text == "" {
			continue
		}
		parsed, err := image.ParseSize(*text)
		if err != nil {
			return build.Request{}, err
		}
		*size = int64(parsed)
	}
	return r, nil
}

// read makes the plan. The caller closes the context that uploads are read from.
func (f *planFlags) read(args []string) (read build.Dockerfile, folder io.Closer, err error) {
	login, err := f.logins()
	if err != nil {
		return read, nil, err
	}
	from := build.From{Image: f.image}
	switch {
	case f.file != "":
		return f.readDockerfile(args, login)
	case len(args) > 0:
		return read, nil, fmt.Errorf("%q: only --file has a context to copy from", args[0])
	case f.archive != "":
		if from.Archive, err = filepath.Abs(f.archive); err != nil {
			return read, nil, err
		}
	default:
		if from.Login, err = login(f.image); err != nil {
			return read, nil, err
		}
	}
	read.Plan.Stages = []build.Stage{{From: from}}
	return read, io.NopCloser(nil), nil
}

func (f *planFlags) readDockerfile(args []string, login build.LoginFor) (read build.Dockerfile, folder io.Closer, err error) {
	if len(args) > 1 {
		return read, nil, errors.New("give one folder, the context that files are copied from")
	}
	dir := "."
	if len(args) == 1 {
		dir = args[0]
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return read, nil, fmt.Errorf("open the context: %w", err)
	}
	options := build.DockerfileOptions{BuildArgs: map[string]string{}, Target: f.target, Context: root, Login: login}
	for _, arg := range f.args {
		name, value, given := strings.Cut(arg, "=")
		if !given {
			if value, given = os.LookupEnv(name); !given {
				continue
			}
		}
		options.BuildArgs[name] = value
	}
	var text []byte
	if f.file == "-" {
		text, err = io.ReadAll(os.Stdin)
	} else if text, err = os.ReadFile(f.file); err != nil {
		err = fmt.Errorf("read the Dockerfile: %w", err)
	} else {
		options.Ignore, err = os.ReadFile(f.file + ".dockerignore")
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err == nil {
		read, err = build.ParseDockerfile(string(text), options)
	}
	if err != nil {
		return read, nil, errors.Join(err, root.Close())
	}
	return read, root, nil
}

// passwordBytes bounds a password on standard input.
const passwordBytes = 64 << 10

// logins finds the login for each image: the one of the flags for its registry, and
// otherwise what docker login has stored.
func (f *planFlags) logins() (build.LoginFor, error) {
	if f.passwordStdin != (f.user != "") {
		return nil, errors.New("--registry-user and --registry-password-stdin go together")
	}
	if f.user == "" {
		return storedLogin, nil
	}
	if f.file == "-" {
		return nil, errors.New("the Dockerfile and the password cannot both come from standard input")
	}
	registry := f.registry
	if registry == "" {
		if f.image == "" {
			return nil, errors.New("say by --registry which registry --registry-user is for")
		}
		ref, err := name.ParseReference(f.image)
		if err != nil {
			return nil, err
		}
		registry = ref.Context().RegistryStr()
	}
	if registry == "docker.io" {
		registry = name.DefaultRegistry
	}
	password, err := bufio.NewReader(io.LimitReader(os.Stdin, passwordBytes)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the password: %w", err)
	}
	given := &image.Login{User: f.user, Password: strings.TrimRight(password, "\r\n")}
	return func(reference string) (*image.Login, error) {
		if ref, err := name.ParseReference(reference); err == nil && ref.Context().RegistryStr() == registry {
			return given, nil
		}
		return storedLogin(reference)
	}, nil
}

// storedLogin is what docker login, or another tool of its kind, has stored.
func storedLogin(reference string) (*image.Login, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, nil // the import tells what is wrong with it
	}
	found, err := authn.DefaultKeychain.Resolve(ref.Context().Registry)
	if err != nil {
		return nil, fmt.Errorf("find the login for %s: %w", ref.Context().RegistryStr(), err)
	}
	auth, err := found.Authorization()
	if err != nil {
		return nil, fmt.Errorf("find the login for %s: %w", ref.Context().RegistryStr(), err)
	}
	if auth.Username == "" || auth.Password == "" {
		return nil, nil
	}
	return &image.Login{User: auth.Username, Password: auth.Password}, nil
}

// build opens the core and builds in this process.
func (f *planFlags) build(cmd *cobra.Command, as string, args []string) error {
	c, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	core, err := openCore(cmd.Context(), c, false)
	if err != nil {
		return err
	}
	t, err := f.buildPlan(cmd.Context(), core, as, args)
	if err = errors.Join(err, core.Close()); err != nil {
		return err
	}
	fmt.Printf("%s  %s  %s\n", t.Ref(), t.ID, mebibytes(t.SizeBytes))
	return nil
}

// buildPlan builds what the flags say and tells its log as it comes.
func (f *planFlags) buildPlan(ctx context.Context, core *core, as string, args []string) (store.Template, error) {
	request, err := f.request(as)
	if err != nil {
		return store.Template{}, err
	}
	read, folder, err := f.read(args)
	if err != nil {
		return store.Template{}, err
	}
	defer folder.Close()
	for _, note := range read.Notes {
		fmt.Fprintln(os.Stderr, "note:", note)
	}
	plan := read.Plan
	plan.Force = f.noCache
	plan.StartCmd = cmp.Or(f.start, plan.StartCmd)
	plan.ReadyCmd = cmp.Or(f.ready, plan.ReadyCmd)
	began := time.Now()
	builds, err := core.openBuilds(ctx, func(e build.Entry) {
		if strings.HasPrefix(e.Message, build.FailedPrefix) {
			return // the error says it
		}
		fmt.Fprintf(os.Stderr, "%6.1fs %s\n", e.At.Sub(began).Seconds(), printable(e.Message))
	})
	if err != nil {
		return store.Template{}, err
	}
	defer builds.Close()
	for _, u := range read.Uploads {
		fmt.Fprintf(os.Stderr, "%6.1fs files to copy: %d, %s\n", time.Since(began).Seconds(), u.Files, mebibytes(u.Bytes))
	}
	if err := builds.UploadAll(ctx, "", read.Uploads); err != nil {
		return store.Template{}, err
	}
	record, err := builds.Request(ctx, request)
	if err != nil {
		return store.Template{}, err
	}
	if err := builds.Start(ctx, record.ID, plan); err != nil {
		return store.Template{}, err
	}
	ended, err := builds.Wait(ctx, record.ID)
	if err != nil {
		return store.Template{}, err
	}
	if ended.State != store.BuildReady {
		return store.Template{}, buildFailure(ended, plan)
	}
	t, err := core.store.Template(ctx, ended.TemplateID+":"+request.Tags[0])
	if err == nil {
		core.trail().changed("template build", t.KeyID, templateTarget(t))
	}
	return t, err
}

// buildFailure says which step failed and why, in one line: the log has shown what
// it printed.
func buildFailure(b store.Build, plan build.Plan) error {
	reason, _, _ := strings.Cut(b.Reason, "\n")
	number := 0
	for _, stage := range plan.Stages {
		for _, step := range stage.Steps {
			if number++; fmt.Sprint(number) == b.Step {
				return fmt.Errorf("step %s of the build, %s: %s", b.Step, step.Text, reason)
			}
		}
	}
	return fmt.Errorf("the build failed: %s", reason)
}
