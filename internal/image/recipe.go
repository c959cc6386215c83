package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/tombolo-dev/tombolo/templates"
)

// ErrNoRecipe says that no recipe has the name asked for.
var ErrNoRecipe = errors.New("no such recipe")

// Recipe says how a template is made: what its root image holds, and the
// settings its sandboxes start with. Get one with [Load]; a Recipe is valid and
// is not changed after that.
type Recipe struct {
	Name string `yaml:"name"`

	// What the root image holds. Exactly one of Debian (a suite) and From (the
	// name of another recipe) says what it begins with.
	Debian   string            `yaml:"debian"`
	From     string            `yaml:"from"`
	Packages []string          `yaml:"packages"` // Debian packages
	Pip      []string          `yaml:"pip"`      // requirements, installed for the system's Python
	Npm      []string          `yaml:"npm"`      // packages, installed globally
	Modes    map[string]string `yaml:"modes"`    // octal modes of files of the recipe, 0644 without
	Run      []string          `yaml:"run"`      // shell commands, run as root at the end

	// What its sandboxes start with.
	User    string            `yaml:"user"`
	Workdir string            `yaml:"workdir"`
	Env     map[string]string `yaml:"env"`
	Kernels []string          `yaml:"kernels"` // languages whose kernel is kept warm
	Start   string            `yaml:"start"`   // command that runs in every sandbox
	Ready   string            `yaml:"ready"`   // command that succeeds once Start is ready
	CPUs    int               `yaml:"cpus"`
	Memory  Size              `yaml:"memory"`
	Disk    Size              `yaml:"disk"` // what a sandbox may write

	parent *Recipe
	files  []file // tree laid over the root, parents before what they hold
}

// Size is a number of bytes. In a recipe it is written with a unit: 512MiB, 2GiB.
type Size int64

// Limits on what a recipe may ask for.
const (
	maxRecipeBytes = 1 << 20
	maxFileBytes   = 64 << 20
	maxParents     = 8
	maxCPUs        = 512
	minMemory      = 64 << 20
	maxSize        = 1 << 44
)

const (
	defaultCPUs   = 2
	defaultMemory = 512 << 20
	defaultDisk   = 10 << 30
)

// Load returns one of the recipes that come with the program, with those it is
// made from. The error is ErrNoRecipe when there is none of this name.
func Load(name string) (Recipe, error) { return LoadFrom(templates.FS, name) }

// Recipes lists the recipes that come with the program, by name.
func Recipes() []string {
	entries, err := fs.ReadDir(templates.FS, ".")
	if err != nil {
		return nil // an embedded tree has a root
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// What the names of images begin with that are no recipe's, before a "-": imported ones,
// and those that builds of plans made.
const (
	importedImages = "oci"
	builtImages    = "template"
)

// LoadFrom is Load for a tree of recipes of the caller's own, one folder each.
func LoadFrom(tree fs.FS, name string) (Recipe, error) {
	r, err := load(tree, name, nil)
	if err != nil {
		return Recipe{}, err
	}
	return *r, nil
}

func load(tree fs.FS, name string, children []string) (*Recipe, error) {
	if slices.Contains(children, name) {
		return nil, fmt.Errorf("recipe %s is made from itself: %s", name, strings.Join(append(children, name), " from "))
	}
	if len(children) > maxParents {
		return nil, fmt.Errorf("recipe %s: more than %d recipes one from another", children[0], maxParents)
	}
	if !namePattern.MatchString(name) {
		return nil, fmt.Errorf("%w: %q is not a recipe's name (lower-case letters, digits, -, _ and .)", ErrNoRecipe, name)
	}
	if name == importedImages || name == builtImages {
		return nil, fmt.Errorf("no recipe can be called %s, as the images of another kind are: give it another name", name)
	}
	source := path.Join(name, "template.yaml")
	text, err := fs.ReadFile(tree, source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNoRecipe, name)
	}
	if err != nil {
		return nil, fmt.Errorf("read recipe %s: %w", name, err)
	}
	r, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("recipe %s: %w", source, err)
	}
	if r.Name != name {
		return nil, fmt.Errorf("recipe %s: name is %q; it must be the folder's, %q", source, r.Name, name)
	}
	if r.files, err = filesOf(tree, name, r.Modes); err != nil {
		return nil, fmt.Errorf("recipe %s: %w", name, err)
	}
	if r.From != "" {
		if r.parent, err = load(tree, r.From, append(children, name)); err != nil {
			return nil, fmt.Errorf("recipe %s: %w", name, err)
		}
	}
	return &r, nil
}

// Parse reads the text of a template.yaml and checks it by itself: not its
// files, and not the recipe it is made from. A field it does not know is an
// error.
func Parse(text []byte) (Recipe, error) {
	if len(text) > maxRecipeBytes {
		return Recipe{}, fmt.Errorf("longer than %d bytes", maxRecipeBytes)
	}
	r := Recipe{CPUs: defaultCPUs, Memory: defaultMemory, Disk: defaultDisk}
	if err := decode(text, &r); err != nil {
		return Recipe{}, err
	}
	if err := r.check(); err != nil {
		return Recipe{}, err
	}
	return r, nil
}

// decode reads YAML strictly. The library panics on some malformed texts, such
// as a tag without a value where a list belongs.
func decode(text []byte, r *Recipe) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("not readable as YAML: %v", p)
		}
	}()
	err = yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(r)
	switch {
	case errors.Is(err, io.EOF):
		return nil // an empty text: the check says what is missing
	case err != nil:
		return errors.New(strings.TrimSpace(yaml.FormatError(err, false, true)))
	default:
		return nil
	}
}

// Parent is the recipe this one is made from.
func (r Recipe) Parent() (Recipe, bool) {
	if r.parent == nil {
		return Recipe{}, false
	}
	return *r.parent, true
}

var (
	namePattern    = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	suitePattern   = regexp.MustCompile(`^[a-z]{2,32}$`)
	packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?(=[A-Za-z0-9.+:~-]+)?$`)
	pipPattern     = regexp.MustCompile(`^[A-Za-z0-9][^\s;|&$<>\x60'"\\]*([<>=!~]=?[^\s;|&$\x60'"\\]+)?$`)
	npmPattern     = regexp.MustCompile(`^(@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*(@[A-Za-z0-9^~.*+-]+)?$`)
	userPattern    = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	envPattern     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	kernelPattern  = regexp.MustCompile(`^[a-z][a-z0-9_+-]{0,31}$`)
)

func (r Recipe) check() error {
	switch {
	case !namePattern.MatchString(r.Name):
		return fmt.Errorf("name: %q has other characters than lower-case letters, digits, dots, - and _", r.Name)
	case (r.Debian == "") == (r.From == ""):
		return errors.New("exactly one of debian (a suite, such as trixie) and from (another recipe) must be given")
	case r.Debian != "" && !suitePattern.MatchString(r.Debian):
		return fmt.Errorf("debian: %q is not the name of a suite, such as trixie", r.Debian)
	case r.From != "" && !namePattern.MatchString(r.From):
		return fmt.Errorf("from: %q is not the name of a recipe", r.From)
	case r.User != "" && !userPattern.MatchString(r.User):
		return fmt.Errorf("user: %q is not the name of a user", r.User)
	case r.Workdir != "" && (!path.IsAbs(r.Workdir) || path.Clean(r.Workdir) != r.Workdir):
		return fmt.Errorf("workdir: %q is not a plain absolute path", r.Workdir)
	case r.CPUs < 1 || r.CPUs > maxCPUs:
		return fmt.Errorf("cpus: %d is not between 1 and %d", r.CPUs, maxCPUs)
	case r.Memory < minMemory || r.Memory > maxSize:
		return fmt.Errorf("memory: %s is not between %s and %s", r.Memory, Size(minMemory), Size(maxSize))
	case r.Disk < 0 || r.Disk > maxSize:
		return fmt.Errorf("disk: %s is more than %s", r.Disk, Size(maxSize))
	case r.Ready != "" && r.Start == "" && len(r.Kernels) == 0:
		return errors.New("ready: there is no start command to wait for")
	}
	for _, list := range []struct {
		field, what string
		pattern     *regexp.Regexp
		items       []string
	}{
		{"packages", "a Debian package", packagePattern, r.Packages},
		{"pip", "a pip requirement", pipPattern, r.Pip},
		{"npm", "an npm package", npmPattern, r.Npm},
		{"kernels", "a language", kernelPattern, r.Kernels},
	} {
		if err := checkList(list.field, list.what, list.pattern, list.items); err != nil {
			return err
		}
	}
	for i, line := range r.Run {
		if strings.TrimSpace(line) == "" {
			return fmt.Errorf("run: line %d is empty", i+1)
		}
	}
	for name := range r.Env {
		if !envPattern.MatchString(name) {
			return fmt.Errorf("env: %q is not the name of a variable", name)
		}
	}
	return nil
}

func checkList(field, what string, pattern *regexp.Regexp, items []string) error {
	seen := map[string]bool{}
	for _, item := range items {
		if !pattern.MatchString(item) {
			return fmt.Errorf("%s: %q is not %s", field, item, what)
		}
		if seen[item] {
			return fmt.Errorf("%s: %s is there twice", field, item)
		}
		seen[item] = true
	}
	return nil
}

// file is one entry of a recipe's tree.
type file struct {
	Path    string // slash-separated, without a leading slash
	Dir     bool
	Mode    fs.FileMode // permissions with setuid, setgid and sticky
	Content []byte
}

// filesOf reads the tree under the recipe's files/ and gives it the modes, by path.
func filesOf(tree fs.FS, name string, modes map[string]string) ([]file, error) {
	var list []file
	total := 0
	dir := path.Join(name, "files")
	err := fs.WalkDir(tree, dir, func(full string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && full == dir {
			return nil
		}
		if err != nil || full == dir {
			return err
		}
		f := file{Path: strings.TrimPrefix(full, dir+"/"), Dir: d.IsDir(), Mode: 0o644}
		switch {
		case f.Dir:
			f.Mode = 0o755
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a folder", full)
		default:
			if f.Content, err = fs.ReadFile(tree, full); err != nil {
				return err
			}
		}
		if total += len(f.Content); total > maxFileBytes {
			return fmt.Errorf("%s holds more than %d MiB", dir, maxFileBytes>>20)
		}
		list = append(list, f)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, setModes(list, modes)
}

func setModes(list []file, modes map[string]string) error {
	for name, text := range modes {
		i := slices.IndexFunc(list, func(f file) bool { return f.Path == name })
		if i < 0 {
			return fmt.Errorf("modes: %s is not under files/", name)
		}
		mode, err := parseMode(text)
		if err != nil {
			return fmt.Errorf("modes: %s: %w", name, err)
		}
		list[i].Mode = mode
	}
	return nil
}

// parseMode reads four octal digits at most, setuid, setgid and sticky among them.
func parseMode(text string) (fs.FileMode, error) {
	mode, err := strconv.ParseUint(text, 8, 32)
	if err != nil || mode > 0o7777 {
		return 0, fmt.Errorf("%q is not an octal mode, such as \"0755\"", text)
	}
	m := fs.FileMode(mode & 0o777)
	for _, bit := range []struct {
		octal uint64
		mode  fs.FileMode
	}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}} {
		if mode&bit.octal != 0 {
			m |= bit.mode
		}
	}
	return m, nil
}

var units = []struct {
	suffix string
	bytes  int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}}

// ParseSize reads a whole number with a unit: MiB, GiB or TiB.
func ParseSize(text string) (Size, error) {
	for _, u := range units {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 32)
		if err != nil || int64(n) > maxSize/u.bytes {
			break
		}
		return Size(int64(n) * u.bytes), nil
	}
	return 0, fmt.Errorf("%q is not a size, such as 512MiB or 2GiB", text)
}

// String writes the size in the largest unit that divides it.
func (s Size) String() string {
	for _, u := range units {
		if s != 0 && int64(s)%u.bytes == 0 {
			return fmt.Sprintf("%d%s", int64(s)/u.bytes, u.suffix)
		}
	}
	return fmt.Sprintf("%dB", int64(s))
}

// UnmarshalYAML reads a size with its unit.
func (s *Size) UnmarshalYAML(decode func(any) error) error {
	var text string
	if err := decode(&text); err != nil {
		return err
	}
	size, err := ParseSize(text)
	*s = size
	return err
}
