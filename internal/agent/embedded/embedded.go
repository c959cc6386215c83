// Package embedded holds the programs that run inside sandboxes, which `make
// build` compiles into bin/ before it compiles the binary that carries them.
package embedded

import (
	"embed"
	"fmt"
)

//go:embed all:bin
var files embed.FS

// Agent returns the agent program.
func Agent() ([]byte, error) { return program("agent") }

// MCPGateway returns the program mcp-gateway.
func MCPGateway() ([]byte, error) { return program("mcp-gateway") }

func program(name string) ([]byte, error) {
	text, err := files.ReadFile("bin/" + name)
	if err != nil {
		return nil, fmt.Errorf("this binary was built without the %s; build it with `make build`", name)
	}
	return text, nil
}
