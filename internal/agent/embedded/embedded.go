// Package embedded holds the agent program, which `make build` compiles into
// bin/ before it compiles the binary that carries it.
package embedded

import (
	"embed"
	"errors"
)

//go:embed all:bin
var files embed.FS

// Agent returns the agent program.
func Agent() ([]byte, error) {
	program, err := files.ReadFile("bin/agent")
	if err != nil {
		return nil, errors.New("this binary was built without the agent; build it with `make build`")
	}
	return program, nil
}
