package embedded_test

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/embedded"
)

func TestProgramsAreStatic(t *testing.T) {
	t.Run("agent", func(t *testing.T) { testStatic(t, embedded.Agent) })
	t.Run("mcp-gateway", func(t *testing.T) { testStatic(t, embedded.MCPGateway) })
}

func testStatic(t *testing.T, get func() ([]byte, error)) {
	program, err := get()
	if _, missing := os.Stat(filepath.Join("bin", filepath.Base(t.Name()))); missing != nil {
		require.ErrorContains(t, err, "make build", "the error says what to do")
		return
	}
	require.NoError(t, err)
	file, err := elf.NewFile(bytes.NewReader(program))
	require.NoError(t, err)
	require.Equal(t, elf.ELFCLASS64, file.Class)
	for _, part := range file.Progs {
		require.NotEqual(t, elf.PT_INTERP, part.Type, "a sandbox need not have a dynamic linker")
	}
}
