package build

import (
	"testing"

	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m, nil) }
