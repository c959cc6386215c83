package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of what is read of kernel specs, which anybody in the sandbox may write.
const (
	maxSpecs    = 256       // folders
	maxSpecFile = 256 << 10 // bytes
	maxSpecArgs = 256
)

// specName is what Jupyter allows as the name of a kernel.
var specName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// A kernelSpec says how to start a Jupyter kernel: a folder with a kernel.json
// (https://jupyter-client.readthedocs.io/en/stable/kernels.html).
type kernelSpec struct {
	name string // of the folder
	dir  string

	Argv          []string          `json:"argv"`
	Env           map[string]string `json:"env"`
	Language      string            `json:"language"`
	InterruptMode string            `json:"interrupt_mode"`
}

// findSpec returns the spec that a caller means by name, and the name of the
// context it is for. A name is that of a language, whose first spec is meant, or
// of a spec. The error says why the one that is meant cannot be used; ok is false
// when there is none.
func (s *Server) findSpec(name string, env []string) (spec kernelSpec, language string, err error, ok bool) {
	specs := readSpecs(env)
	for _, f := range specs {
		if f.err == nil && strings.EqualFold(f.Language, name) {
			return f.kernelSpec, s.languageOf(f.kernelSpec, specs), nil, true
		}
	}
	for _, f := range specs {
		if strings.EqualFold(f.name, name) {
			return f.kernelSpec, s.languageOf(f.kernelSpec, specs), f.err, true
		}
	}
	return kernelSpec{}, "", nil, false
}

// languageOf is the language of a spec that is the first of it, and the own name
// of any other, and of one whose language has a driver of ours. So each spec has
// one default context, by whatever name it is asked for.
func (s *Server) languageOf(spec kernelSpec, specs []specFile) string {
	language := strings.ToLower(spec.Language)
	if _, ours := s.starters[language]; ours || language == "" {
		return strings.ToLower(spec.name)
	}
	for _, f := range specs {
		if f.err == nil && strings.EqualFold(f.Language, language) {
			if f.dir == spec.dir {
				return language
			}
			break
		}
	}
	return strings.ToLower(spec.name)
}

// specLanguages are the names by which [Server.findSpec] finds usable kernels,
// one for each.
func (s *Server) specLanguages(env []string) []string {
	specs := readSpecs(env)
	names := map[string]bool{}
	for _, f := range specs {
		name := s.languageOf(f.kernelSpec, specs)
		_, ours := s.starters[name]
		_, alias := aliases[name]
		if !ours && !alias && f.err == nil {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

type specFile struct {
	kernelSpec
	err error // why it cannot be used
}

// readSpecs reads all specs, the more important first. Of two with one name the
// first counts.
func readSpecs(env []string) []specFile {
	var specs []specFile
	seen := map[string]bool{}
	for _, root := range specRoots(env) {
		entries, err := os.ReadDir(root)
		if err != nil {
			continue
		}
		for _, entry := range entries {
			name := entry.Name()
			if len(specs) >= maxSpecs || !specName.MatchString(name) || seen[strings.ToLower(name)] {
				continue
			}
			spec, err := readSpec(filepath.Join(root, name))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			seen[strings.ToLower(name)] = true
			specs = append(specs, specFile{spec, err})
		}
	}
	return specs
}

// specRoots are the folders where Jupyter looks, in its order: JUPYTER_PATH, the
// users', that of the installation to which python3 belongs, the system's.
func specRoots(env []string) []string {
	var data []string
	for _, dir := range filepath.SplitList(lookup(env, "JUPYTER_PATH")) {
		if filepath.IsAbs(dir) {
			data = append(data, dir)
		}
	}
	for _, home := range []string{lookup(env, "HOME"), homeDir, "/root"} {
		if filepath.IsAbs(home) {
			data = append(data, filepath.Join(home, ".local/share/jupyter"))
		}
	}
	if python := findExecutable(env, "python3"); python != "" {
		data = append(data, filepath.Join(filepath.Dir(filepath.Dir(python)), "share/jupyter"))
	}
	data = append(data, "/usr/local/share/jupyter", "/usr/share/jupyter")
	var roots []string
	for _, dir := range data {
		if root := filepath.Join(dir, "kernels"); !slices.Contains(roots, root) {
			roots = append(roots, root)
		}
	}
	return roots
}

func readSpec(dir string) (kernelSpec, error) {
	spec := kernelSpec{name: filepath.Base(dir), dir: dir}
	path := filepath.Join(dir, "kernel.json")
	// A named pipe must not hold the agent up.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return spec, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return spec, fmt.Errorf("%s is not a file", path)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxSpecFile+1))
	if err != nil {
		return spec, fmt.Errorf("read %s: %w", path, err)
	}
	if len(text) > maxSpecFile {
		return spec, fmt.Errorf("%s has more than %d bytes", path, maxSpecFile)
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		return spec, fmt.Errorf("%s is not the JSON expected: %w", path, err)
	}
	return spec, spec.check(path)
}

func (s kernelSpec) check(path string) error {
	if len(s.Argv) == 0 || s.Argv[0] == "" {
		return fmt.Errorf("%s names no program (argv)", path)
	}
	if len(s.Argv) > maxSpecArgs {
		return fmt.Errorf("%s has more than %d arguments (argv)", path, maxSpecArgs)
	}
	for _, arg := range s.Argv {
		if strings.Contains(arg, "\x00") {
			return fmt.Errorf("%s has an argument that no process can have", path)
		}
	}
	for name, value := range s.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("%s has the variable %.40q, which no process can have", path, name)
		}
	}
	switch s.InterruptMode {
	case "", "signal", "message":
	default:
		return fmt.Errorf("%s has an unknown interrupt_mode, %.40q", path, s.InterruptMode)
	}
	return nil
}

// argv is the command line for a connection file.
func (s kernelSpec) argv(connectionFile string) []string {
	fill := strings.NewReplacer("{connection_file}", connectionFile, "{resource_dir}", s.dir)
	argv := make([]string, len(s.Argv))
	for i, arg := range s.Argv {
		argv[i] = fill.Replace(arg)
	}
	return argv
}

// environ adds the spec's variables to env; they may name those of env as ${NAME}.
func (s kernelSpec) environ(env []string) []string {
	env = slices.Clone(env)
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		value := braced.ReplaceAllStringFunc(s.Env[name], func(reference string) string {
			return lookup(env, reference[2:len(reference)-1])
		})
		env = append(env, name+"="+value)
	}
	return env
}

var braced = regexp.MustCompile(`\$\{[A-Za-z_][A-Za-z0-9_]*\}`)
