package image_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/image"
)

func TestOwnRecipes(t *testing.T) {
	folder := fstest.MapFS{
		"mine/template.yaml":   {Data: []byte("name: mine\nfrom: base\npackages: [jq]\nmodes: {etc/mine: \"0600\"}\n")},
		"mine/files/etc/mine":  {Data: []byte("x")},
		"more/template.yaml":   {Data: []byte("name: more\nfrom: mine\n")},
		"notes/readme.txt":     {Data: []byte("no recipe")},
		"base-notes.txt":       {Data: []byte("no recipe")},
		"broken/template.yaml": {Data: []byte("name: other\nfrom: base\n")},
		"far/template.yaml":    {Data: []byte("name: far\nfrom: nowhere\n")},
	}
	tree, names, err := image.Own(folder)
	require.NoError(t, err)
	require.Equal(t, []string{"broken", "far", "mine", "more"}, names)

	more, err := image.LoadFrom(tree, "more")
	require.NoError(t, err)
	mine, _ := more.Parent()
	base, _ := mine.Parent()
	require.Equal(t, "base", base.Name, "it is made from one that comes with the program")
	require.Equal(t, []string{"jq"}, mine.Packages)
	_, err = image.LoadFrom(tree, "code-interpreter-v1")
	require.NoError(t, err)
	_, err = image.LoadFrom(tree, "broken")
	require.ErrorContains(t, err, "the folder's")
	_, err = image.LoadFrom(tree, "far")
	require.ErrorContains(t, err, "nowhere")
	_, err = image.LoadFrom(tree, "notes")
	require.ErrorIs(t, err, image.ErrNoRecipe)

	for _, name := range []string{"oci", "template"} { // its images would be taken for others
		_, err = image.LoadFrom(fstest.MapFS{name + "/template.yaml": {Data: []byte("name: " + name + "\ndebian: trixie\n")}}, name)
		require.ErrorContains(t, err, "another name")
	}
	_, _, err = image.Own(fstest.MapFS{"base/template.yaml": {Data: []byte("name: base\ndebian: trixie\n")}})
	require.ErrorContains(t, err, "another name")
	_, _, err = image.Own(fstest.MapFS{})
	require.ErrorIs(t, err, image.ErrNoRecipe)
}
