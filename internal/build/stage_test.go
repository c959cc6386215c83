package build

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/image"
)

// settled settles a plan whose first stage begins with an image that says this.
func settled(t *testing.T, says image.Config, plan Plan) (*stage, error) {
	log, err := newJournal(filepath.Join(t.TempDir(), "log"), func(Entry) {})
	require.NoError(t, err)
	r := &build{b: &Builds{}, plan: plan, log: log}
	for i, p := range plan.Stages {
		s := &stage{build: r, plan: p}
		if i > 0 {
			if err := s.settle(t.Context()); err != nil {
				return nil, err
			}
		} else {
			s.env, s.args = map[string]string{"PATH": defaultPath}, map[string]string{}
			s.beginAs(says)
			for _, step := range p.Steps {
				task := task{Step: step}
				if err := s.settleOne(t.Context(), &task, s.args); err != nil {
					return nil, err
				}
				s.tasks = append(s.tasks, task)
			}
		}
		r.stages = append(r.stages, s)
	}
	return r.stages[len(r.stages)-1], nil
}

// TestStepsOfADockerfileKnowTheImage: what the image says counts where it stands.
func TestStepsOfADockerfileKnowTheImage(t *testing.T) {
	says := image.Config{
		Env: []string{"PATH=/app/bin", "UID=7", "TWO=2"}, User: "node:node", WorkingDir: "app", Shell: []string{"/bin/bash", "-o", "pipefail", "-c"},
	}
	for _, tt := range []struct {
		text  string
		tasks []string
		ends  string // user and directory
		says  string
	}{
		{text: "", ends: "node /app"},
		{text: "USER ${UID:-1000}", ends: "7 /app"},
		{text: "USER ${NONE:-1000}:${GID:-9}", ends: "1000 /app"},
		{text: "ARG UID\nUSER ${UID:-1000}", ends: "7 /app"},
		{text: "USER \"app:app\"", ends: "app /app"},
		{text: "USER 'a'pp:0", ends: "app /app"},
		{text: "USER a\\pp:$TWO", ends: "app /app"},
		{text: "USER $NONE", says: `"$NONE" names nobody`},
		{text: "COPY --chown=${UID:-1000}:$TWO <<E b/.\nx\nE", tasks: []string{`COPY [] to /app/b/ for "7:2"`}, ends: "node /app"},
		{text: "COPY <<E /start.sh\nexport PATH=\"/mine:$PATH\" ${NONE:-none}\nE", tasks: []string{`COPY E="export PATH=\"/mine:/app/bin\" none\n" to /start.sh for ""`}, ends: "node /app"},
		{text: "RUN x | y\nRUN [\"z\"]", tasks: []string{"RUN [/bin/bash -o pipefail -c x | y]", "RUN [z]"}, ends: "node /app"},
		{text: "SHELL [\"/bin/sh\", \"-c\"]\nRUN x", tasks: []string{"RUN [/bin/sh -c x]"}, ends: "node /app"},
		{text: "ARG V=v$UID\nENV W=w$V\nFROM a\nRUN x\nWORKDIR $V/$W/.", tasks: []string{"RUN [/bin/bash -o pipefail -c x]"}, ends: "node /app/v7/wv7"},
		{text: "ARG V=1\nFROM a AS b\nARG V=2\nFROM a\nRUN x\nUSER u$V", tasks: []string{"RUN [/bin/bash -o pipefail -c x]"}, ends: "u1 /app"},
	} {
		read, err := ParseDockerfile("FROM i AS a\n"+tt.text, DockerfileOptions{})
		require.NoError(t, err, tt.text)
		require.NoError(t, read.Plan.check(), tt.text)
		last := &read.Plan.Stages[len(read.Plan.Stages)-1]
		for n := len(last.Steps); n > 0 && strings.HasSuffix(last.Steps[n-1].User+last.Steps[n-1].Path, StageUser); n-- {
			last.Steps = last.Steps[:n-1] // what a template begins with whose Dockerfile says nothing
		}
		s, err := settled(t, says, read.Plan)
		if tt.says != "" {
			require.ErrorContains(t, err, tt.says, tt.text)
			continue
		}
		require.NoError(t, err, tt.text)
		require.Equal(t, tt.tasks, done(t, s.tasks), tt.text)
		require.Equal(t, tt.ends, s.user+" "+strings.TrimSuffix(s.workdir, "/"), tt.text)
	}
}

// done is what tasks do to files, a line each.
func done(t *testing.T, tasks []task) (lines []string) {
	for _, task := range tasks {
		switch task.Kind {
		case Run:
			lines = append(lines, fmt.Sprintf("RUN %v", task.Argv))
		case Copy:
			files := fmt.Sprint(task.Contents)
			if len(task.Contents) > 0 {
				archive, err := (&stage{}).archive(t.Context(), task)
				require.NoError(t, err)
				text, err := io.ReadAll(archive)
				require.NoError(t, err)
				require.Contains(t, string(text), task.Contents[0].Text)
				files = fmt.Sprintf("%s=%q", task.Contents[0].Name, task.Contents[0].Text)
			}
			lines = append(lines, fmt.Sprintf("COPY %s to %s for %q", files, task.Path, task.User))
		}
	}
	return lines
}
