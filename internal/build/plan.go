package build

import "github.com/tombolo-dev/tombolo/internal/image"

// A Plan says what a template is made of. It is made from what a client of the
// build API sends, or from a Dockerfile ([ParseDockerfile]).
type Plan struct {
	// Stages are built in order. The last is the template; the others are there to
	// be begun from and copied from, as those of a Dockerfile.
	Stages []Stage
	// Force builds every layer anew.
	Force bool
	// StartCmd and ReadyCmd as in store.Template. Empty takes those of the template
	// that the last stage begins with, if it begins with one.
	StartCmd, ReadyCmd string
}

// Stage is one root file system, made from a beginning by steps.
type Stage struct {
	Name  string // of a Dockerfile's AS; for messages
	From  From
	Steps []Step
	// AsImage begins with the user and the working directory that the image of From
	// says, as a Dockerfile does. Without it a stage from an image begins as a
	// sandbox does: with user, in /home/user.
	AsImage bool
	// Words: Path and Vars, and User of Copy and User, are words of a Dockerfile, in
	// which quotes, escapes and ${NAME:-default} mean something. Without it only $NAME
	// and ${NAME} do, in Path and Vars.
	Words bool
}

// From is what a stage begins with: exactly one of the fields that name something.
type From struct {
	Template string // id or name
	Image    string // reference to an image in a registry
	Archive  string // a docker-archive or an OCI layout on this machine: a file or a folder
	Stage    int    // an earlier stage, counted from 1

	// Login is for the registry of Image; nil is anonymous.
	Login *image.Login
}

// place is from without its login: what it begins with.
func (f From) place() From {
	f.Login = nil
	return f
}

// Kind is what a step does.
type Kind string

// The kinds of steps. What Env, Workdir and User set is in force for the later
// steps of the stage and for the template's sandboxes.
const (
	Copy    Kind = "COPY"    // Files or Sources to Path
	Run     Kind = "RUN"     // Argv
	Env     Kind = "ENV"     // Vars
	Arg     Kind = "ARG"     // Vars, for this stage's steps only
	Workdir Kind = "WORKDIR" // Path; made when missing
	User    Kind = "USER"    // User
)

// Step is one step of a stage.
type Step struct {
	Kind Kind
	// Text is the step as people know it, in logs and messages: "RUN pip install x".
	Text string
	// Force builds this layer and those after it anew.
	Force bool

	// Argv is the program that Run runs; where there is no /bin/bash, a /bin/bash in
	// it becomes /bin/sh.
	Argv []string
	// ImageShell: in the place of the /bin/sh -c that Argv begins with comes the shell
	// that the image of the stage says, if it says one.
	ImageShell bool
	// User is whom Run runs as, empty for the stage's; whom USER sets; and who owns
	// what Copy copies: a name or number, with a group after a ":", empty for root.
	User string
	// Path of Workdir and where Copy copies to. A relative one is below the working
	// directory; "$NAME" in it is a variable of the stage.
	Path string
	// Vars of Env and Arg, in order. "$NAME" in a value is a variable of the stage.
	Vars []Var

	// What Copy copies: Files is the hash of an archive that was uploaded (see
	// Builds.Upload), whose entries begin with Sources[0]; or else Sources below the
	// root of From, an earlier stage or an image.
	Files string
	From  *From // Stage, Image or Template
	// Or else Contents, which are words with variables, of which quotes mean nothing.
	Contents []Content
	Sources  []string // paths, with patterns as in path.Match; absolute in From
	// Mode, when not nil, is given to what Copy copies: permission bits.
	Mode *uint32
	// Unpack makes Copy unpack the tar archives among Files, as ADD does.
	Unpack bool
}

// Content is a file whose content stands in the plan.
type Content struct{ Name, Text string }

// Var is a variable.
type Var struct{ Name, Value string }
