package image

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/tombolo-dev/tombolo/templates"
)

// Own are the recipes of a folder, one folder each, and the tree for [LoadFrom] that
// has those of the program too, so that they can be made from them. A name of the program's is
// an error: what asks for one by its name must not get another.
func Own(folder fs.FS) (tree fs.FS, names []string, err error) {
	entries, err := fs.ReadDir(folder, ".")
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if _, err := fs.Stat(folder, path.Join(e.Name(), "template.yaml")); err != nil {
			continue // something else
		}
		if slices.Contains(Recipes(), e.Name()) {
			return nil, nil, fmt.Errorf("the recipe %s comes with the program: give yours another name, and --name %s where the template is to have it", e.Name(), e.Name())
		}
		names = append(names, e.Name())
	}
	if names == nil {
		return nil, nil, fmt.Errorf("%w: a recipe is a folder in it with a template.yaml", ErrNoRecipe)
	}
	return besides{folder, names}, names, nil
}

// besides is the tree of the program's recipes and some others.
type besides struct {
	folder fs.FS
	names  []string
}

// Open implements fs.FS.
func (b besides) Open(name string) (fs.File, error) {
	recipe, _, _ := strings.Cut(name, "/")
	if slices.Contains(b.names, recipe) {
		return b.folder.Open(name)
	}
	return templates.FS.Open(name)
}
