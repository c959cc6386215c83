package build

import (
	"path"
	"strings"
)

// Command is what a plan runs in a sandbox of its build, or in those that are made of it.
type Command struct {
	Text string // the script, or the program with its arguments
	// User as whom; root where that is only known when it runs.
	User string
}

// Commands are all that a plan that was checked runs, in its order, the start and the ready command last.
func (p Plan) Commands() (all []Command) {
	user := ""
	var users []string // that stages end as
	for _, stage := range p.Stages {
		switch from := stage.From; {
		case from.Stage != 0:
			user = users[from.Stage-1]
		case !stage.AsImage && from.Image != "":
			user = "user"
		default:
			user = "root"
		}
		for _, step := range stage.Steps {
			switch {
			case step.Kind == User:
				user = account(step.User)
			case step.Kind == Run && step.User != "":
				all = append(all, Command{scriptOf(step.Argv), account(step.User)})
			case step.Kind == Run:
				all = append(all, Command{scriptOf(step.Argv), user})
			}
		}
		users = append(users, user)
	}
	for _, text := range []string{p.StartCmd, p.ReadyCmd} {
		if text != "" {
			all = append(all, Command{text, user})
		}
	}
	return all
}

// account is the user of a user and a group, and root of what only the build can tell.
func account(name string) string {
	name, _, _ = strings.Cut(name, ":")
	if name == "" || strings.Trim(name, "0") == "" || strings.ContainsAny(name, "$\"'\\") {
		return "root"
	}
	return name
}

func scriptOf(argv []string) string {
	if n := len(argv); n > 2 && argv[n-2] == "-c" {
		if shell := path.Base(argv[0]); shell == "bash" || shell == "sh" {
			return argv[n-1]
		}
	}
	return strings.Join(argv, " ")
}
