package image

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRecipesOfTheProgramLoad(t *testing.T) {
	assert.Equal(t, []string{"base", "code-interpreter-v1", "desktop", "mcp-gateway"}, Recipes())
	for _, name := range Recipes() {
		r, err := Load(name)
		require.NoError(t, err)
		assert.Equal(t, name, r.Name)
		assert.Equal(t, "user", r.User)
		assert.Equal(t, "/home/user", r.Workdir)
		assert.Len(t, r.Hash(), 64)
	}
}

func TestInterpreterIsMadeFromBase(t *testing.T) {
	r, err := Load("code-interpreter-v1")
	require.NoError(t, err)
	parent, ok := r.Parent()
	require.True(t, ok)
	assert.Equal(t, "base", parent.Name)
	assert.Equal(t, []string{"python", "javascript"}, r.Kernels)
	_, ok = parent.Parent()
	assert.False(t, ok)
}

func TestLoadNamesARecipeThatIsNotThere(t *testing.T) {
	for _, name := range []string{"nope", "", "../base", "base/files"} {
		_, err := Load(name)
		assert.ErrorIs(t, err, ErrNoRecipe, name)
	}
}

func TestParseFillsInDefaults(t *testing.T) {
	r, err := Parse([]byte("name: a\ndebian: trixie\n"))
	require.NoError(t, err)
	assert.Equal(t, 2, r.CPUs)
	assert.Equal(t, Size(512<<20), r.Memory)
	assert.Equal(t, Size(10<<30), r.Disk)
}

func TestParseReadsEveryField(t *testing.T) {
	r, err := Parse([]byte(`
name: a
from: base
packages: [g++, libc6-dev, "foo:amd64"]
pip: [numpy, "pandas>=2", "uvicorn[standard]", "a==1.0"]
npm: [typescript, "@types/node@20"]
modes: {etc/x: "4755"}
run: [echo hi, "a | b"]
user: user
workdir: /home/user
env: {A: b}
kernels: [python]
start: serve
ready: curl localhost
cpus: 4
memory: 2GiB
disk: 1TiB
`))
	require.NoError(t, err)
	assert.Equal(t, []string{"numpy", "pandas>=2", "uvicorn[standard]", "a==1.0"}, r.Pip)
	assert.Equal(t, Size(2<<30), r.Memory)
	assert.Equal(t, Size(1<<40), r.Disk)
	assert.Equal(t, "serve", r.Start)
}

func TestParseSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown field", "name: a\ndebian: trixie\nflavour: x", "flavour"},
		{"not YAML", "name: [", "1"},
		{"empty", "", "name"},
		{"no name", "debian: trixie", "name"},
		{"name with a slash", "name: a/b\ndebian: trixie", "name"},
		{"no beginning", "name: a", "exactly one of debian"},
		{"two beginnings", "name: a\nfrom: b\ndebian: trixie", "exactly one of debian"},
		{"suite with an option", "name: a\ndebian: --help", "debian"},
		{"package with an option", "name: a\ndebian: trixie\npackages: [--force]", "packages"},
		{"package with a comma", "name: a\ndebian: trixie\npackages: ['a,b']", "packages"},
		{"package twice", "name: a\ndebian: trixie\npackages: [git, git]", "twice"},
		{"pip option", "name: a\ndebian: trixie\npip: ['--index-url=x']", "pip"},
		{"pip shell", "name: a\ndebian: trixie\npip: ['a;b']", "pip"},
		{"npm option", "name: a\ndebian: trixie\nnpm: ['-g']", "npm"},
		{"empty line to run", "name: a\ndebian: trixie\nrun: ['']", "run: line 1"},
		{"relative workdir", "name: a\ndebian: trixie\nworkdir: x", "workdir"},
		{"user root:root", "name: a\ndebian: trixie\nuser: 'root:root'", "user"},
		{"env with a space", "name: a\ndebian: trixie\nenv: {'A B': c}", "env"},
		{"no CPU", "name: a\ndebian: trixie\ncpus: 0", "cpus"},
		{"memory without a unit", "name: a\ndebian: trixie\nmemory: 512", "512MiB"},
		{"little memory", "name: a\ndebian: trixie\nmemory: 1MiB", "memory"},
		{"endless memory", "name: a\ndebian: trixie\nmemory: 99999999999999TiB", "size"},
		{"ready without start", "name: a\ndebian: trixie\nready: x", "ready"},
		{"too long", "name: " + strings.Repeat("a", maxRecipeBytes), "longer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse([]byte(c.text))
			require.Error(t, err)
			assert.Contains(t, err.Error(), c.want)
		})
	}
}

func TestLoadChecksTheRecipeAgainstItsFolder(t *testing.T) {
	text := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	for _, c := range []struct {
		name string
		tree fstest.MapFS
		want string
	}{
		{"another name", fstest.MapFS{"a/template.yaml": text("name: b\ndebian: trixie")}, "must be the folder's"},
		{"a parent that is not there", fstest.MapFS{"a/template.yaml": text("name: a\nfrom: b")}, "no such recipe: b"},
		{"a circle", fstest.MapFS{
			"a/template.yaml": text("name: a\nfrom: b"), "b/template.yaml": text("name: b\nfrom: a"),
		}, "a from b from a"},
		{"a mode for no file", fstest.MapFS{
			"a/template.yaml": text("name: a\ndebian: trixie\nmodes: {etc/x: \"0600\"}"),
		}, "not under files/"},
		{"a mode that is none", fstest.MapFS{
			"a/template.yaml": text("name: a\ndebian: trixie\nmodes: {etc/x: rwx}"), "a/files/etc/x": text(""),
		}, "octal"},
		{"a link", fstest.MapFS{
			"a/template.yaml": text("name: a\ndebian: trixie"),
			"a/files/x":       &fstest.MapFile{Mode: os.ModeSymlink, Data: []byte("/etc/shadow")},
		}, "neither a file nor a folder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := LoadFrom(c.tree, "a")
			require.Error(t, err)
			assert.Contains(t, err.Error(), c.want)
		})
	}
}

func TestHashFollowsEveryChange(t *testing.T) {
	tree := func(base, child, file string) Recipe {
		r, err := LoadFrom(fstest.MapFS{
			"b/template.yaml": {Data: []byte("name: b\ndebian: trixie\n" + base)},
			"c/template.yaml": {Data: []byte("name: c\nfrom: b\n" + child)},
			"c/files/etc/x":   {Data: []byte(file)},
		}, "c")
		require.NoError(t, err)
		return r
	}
	first := tree("", "", "x")
	assert.Equal(t, first.Hash(), tree("", "", "x").Hash(), "the same recipe")
	assert.Equal(t, first.Hash(), tree("", "# why\n", "x").Hash(), "a comment")

	settings := tree("", "memory: 1GiB\n", "x")
	assert.NotEqual(t, first.Hash(), settings.Hash(), "a setting")
	assert.Equal(t, first.ImageHash(), settings.ImageHash(), "a setting needs no new image")

	for what, r := range map[string]Recipe{
		"the parent":    tree("packages: [git]\n", "", "x"),
		"a package":     tree("", "packages: [git]\n", "x"),
		"a file":        tree("", "", "y"),
		"a file's mode": tree("", "modes: {etc/x: \"0600\"}\n", "x"),
		"a command":     tree("", "run: [\"true\"]\n", "x"),
	} {
		assert.NotEqual(t, first.ImageHash(), r.ImageHash(), what)
	}
}

func TestSizesReadAsTheyAreWritten(t *testing.T) {
	for _, text := range []string{"64MiB", "3GiB", "16TiB"} {
		size, err := ParseSize(text)
		require.NoError(t, err)
		assert.Equal(t, text, size.String())
	}
	for _, text := range []string{"", "MiB", "-1GiB", "1.5GiB", "1GB", "17TiB", "4294967296MiB"} {
		_, err := ParseSize(text)
		assert.Error(t, err, text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("name: a\ndebian: trixie\nmemory: 1GiB\nenv: {A: b}\nrun: [x]\n"))
	f.Add([]byte("name: a\nfrom: &x [*x]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Parse(text)
		if err != nil {
			if errors.Is(err, ErrNoRecipe) || err.Error() == "" {
				t.Fatalf("an error that says nothing: %q", err)
			}
			return
		}
		if err := r.check(); err != nil {
			t.Fatalf("accepted and not valid: %v", err)
		}
		if r.Hash() == "" {
			t.Fatal("no hash")
		}
	})
}
