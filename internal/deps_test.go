package internal_test

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/tombolo-dev/tombolo/"

// below lists what a package (and those in folders below it) may depend on of
// this module, itself left out. Whatever is not listed may not be imported, not
// even through others. Test packages are free.
var below = map[string][]string{
	"internal/agent":         {"internal/trust"},
	"internal/agent/hostapi": {},
	"internal/engine":        {},
	"internal/gateway":       {"internal/agent/hostapi", "internal/wholefile"},
	"internal/replace":       {},
	"internal/policy":        {},
	"internal/rules":         {"internal/policy", "internal/store"},
	"internal/audit":         {"internal/wholefile"},
	"internal/secret":        {"internal/policy", "internal/store", "internal/replace"},
	"internal/approval":      {"internal/policy", "internal/store"},
	"internal/image":         {"templates", "internal/trust"},
	"internal/store":         {},
	"internal/trust":         {},
	"internal/wholefile":     {},
	"internal/volume":        {},
	"internal/sandbox":       {"internal/engine", "internal/store", "internal/volume", "internal/policy", "internal/agent/hostapi", "internal/agent/rpc"},
	"internal/guard":         {"internal/sandbox", "internal/gateway", "internal/policy", "internal/approval", "internal/secret", "internal/audit", "internal/store"},
	"internal/guard/inside":  {"internal/policy", "internal/approval"},
	"internal/build":         {"internal/sandbox", "internal/image", "internal/store", "internal/agent/hostapi"},
	"internal/edge":          {"internal/sandbox"},
	"internal/event":         {"internal/sandbox", "internal/store"},
	"internal/certs":         {"internal/wholefile"},
	"internal/telemetry":     {"internal/sandbox", "internal/gateway"},
	"internal/api":           {"internal/sandbox", "internal/build", "internal/store", "internal/event", "internal/policy", "internal/approval", "internal/secret", "internal/audit", "internal/guard/inside"},
	"internal/api/record":    {"internal/audit"},
	"internal/api/auth":      {"internal/store", "internal/api/record"},
	"internal/api/control":   {"internal/sandbox", "internal/api/record"},
	"internal/api/options":   {"internal/sandbox", "internal/policy"},
	"internal/api/tombolo":   {"internal/api/auth", "internal/api/options", "internal/sandbox", "internal/store", "internal/policy", "internal/approval", "internal/secret", "internal/audit", "internal/guard/inside"},
	"internal/mcpgateway":    {},
	"cmd/tombolo-agent":      {"internal/agent", "internal/trust"},
	"cmd/mcp-gateway":        {"internal/mcpgateway"},
}

// never lists what a package may not depend on although a rule above lets in a
// folder that holds it: the core knows interfaces, not what implements them.
var never = map[string][]string{
	"internal/agent":       {"gvisor.dev/gvisor", "modernc.org/sqlite", module + "internal/agent/embedded"},
	"internal/sandbox":     {"gvisor.dev/gvisor", "modernc.org/sqlite"},
	"internal/edge":        {"gvisor.dev/gvisor", "modernc.org/sqlite"},
	"internal/event":       {"gvisor.dev/gvisor", "modernc.org/sqlite"},
	"internal/build":       {"gvisor.dev/gvisor/runsc", "gvisor.dev/gvisor/pkg/tcpip", "modernc.org/sqlite"}, // an image is read by gVisor's package
	"internal/api":         {"gvisor.dev/gvisor/runsc", "gvisor.dev/gvisor/pkg/tcpip", "modernc.org/sqlite"},
	"internal/api/control": {module + "internal/api/e2b"},
}

// measuring may be imported by internal/telemetry and what wires it alone.
var measuring = []string{"github.com/prometheus", "go.opentelemetry.io"}

func TestOnlyTelemetryKnowsWhatMeasures(t *testing.T) {
	for name, deps := range packages(t) {
		if withinAny(name, []string{"internal/telemetry", "internal/cli", "cmd/tombolo"}) {
			continue
		}
		for _, dep := range deps {
			require.False(t, withinAny(dep, measuring), "%s depends on %s", name, dep)
		}
	}
}

func TestDependenciesPointDownwards(t *testing.T) {
	for name, deps := range packages(t) {
		for folder, allowed := range below {
			if !within(name, folder) {
				continue
			}
			allowed := append(closure(allowed), folder)
			for _, dep := range deps {
				ours, is := strings.CutPrefix(dep, module)
				require.False(t, is && !withinAny(ours, allowed), "%s depends on %s; it may on %v only", name, ours, allowed)
				require.False(t, withinAny(dep, never[folder]), "%s depends on %s", name, dep)
			}
		}
	}
}

// closure adds what the allowed are allowed.
func closure(folders []string) []string {
	var all []string
	for _, folder := range folders {
		all = append(append(all, folder), closure(below[folder])...)
	}
	return all
}

// packages maps each package of the module, but those that only tests use, to
// all it depends on.
func packages(t *testing.T) map[string][]string {
	t.Helper()
	list := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...")
	list.Dir = ".."
	out, err := list.Output()
	require.NoError(t, err)
	found := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		name := strings.TrimPrefix(fields[0], module)
		if !strings.Contains(name, "test") {
			found[name] = fields[1:]
		}
	}
	names := slices.Collect(maps.Keys(found))
	for folder := range below {
		there := slices.ContainsFunc(names, func(name string) bool { return within(name, folder) })
		require.True(t, there, "there is a rule about %s, and no such package", folder)
	}
	return found
}

func within(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }

func withinAny(name string, folders []string) bool {
	for _, folder := range folders {
		if within(name, folder) {
			return true
		}
	}
	return false
}
