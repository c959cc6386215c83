package build

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommandsOfAPlan(t *testing.T) {
	sh := func(script string) []string { return []string{"/bin/bash", "-l", "-c", script} }
	plan := Plan{
		Stages: []Stage{
			{From: From{Image: "debian"}, Steps: []Step{
				{Kind: Run, Argv: sh("make")},
				{Kind: Run, Argv: sh("apt-get update"), User: "root"},
				{Kind: User, User: "builder:staff"},
				{Kind: Run, Argv: []string{"/bin/sh", "-c", "cc x.c"}},
				{Kind: Run, Argv: []string{"/usr/bin/make", "all"}},
			}},
			{From: From{Template: "base"}, Steps: []Step{
				{Kind: Run, Argv: sh("id")},
				{Kind: Copy, Path: "/x"},
				{Kind: User, User: "000"},
				{Kind: Run, Argv: sh("id -u")},
				{Kind: User, User: "$WHO"},
				{Kind: Run, Argv: sh("whoami")},
				{Kind: User, User: "web"},
			}},
		},
		StartCmd: "serve", ReadyCmd: "curl localhost",
	}
	require.Equal(t, []Command{
		{"make", "user"}, {"apt-get update", "root"}, {"cc x.c", "builder"}, {"/usr/bin/make all", "builder"},
		{"id", "root"}, // whom the template says is not known here
		{"id -u", "root"}, {"whoami", "root"},
		{"serve", "web"}, {"curl localhost", "web"},
	}, plan.Commands())
	plan.Stages = append(plan.Stages, Stage{From: From{Stage: 1}, Steps: []Step{{Kind: Run, Argv: sh("make install")}}})
	after := plan.Commands()
	require.Equal(t, Command{"make install", "builder"}, after[len(after)-3], "a stage goes on as whom the other ended")
	plan.Stages[0].AsImage = true
	require.Equal(t, "root", plan.Commands()[0].User, "an image says whom")
}
