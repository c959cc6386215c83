package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPairsKeepWhatIsInAValue(t *testing.T) {
	t.Setenv("FROM_HERE", "a=1,b")
	for _, test := range []struct {
		why  string
		args []string
		want map[string]string
	}{
		{"a comma and another =", []string{"-e", "OPTS=a=1,b"}, map[string]string{"OPTS": "a=1,b"}},
		{"what would be two", []string{"-e", "DSN=postgres://h/db?a=1,b=2"}, map[string]string{"DSN": "postgres://h/db?a=1,b=2"}},
		{"quotes", []string{"-e", `J={"a":"x=1"}`}, map[string]string{"J": `{"a":"x=1"}`}},
		{"lines", []string{"-e", "TEXT=one\ntwo"}, map[string]string{"TEXT": "one\ntwo"}},
		{"nothing is a value too", []string{"-e", "EMPTY="}, map[string]string{"EMPTY": ""}},
		{"several, and the last of a name counts", []string{"-e", "A=1", "--env=B=2", "-e", "A=3"}, map[string]string{"A": "3", "B": "2"}},
		{"from the environment", []string{"-e", "FROM_HERE"}, map[string]string{"FROM_HERE": "a=1,b"}},
	} {
		cmd := newRun()
		var env map[string]string
		cmd.ResetFlags()
		addEnvVarFlag(cmd, &env)
		require.NoError(t, cmd.ParseFlags(test.args), test.why)
		require.Equal(t, test.want, env, test.why)
	}
}

func TestPairsThatAreNone(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "-e", "=x", "--", "true"}, "use NAME=VALUE"},
		{[]string{"run", "-e", "", "--", "true"}, "use NAME=VALUE"},
		{[]string{"run", "-e", "NOT_THERE_AT_ALL", "--", "true"}, "no variable NOT_THERE_AT_ALL"},
		{[]string{"sandbox", "create", "-m", "name"}, "use NAME=VALUE"},
	} {
		got := tombolo(t, t.TempDir(), "", test.args...)
		require.Equal(t, 1, got.code)
		require.Contains(t, got.stderr, test.want)
	}
}
