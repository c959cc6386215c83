package build_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/build"
	"github.com/tombolo-dev/tombolo/internal/image"
)

// lines writes a plan as text, one line each for stages and steps.
func lines(d build.Dockerfile) []string {
	var out []string
	begins := func(f build.From) string {
		switch {
		case f.Template != "":
			return "template " + f.Template
		case f.Stage != 0:
			return fmt.Sprintf("stage %d", f.Stage)
		}
		if f.Login != nil {
			return "image " + f.Image + " as " + f.Login.User
		}
		return "image " + f.Image
	}
	for i, stage := range d.Plan.Stages {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%d: %s %s", i+1, begins(stage.From), stage.Name)))
		for _, s := range stage.Steps {
			line := string(s.Kind)
			for _, arg := range s.Argv {
				for title, script := range map[string]string{"see": "if [ -d \"$1\" ] &&", "remove": "if [ ! -d \"$1\" ]; then"} {
					if strings.HasPrefix(arg, script) {
						arg = title
					}
				}
				line += fmt.Sprintf(" %q", arg)
			}
			for _, v := range s.Vars {
				line += fmt.Sprintf(" %s=%s", v.Name, v.Value)
			}
			if s.Kind == build.Copy {
				line += " " + strings.Join(s.Sources, " ")
				for _, c := range s.Contents {
					line += fmt.Sprintf("%s=%q", c.Name, c.Text)
				}
				if s.From != nil {
					line += " of " + begins(*s.From)
				}
				line += " to"
			}
			if s.Path != "" {
				line += " " + s.Path
			}
			if s.User != "" {
				line += " by " + s.User
			}
			if s.Mode != nil {
				line += fmt.Sprintf(" mode %o", *s.Mode)
			}
			if s.Unpack {
				line += " unpack"
			}
			out = append(out, line)
		}
	}
	if d.Plan.StartCmd != "" {
		out = append(out, "start "+d.Plan.StartCmd, "ready "+d.Plan.ReadyCmd)
	}
	return append(out, d.Notes...)
}

// asUser is what a Dockerfile without USER and WORKDIR ends with.
var asUser = []string{"USER by user", "WORKDIR /home/user"}

func TestDockerfiles(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		args map[string]string
		to   string
		want []string
	}{
		"a usual one": {
			text: "FROM python:3.13-slim\nWORKDIR /app\nENV A=1 B=\"two words\" PATH=/opt/bin:$PATH\nRUN pip install \\\n  flask\nUSER app\nEXPOSE 80\nCMD [\"python\", \"-m\", \"app one\"]",
			want: []string{"1: image python:3.13-slim", "WORKDIR /app", `ENV A=1 B="two words" PATH=/opt/bin:$PATH`,
				`RUN "/bin/sh" "-c" "pip install   flask"`, "USER by app", "start python -m 'app one'", "ready ",
				"Dockerfile, line 7: EXPOSE says nothing to a sandbox, whose every port can be reached"},
		},
		"without USER and WORKDIR it is as with E2B's clients": {
			text: "FROM alpine\nRUN true",
			want: append([]string{"1: image alpine", `RUN "/bin/sh" "-c" "true"`}, asUser...),
		},
		"a template keeps its own": {
			text: "FROM template:base:stable\nRUN [\"echo\", \"$HOME\"]",
			want: []string{"1: template base:stable", `RUN "echo" "$HOME"`},
		},
		"images that E2B's templates are made of are templates here": {
			text: "FROM e2bdev/base:latest\nCOPY --from=e2bdev/desktop /x /x",
			want: []string{"1: template base", "COPY /x of template desktop to /x"},
		},
		"stages that are needed, in order": {
			text: "FROM a AS one\nFROM b AS two\nFROM c AS unused\nFROM one AS three\nCOPY --from=two /x /y /z/\nFROM three\nCOPY --from=1 a b\nCOPY --from=other:1 /etc/x .",
			want: append([]string{"1: image a one", "2: image b two", "3: stage 1 three", "COPY /x /y of stage 2 to /z/", "4: stage 3",
				"COPY /a of stage 2 to b", "COPY /etc/x of image other:1 to ."}, asUser...),
		},
		"a target": {
			text: "FROM a AS one\nRUN 1\nFROM b AS two\nRUN 2", to: "ONE",
			want: append([]string{"1: image a one", `RUN "/bin/sh" "-c" "1"`}, asUser...),
		},
		"arguments": {
			text: "ARG V=1\nARG IMAGE=img:$V\nFROM $IMAGE\nARG V\nARG W=w$V\nARG NONE\nARG TARGETARCH\nENV X=$W Y=${NONE:-n}\nUSER u$W",
			args: map[string]string{"V": "it's", "HTTP_PROXY": "http://p"},
			want: []string{"1: image img:it's", "ARG HTTP_PROXY='http://p'", `ARG V='it'\''s'`, "ARG W=w$V", "ARG TARGETARCH='amd64'",
				"ENV X=$W Y=${NONE:-n}", "USER by u$W", "WORKDIR /home/user"},
		},
		"shells and heredocs": {
			text: "FROM a\nSHELL [\"/bin/bash\", \"-ec\"]\nRUN <<EOF\necho 1\necho 2\nEOF\nRUN cat <<X > f\nhello\nX\nRUN <<E\n#!/usr/bin/env python3\nprint(1)\nE",
			want: append([]string{"1: image a", `RUN "/bin/bash" "-ec" "echo 1\necho 2\n"`, `RUN "/bin/bash" "-ec" "cat <<X > f\nhello\nX"`,
				`RUN "/bin/bash" "-ec" "script=$(mktemp) && cat >\"$script\" <<'E' && chmod +x \"$script\" && \"$script\"; status=$?; rm -f \"$script\"; exit $status\n#!/usr/bin/env python3\nprint(1)\nE\n"`},
				asUser...),
		},
		"files of the context": {
			text: "FROM a\nCOPY app/main.py /srv/run.py\nCOPY --chown=app:app --chmod=750 app /srv\nCOPY *.txt app/ /all/\nADD some.tgz notes.txt /x/\nCOPY <<E /etc/greeting\nhello\nE",
			want: append([]string{"1: image a", "COPY main.py to /srv/run.py", "COPY . to /srv by app:app mode 750", "COPY . to /all/",
				"COPY 0/some.tgz 1/notes.txt to /x/ unpack", "COPY E to /etc/greeting"}, asUser...),
		},
		"arguments of the stage that one is made from": {
			text: "FROM a AS b\nARG V=app\nARG NONE\nFROM b\nCOPY $V ${NONE:-notes.txt} /x/\nFROM b\nARG V\nCOPY $V /x\n",
			want: append([]string{"1: image a b", "ARG V=app", "2: stage 1", "COPY . to /x"}, asUser...),
		},
		"variables with another value in their place": {
			text: "FROM a\nARG D\nENV E=${UID:-1}\nCOPY --chown=${UID:-1000}:$GID --chmod=${D:-750} ${D:-app} /x\nUSER ${UID:-1000}:${GID:-1}",
			want: []string{"1: image a", "ENV E=${UID:-1}", "COPY . to /x by ${UID:-1000}:$GID mode 750", "USER by ${UID:-1000}:${GID:-1}", "WORKDIR /home/user"},
		},
		"heredocs with variables of the image": {
			text: "FROM a\nARG V=1\nARG NONE\nCOPY <<A <<B <<'C' app/main.py /x/\n$V$NONE\nA\nPATH=\"/app:$PATH\"\nB\n$PATH\nC",
			want: append([]string{"1: image a", "ARG V=1", `COPY B="PATH=\"/app:$PATH\"\n" to /x/`, "COPY . to /x/"}, asUser...),
		},
		"entrypoint and command": {
			text: "FROM a\nENTRYPOINT [\"serve\"]\nCMD [\"--port\", \"80 80\"]\nHEALTHCHECK --interval=5s CMD curl -f http://localhost/",
			want: append(append([]string{"1: image a"}, asUser...), "start serve --port '80 80'", "ready curl -f http://localhost/"),
		},
		"entrypoint of the shell": {
			text: "FROM a\nENTRYPOINT exec serve\nCMD [\"x\"]\nHEALTHCHECK NONE",
			want: append(append([]string{"1: image a"}, asUser...), "start exec serve", "ready "),
		},
		"entrypoint with a command of the shell": {
			text: "FROM a AS b\nCMD echo $X\nFROM b\nENTRYPOINT [\"e\"]\nCMD echo $X",
			want: append(append([]string{"1: image a b", "2: stage 1"}, asUser...), "start e /bin/sh -c 'echo $X'", "ready "),
		},
		"start commands of other shells": {
			text: "FROM a AS b\nSHELL [\"python3\", \"-c\"]\nCMD print(1)\nFROM b\nSHELL [\"/bin/ash\", \"-c\"]\nENTRYPOINT [\"e\"]\nCMD echo $X",
			want: append(append([]string{"1: image a b", "2: stage 1"}, asUser...), "start e /bin/ash -c 'echo $X'", "ready "),
		},
		"a start command of another shell alone": {
			text: "FROM a AS b\nSHELL [\"python3\", \"-c\"]\nCMD print(1)\nFROM b",
			want: append(append([]string{"1: image a b", "2: stage 1"}, asUser...), "start python3 -c 'print(1)'", "ready "),
		},
		"an entrypoint takes an inherited command away": {
			text: "FROM a AS b\nCMD one\nFROM b\nENTRYPOINT [\"e\"]",
			want: append(append([]string{"1: image a b", "2: stage 1"}, asUser...), "start e", "ready "),
		},
		"bind mounts": {
			text: "FROM b AS one\nFROM a\nRUN --mount=target=src,source=app --mount=type=bind,from=one,source=/x,target=/y make",
			want: append([]string{"1: image b one", "2: image a", `RUN "/bin/sh" "-c" "see" "sh" "src" by root`, "COPY . to 'src'",
				`RUN "/bin/sh" "-c" "see" "sh" "/y" by root`, "COPY /x of stage 1 to '/y'", `RUN "/bin/sh" "-c" "make"`,
				`RUN "/bin/sh" "-c" "remove" "sh" "/y" by root`, `RUN "/bin/sh" "-c" "remove" "sh" "src" by root`}, asUser...),
		},
		"what is left out": {
			text: "FROM --platform=linux/amd64 a\nLABEL x=y\nMAINTAINER z\nVOLUME /v\nSTOPSIGNAL 9\nONBUILD RUN x\nUSER a:b\nRUN --mount=type=cache,target=/c true",
			want: []string{"1: image a", "USER by a", `RUN "/bin/sh" "-c" "true"`, "WORKDIR /home/user",
				"Dockerfile, line 2: LABEL is left out; templates have no labels",
				"Dockerfile, line 3: MAINTAINER is left out; templates have no labels",
				"Dockerfile, line 4: VOLUME is left out; what is in the folder is part of the template",
				"Dockerfile, line 5: STOPSIGNAL is left out; a sandbox ends at once",
				"Dockerfile, line 6: ONBUILD is left out; templates run nothing in the builds that begin with them",
				`Dockerfile, line 7: USER has the groups that the account has; the group "b" is left out`,
				"Dockerfile, line 8: --mount=type=cache is left out: what the command writes to /c stays in the template"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			read, err := build.ParseDockerfile(test.text, build.DockerfileOptions{
				BuildArgs: test.args, Target: test.to, Context: folder(t, "app/main.py", "app/sub/x", "a.txt", "notes.txt", "some.tgz=\x1f\x8b"),
			})
			require.NoError(t, err)
			require.Equal(t, test.want, lines(read))
		})
	}
}

func TestDockerfilesThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                            "file with no instructions",
		"RUN x":                                       "line 1: no build stage in current context",
		"FROM a\nFOO x":                               "line 2: unknown instruction: FOO",
		"FROM a\n\nCOPY x":                            "line 3: COPY requires at least two arguments",
		"FROM scratch":                                "line 1: FROM scratch is an empty file system",
		"FROM $X":                                     `line 1: FROM "$X" names nothing`,
		"FROM template:":                              "line 1: template: needs the name of a template",
		"FROM --platform=linux/s390x a":               "line 1: --platform=linux/s390x cannot be built here",
		"FROM a\nCOPY none /x":                        `line 2: "none": the context has no such file, or .dockerignore leaves it out`,
		"FROM a\nCOPY ../../etc/passwd /x":            `line 2: "../../etc/passwd": the context has no such file`,
		"FROM a\nCOPY out /x":                         `line 2: "out": the context has no such file`,
		"FROM a\nCOPY a b /x":                         `line 2: with 2 sources the destination must be a folder and end with a "/"`,
		"FROM a\nCOPY $X /x":                          "line 2: the variable X in $X has no value in the Dockerfile; those of the image cannot be used here",
		"FROM a\nENV X=$PATH\nCOPY $X /x":             "line 3: the variable X in $X depends on variables of the image",
		"FROM a\nCOPY ${X:-a} /x":                     "line 2: the variable X in ${X:-a} has no value in the Dockerfile; those of the image cannot be used here",
		"FROM a\nCOPY --chmod=u+x a /x":               "line 2: --chmod=u+x: give an octal mode",
		"FROM a\nADD https://example.com/x /x":        "line 2: ADD of https://example.com/x is not there; RUN curl or git instead",
		"FROM a\nRUN --mount=type=secret,id=x true":   "line 2: --mount=type=secret is not there",
		"FROM a\nRUN --mount=type=bind,target=/ true": "line 2: --mount=type=bind cannot cover the root of the file system",
		"FROM a\nRUN --network=none true":             "line 2: --network=none is not there",
		"FROM a\nCOPY --from=b --exclude=x a /x":      "line 2: COPY --from takes no --parents",
		"# escape=`\nFROM a":                          "the directive escape can only be a backslash",
		"FROM a\nRUN <<EOF\nx":                        "unterminated heredoc",
	} {
		_, err := build.ParseDockerfile(text, build.DockerfileOptions{Context: folder(t, "a", "b", "out -> /etc/passwd")})
		require.ErrorContains(t, err, want, text)
	}
	_, err := build.ParseDockerfile("FROM a", build.DockerfileOptions{Target: "none"})
	require.EqualError(t, err, `Dockerfile: it has no stage "none"`)
	_, err = build.ParseDockerfile("FROM a\nCOPY x /", build.DockerfileOptions{})
	require.EqualError(t, err, "Dockerfile, line 2: there is no context to copy files from")
	_, err = build.ParseDockerfile("FROM a", build.DockerfileOptions{Login: func(string) (*image.Login, error) { return nil, errors.New("no helper") }})
	require.EqualError(t, err, "Dockerfile, line 1: no helper")
}

// The files of a COPY are packed with what .dockerignore leaves, and the hash
// follows names, modes and contents, and no times.
func TestContextsArePacked(t *testing.T) {
	files := []string{"app/main.py=1", "app/cache/x=2", "app/cache/keep=3", "app/link -> main.py", "app/out -> /etc/passwd",
		"alias -> app", "absolute -> /alias/main.py", "up -> ../../app/main.py", ".dockerignore=app/cache/*\n!app/cache/keep\n*.log\n", "a.log=4", "b.txt=5"}
	for _, test := range []struct {
		line string
		want []string
	}{
		{"COPY app /x", []string{"cache/", "cache/keep=3", "link -> main.py", "main.py=1", "out -> /etc/passwd"}},
		{"COPY alias /x", []string{"cache/", "cache/keep=3", "link -> main.py", "main.py=1", "out -> /etc/passwd"}},
		{"COPY app/link /x", []string{"link=1"}},
		{"COPY alias/cache/../link /x", []string{"link=1"}},
		{"COPY --exclude=**/*.py app /x", []string{"cache/", "cache/keep=3", "link -> main.py", "out -> /etc/passwd"}},
		{"COPY --exclude=main.py app /x", []string{"cache/", "cache/keep=3", "link -> main.py", "out -> /etc/passwd"}},
		{"COPY --exclude=keep app/cache b.txt /x/", []string{"b.txt=5"}},
		{"COPY --exclude=*.txt --exclude=cache app *.txt /x/", []string{"link -> main.py", "main.py=1", "out -> /etc/passwd"}},
		{"COPY --exclude=* app /x/", []string{"./"}},
		{"COPY --exclude=*.txt b.txt /x/", []string{"./"}},
		{"COPY --parents --exclude=*.txt b.txt /x/", []string{"./"}},
		{"COPY --parents --exclude=app app /x/", []string{"./"}},
		{"COPY --parents --exclude=app/main.py --exclude=keep app /x", []string{"app/", "app/cache/", "app/cache/keep=3", "app/link -> main.py", "app/out -> /etc/passwd"}},
		{"COPY absolute /x", []string{"absolute=1"}},
		{"COPY up /x", []string{"up=1"}},
		{"COPY --parents app/cache/* /x", []string{"app/cache/keep=3"}},
		{"COPY *.t?t /x/", []string{"b.txt=5"}},
		{"COPY . /x", []string{".dockerignore=app/cache/*\n!app/cache/keep\n*.log\n", "absolute -> /alias/main.py", "alias -> app", "app/", "app/cache/", "app/cache/keep=3",
			"app/link -> main.py", "app/main.py=1", "app/out -> /etc/passwd", "b.txt=5", "up -> ../../app/main.py"}},
	} {
		read, err := build.ParseDockerfile("FROM a\n"+test.line, build.DockerfileOptions{Context: folder(t, files...)})
		require.NoError(t, err, test.line)
		require.Len(t, read.Uploads, 1)
		require.Equal(t, test.want, contents(t, read.Uploads[0]), test.line)
		again, err := build.ParseDockerfile("FROM b\n"+test.line, build.DockerfileOptions{Context: folder(t, files...)})
		require.NoError(t, err)
		require.Equal(t, read.Uploads[0].Hash, again.Uploads[0].Hash)
	}
	dir := folder(t, files...)
	read, err := build.ParseDockerfile("FROM a\nCOPY app /x", build.DockerfileOptions{Context: dir})
	require.NoError(t, err)
	require.NoError(t, dir.WriteFile("app/main.py", []byte("9"), 0o644))
	require.ErrorContains(t, read.Uploads[0].Write(io.Discard), "changed while they were read")
	changed, err := build.ParseDockerfile("FROM a\nCOPY app /x", build.DockerfileOptions{Context: dir})
	require.NoError(t, err)
	require.NotEqual(t, read.Uploads[0].Hash, changed.Uploads[0].Hash)
	require.NoError(t, dir.Chmod("app/main.py", 0o755))
	mode, err := build.ParseDockerfile("FROM a\nCOPY app /x", build.DockerfileOptions{Context: dir})
	require.NoError(t, err)
	require.NotEqual(t, mode.Uploads[0].Hash, changed.Uploads[0].Hash)
}

// contents lists an archive, in the notation of folder.
func contents(t *testing.T, u build.Upload) []string {
	t.Helper()
	var archive bytes.Buffer
	require.NoError(t, u.Write(&archive))
	var found []string
	reader := tar.NewReader(&archive)
	for {
		h, err := reader.Next()
		if err == io.EOF {
			return found
		}
		require.NoError(t, err)
		require.Zero(t, h.Uid+h.Gid)
		line := h.Name
		switch h.Typeflag {
		case tar.TypeSymlink:
			line += " -> " + h.Linkname
		case tar.TypeReg:
			text, err := io.ReadAll(reader)
			require.NoError(t, err)
			line += "=" + string(text)
		}
		found = append(found, line)
	}
}

// folder makes a context of "name", "name=content" and "name -> link".
func folder(t testing.TB, files ...string) *os.Root {
	t.Helper()
	dir := t.TempDir()
	for _, file := range files {
		name, to, linked := strings.Cut(file, " -> ")
		name, content, _ := strings.Cut(name, "=")
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		if linked {
			require.NoError(t, os.Symlink(to, filepath.Join(dir, name)))
			continue
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	return root
}

func TestWhatADockerfileComesToIsBounded(t *testing.T) {
	many := strings.Repeat
	long := "ARG A=" + many("x", 40<<10) + "\n"
	for _, tt := range []struct{ why, text, says string }{
		{"a variable of itself", "FROM a\n" + long + "ENV A=$A$A$A$A\n", "longer than 127 KiB"},
		{"before FROM", long + "ARG A=$A$A$A$A\nFROM a\n", "longer than 127 KiB"},
		{"in the name of the image", long + "FROM $A$A$A$A\n", "longer than 127 KiB"},
		{"in a heredoc", "FROM a\n" + long + "COPY <<E /x\n" + many("$A", 30) + "\nE\n", "longer than 1024 KiB"},
		{"in a source", "FROM a\n" + long + "COPY $A$A$A$A /x\n", "longer than 127 KiB"},
		{"a value times another", "FROM a\nARG A=" + many("x", 4000) + "\nARG B=${A//x/$A}\n", "longer than"},
		{"many values in one ENV", "FROM a\n" + long + "ENV" + many(" B=$A", 100) + "\n", "too many variables"},
		{"many ARGs of a large one", long + "FROM a\n" + many("ARG A\n", 900), "too many instructions"},
		{"many of them in one line", long + "FROM a\nARG" + many(" A", 10_000) + "\n", "too many instructions"},
		{"many instructions", "FROM a\n" + many("RUN x\n", 1001), "too many instructions"},
		{"many stages", many("FROM a\n", 1001), "more than 1000 stages"},
		{"many stages that are needed", "FROM a AS s0\n" + chain(70), "at most 64 stages"},
	} {
		_, err := build.ParseDockerfile(tt.text, build.DockerfileOptions{})
		require.ErrorContains(t, err, tt.says, tt.why)
		require.ErrorAs(t, err, new(*build.DockerfileError), tt.why)
	}
}

// chain is stages that are made from one another.
func chain(n int) (text string) {
	for i := range n {
		text += fmt.Sprintf("FROM s%d AS s%d\n", i, i+1)
	}
	return text
}

func FuzzParseDockerfile(f *testing.F) {
	f.Add("ARG V=1\nFROM a:$V AS b\nARG V\nENV X=${V:-2} Y=\"$X\"\nRUN <<E\nx\nE\nCOPY --from=b --chown=$V a /x\nFROM b\nCMD [\"x\"]")
	f.Add("FROM a\nCOPY <<A <<B /x/\n$V\nA\nb\nB\nADD *.tgz /x\nHEALTHCHECK CMD x\nENTRYPOINT y")
	f.Add("FROM a\nRUN --mount=type=bind,from=$X true\nONBUILD COPY . .\nSHELL [\"x\"]\nUSER $Y")
	root := folder(f, "a", "x.tgz=\x1f\x8b", "d/e")
	f.Fuzz(func(t *testing.T, text string) {
		read, err := build.ParseDockerfile(text, build.DockerfileOptions{Context: root})
		if err != nil {
			require.ErrorAs(t, err, new(*build.DockerfileError))
			return
		}
		require.NotEmpty(t, read.Plan.Stages)
		for i, stage := range read.Plan.Stages {
			require.LessOrEqual(t, stage.From.Stage, i)
		}
		for _, u := range read.Uploads {
			require.NoError(t, u.Write(io.Discard))
		}
	})
}
