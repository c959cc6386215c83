package e2b

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tombolo-dev/tombolo/internal/build"
	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// plan makes a plan of what a client wants built.
func (a *api) plan(ctx context.Context, k store.Key, s buildStart) (build.Plan, error) {
	stage := build.Stage{}
	switch {
	case (s.FromImage == "") == (s.FromTemplate == ""):
		return build.Plan{}, invalid("exactly one of fromImage and fromTemplate must be given")
	case build.OwnTemplate(s.FromImage) != "":
		stage.From = build.From{Template: build.OwnTemplate(s.FromImage)}
	case s.FromImage != "":
		login, err := s.FromImageRegistry.login(ctx)
		if err != nil {
			return build.Plan{}, err
		}
		stage.From = build.From{Image: s.FromImage, Login: login}
	default:
		name, ok, err := a.usableName(ctx, k, s.FromTemplate)
		if err != nil {
			return build.Plan{}, err
		}
		if !ok {
			return build.Plan{}, failure(http.StatusNotFound, "template '%.140s' not found", s.FromTemplate)
		}
		stage.From = build.From{Template: name.String()}
	}
	user := ""
	for i, wire := range s.Steps {
		step, err := wire.step(i, user)
		if err != nil {
			return build.Plan{}, err
		}
		if step.Kind == build.User {
			user = step.User
		}
		stage.Steps = append(stage.Steps, step)
	}
	return build.Plan{Stages: []build.Stage{stage}, Force: s.Force, StartCmd: s.StartCmd, ReadyCmd: s.ReadyCmd}, nil
}

// step makes the step with an index. user is the one that a step before has set;
// empty is the stage's own.
func (w buildStep) step(i int, user string) (build.Step, error) {
	kind := build.Kind(strings.ToUpper(w.Type))
	step := build.Step{Kind: kind, Text: string(kind) + " " + strings.Join(w.Args, " "), Force: w.Force}
	arg := func(i int) string {
		if i < len(w.Args) {
			return w.Args[i]
		}
		return ""
	}
	switch kind {
	case build.Run:
		if arg(0) == "" {
			return step, stepError(i, "RUN requires a command")
		}
		step.Argv, step.User = []string{"/bin/bash", "-l", "-c", arg(0)}, arg(1)
		step.Text = "RUN " + arg(0)
	case build.Copy:
		if len(w.Args) < 2 || w.FilesHash == "" {
			return step, stepError(i, "COPY requires a source, a destination and filesHash")
		}
		step.Sources, step.Path, step.Files = []string{arg(0)}, arg(1), w.FilesHash
		step.Text = "COPY " + arg(0) + " " + arg(1)
		// Who copies owns, unless it is said (E2B's).
		if step.User = arg(2); step.User == "" {
			step.User = user
		}
		if step.User == "" {
			step.User = build.StageUser
		}
		if mode := arg(3); mode != "" {
			bits, err := strconv.ParseUint(mode, 8, 12)
			if err != nil {
				return step, stepError(i, "COPY: %.40q is not an octal mode", mode)
			}
			given := uint32(bits)
			step.Mode = &given
		}
	case build.Env:
		if len(w.Args) == 0 || len(w.Args)%2 != 0 {
			return step, stepError(i, "ENV requires pairs of a name and a value")
		}
		for n := 0; n < len(w.Args); n += 2 {
			step.Vars = append(step.Vars, build.Var{Name: w.Args[n], Value: w.Args[n+1]})
		}
	case build.Workdir:
		step.Path = arg(0)
	case build.User:
		step.User = arg(0)
	default:
		return step, stepError(i, "there is no step of the type %.40q; there are COPY, RUN, ENV, WORKDIR and USER", w.Type)
	}
	return step, nil
}

// imageRegistry says how to log in to the registry of fromImage.
type imageRegistry struct {
	Type               string `json:"type"` // registry, gcp or aws
	Username           string `json:"username"`
	Password           string `json:"password"`
	ServiceAccountJSON string `json:"serviceAccountJson"`
	AWSAccessKeyID     string `json:"awsAccessKeyId"`
	AWSSecretAccessKey string `json:"awsSecretAccessKey"`
	AWSRegion          string `json:"awsRegion"`
}

// login is the user and password of the registry; nil is anonymous.
func (r *imageRegistry) login(ctx context.Context) (*image.Login, error) {
	if r == nil || r.Type == "" {
		return nil, nil
	}
	switch r.Type {
	case "registry":
		return &image.Login{User: r.Username, Password: r.Password}, nil
	case "gcp":
		// Google's registries take the key file of a service account as a password.
		return &image.Login{User: "_json_key", Password: r.ServiceAccountJSON}, nil
	case "aws":
		return awsLogin(ctx, r)
	}
	return nil, invalid("fromImageRegistry: type must be registry, gcp or aws, not %.40q", r.Type)
}

// preparedMost bounds the plans of one key that wait for their second request.
const preparedMost = 20

// prepared keeps plans between the two requests of the oldest flow.
type prepared struct {
	mu    sync.Mutex
	plans map[string][]preparedPlan // by key, the oldest first
}

type preparedPlan struct {
	build string
	plan  build.Plan
}

func (p *prepared) keep(keyID, id string, plan build.Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.plans == nil {
		p.plans = map[string][]preparedPlan{}
	}
	all := append(p.plans[keyID], preparedPlan{id, plan})
	p.plans[keyID] = slices.Clone(all[max(0, len(all)-preparedMost):])
}

func (p *prepared) take(keyID, id string) (build.Plan, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.plans[keyID]
	at := slices.IndexFunc(all, func(one preparedPlan) bool { return one.build == id })
	if at < 0 {
		return build.Plan{}, false
	}
	plan := all[at].plan
	if all = slices.Delete(all, at, at+1); len(all) == 0 {
		delete(p.plans, keyID)
	} else {
		p.plans[keyID] = all
	}
	return plan, true
}
