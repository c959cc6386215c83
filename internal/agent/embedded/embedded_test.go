package embedded_test

import (
	"bytes"
	"debug/elf"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/embedded"
)

func TestAgentIsAStaticProgram(t *testing.T) {
	program, err := embedded.Agent()
	if _, missing := os.Stat("bin/agent"); missing != nil {
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
