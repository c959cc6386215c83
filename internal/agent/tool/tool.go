// Package tool does the little of ss, pgrep and curl that the ready commands of
// E2B's clients need, in images that lack these programs: there a link by such a
// name leads to the agent. What is not understood is refused, not guessed.
package tool

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Name is the name of a program that Run can be.
type Name string

// The programs.
const (
	SS    Name = "ss"
	Pgrep Name = "pgrep"
	Curl  Name = "curl"
)

// Known tells whether a program of that name is here.
func Known(name string) bool {
	switch Name(name) {
	case SS, Pgrep, Curl:
		return true
	}
	return false
}

// proc is where the kernel tells of processes and sockets.
const proc = "/proc"

// Run runs a program and returns its exit code, which is that of the real one.
func Run(name Name, args []string) int {
	var err error
	switch name {
	case SS:
		err = ss(args, proc, os.Stdout)
	case Pgrep:
		err = pgrep(args, proc, os.Getpid(), os.Stdout)
	case Curl:
		err = curl(args, os.Stdin, os.Stdout)
	}
	var end exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &end):
		end.say(name, os.Stderr)
		return end.code
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	return 1
}

// exit is an end with an exit code.
type exit struct {
	code    int
	message string // empty says nothing
}

func (e exit) Error() string { return e.message }

func (e exit) say(name Name, to io.Writer) {
	if e.message != "" {
		fmt.Fprintf(to, "%s: %s\n", name, e.message)
	}
}

// unknown refuses what only the real program does.
func unknown(name Name, code int, what string) error {
	return exit{code, fmt.Sprintf("%q is not there in the %s that tombolo puts into images without it; install the real one (package %s)",
		what, name, map[Name]string{SS: "iproute2", Pgrep: "procps", Curl: "curl"}[name])}
}
