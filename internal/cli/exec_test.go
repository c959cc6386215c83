package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	processrpc "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
)

func TestExitCodeIsTheCommands(t *testing.T) {
	for _, test := range []struct {
		end  *processrpc.ProcessEvent_EndEvent
		want int
	}{
		{&processrpc.ProcessEvent_EndEvent{Exited: true, Status: "exit status 0"}, 0},
		{&processrpc.ProcessEvent_EndEvent{Exited: true, ExitCode: 3, Status: "exit status 3"}, 3},
		{&processrpc.ProcessEvent_EndEvent{Exited: true, ExitCode: 255, Status: "exit status 255"}, 255},
		{&processrpc.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: killed"}, 137},
		{&processrpc.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: terminated"}, 143},
		{&processrpc.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: interrupt"}, 130},
		{&processrpc.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: segmentation fault (core dumped)"}, 139},
		{&processrpc.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: broken pipe"}, 141},
		{&processrpc.ProcessEvent_EndEvent{ExitCode: -1, Status: "nothing anybody knows"}, 137},
		{&processrpc.ProcessEvent_EndEvent{}, 137}, // did not exit, and no code
	} {
		err := exitOf(test.end)
		if test.want == 0 {
			require.NoError(t, err)
			continue
		}
		require.Equal(t, exitCode(test.want), err, "%v", test.end)
	}
}

func TestPrintableKeepsTheTerminalFromBeingSteered(t *testing.T) {
	for text, want := range map[string]string{
		"plain text":            "plain text",
		"a\ttab":                "a\ttab",
		"\x1b[2Jcleared":        "?[2Jcleared",
		"\x1b]0;title\a":        "?]0;title?",
		"\x1b[1;31mred\x1b[0m":  "red",
		"one\r\ntwo\x00\x7f":    "one??two??",
		"C1 \u009b31m":          "C1 ?31m",
		"süß 日本 🙂":              "süß 日本 🙂",
		"not UTF-8 \xff\x9b31m": "not UTF-8 \ufffd\ufffd31m",
		"":                      "",
	} {
		require.Equal(t, want, printable(text), "%q", text)
	}
}
