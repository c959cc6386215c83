package e2b_test

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// folder is the one volume there is.
type folder struct {
	sandbox.Volumes
	dir  string
	open int
}

func (f *folder) VolumeRoot(context.Context, string) (*os.Root, func(), error) {
	root, err := os.OpenRoot(f.dir)
	f.open++
	return root, func() { root.Close(); f.open-- }, err
}

// newFolder is a world with a volume "vol" of token "token", in a folder beside
// which there is a file that nobody may see.
func newFolder(t *testing.T) (*world, *folder) {
	w := newWorld(t)
	f := &folder{dir: filepath.Join(t.TempDir(), "files")}
	require.NoError(t, os.Mkdir(f.dir, 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "..", "secret"), []byte("secret"), 0o666))
	w.core.Volumes = f
	require.NoError(t, w.store.AddVolume(t.Context(), store.Volume{ID: "vol", Name: "vol", KeyID: "key-of-alice", Token: "token", CreatedAt: start}, 1))
	return w, f
}

func (w *world) content(method, target, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/volumecontent/vol/"+target, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer token")
	answer := httptest.NewRecorder()
	w.ServeHTTP(answer, r)
	return answer
}

func TestFilesOfVolumesAreReadAsRulesSay(t *testing.T) {
	w, f := newFolder(t)
	for _, name := range []string{"file", "forbidden"} {
		require.NoError(t, os.WriteFile(filepath.Join(f.dir, name), []byte("x"), 0o644))
	}
	for request, want := range map[string]int{
		"GET file?path=/file":              200,
		"GET file?path=/a/../file":         200,
		"GET file?path=/forbidden":         403,
		"GET file?path=forbidden":          403,
		"HEAD file?path=//x/../forbidden/": 403,
		"GET path?path=/forbidden":         200, // what it is, not what is in it
		"PUT file?path=/forbidden2":        201,
	} {
		method, target, _ := strings.Cut(request, " ")
		require.Equal(t, want, w.content(method, target, "").Code, request)
	}
	require.Contains(t, w.core.calls, "AdmitVolume vol of key-of-alice: /file")
	require.Len(t, w.core.calls, 5)
}

func TestContentThatCannotBe(t *testing.T) {
	w, f := newFolder(t)
	for link, target := range map[string]string{"out": "..", "secret": "../secret", "abs": "/etc", "loop": "loop", "dangling": "none"} {
		require.NoError(t, os.Symlink(target, filepath.Join(f.dir, link)))
	}
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "file"), []byte("x"), 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(f.dir, "dir"), 0o755))
	before := listing(t, f.dir)
	for request, want := range map[string]int{
		"GET path":                                     400,
		"GET path?path=":                               400,
		"GET path?path=%00":                            400,
		"GET path?path=/none":                          404,
		"GET path?path=/file/x":                        409,
		"GET path?path=/out/secret":                    400,
		"GET path?path=/abs/passwd":                    400,
		"GET path?path=/loop/x":                        400,
		"GET file?path=/secret":                        400,
		"GET file?path=/dir":                           404,
		"GET file?path=/dangling":                      404,
		"GET dir?path=/file":                           404,
		"GET dir?path=/out":                            400,
		"GET dir?path=/&depth=0":                       400,
		"GET dir?path=/&depth=x":                       400,
		"GET dir?path=/&depth=99999999999":             400,
		"PUT file?path=/":                              409,
		"PUT file?path=/dir&force=true":                409,
		"PUT file?path=/file":                          409,
		"PUT file?path=/none/file":                     404,
		"PUT file?path=/file/x":                        404,
		"PUT file?path=/out/x":                         400,
		"PUT file?path=/n&mode=-1":                     400,
		"PUT file?path=/n&mode=99999":                  400,
		"PUT file?path=/n&uid=4294967295":              400,
		"PUT file?path=/n&gid=x":                       400,
		"PUT file?path=/n&force=maybe":                 400,
		"PUT file?path=/" + strings.Repeat("n", 300):   400,
		"PUT file?path=/" + strings.Repeat("n/", 3000): 400,
		"POST dir?path=/dir":                           409,
		"POST dir?path=/file&force=true":               409,
		"POST dir?path=/file/x&force=true":             409,
		"POST dir?path=/out/x&force=true":              400,
		"POST dir?path=/":                              409,
		"POST dir?path=/a/b":                           404,
		"DELETE path?path=/":                           404,
		"DELETE path?path=/../..":                      404,
		"DELETE path?path=/none":                       404,
		"DELETE path?path=/out/secret":                 400,
		"PATCH path?path=/file":                        400,
		"POST path?path=/file":                         401,
		"GET else?path=/file":                          401, // as all that is unknown is without a key
	} {
		method, target, _ := strings.Cut(request, " ")
		answer := w.content(method, target, "")
		require.Equal(t, want, answer.Code, "%.80s: %s", request, answer.Body)
		require.NotContains(t, answer.Body.String(), f.dir, "%.80s tells where it is", request)
	}
	for _, body := range []string{`{"mode":4096}`, `{"uid":-1}`, `{"gid":"x"}`, `[]`} {
		require.Equal(t, 400, w.content("PATCH", "path?path=/file", body).Code, body)
	}
	require.Equal(t, 400, w.content("PATCH", "path?path=/secret", `{"mode":511}`).Code, "a link has no mode")
	require.Equal(t, before, listing(t, f.dir), "something was changed")
	require.Zero(t, f.open, "roots that were not closed")
}

// listing is what is in a folder and beside it.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	require.NoError(t, filepath.WalkDir(filepath.Dir(dir), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		all = append(all, path+" "+info.Mode().String())
		return err
	}))
	return strings.Join(all, "\n")
}

func TestContentNeedsItsToken(t *testing.T) {
	w, _ := newFolder(t)
	for _, header := range []string{"", "token", "Bearer", "Bearer ", "Bearer toke", "Bearer tokenx", "Basic dG9rZW46"} {
		for _, id := range []string{"vol", "none", "..", strings.Repeat("x", 1000)} {
			r := httptest.NewRequest("GET", "/volumecontent/"+id+"/dir?path=/", nil)
			r.Header.Set("Authorization", header)
			r.Header.Set("X-API-KEY", w.secrets["alice"])
			answer := httptest.NewRecorder()
			w.ServeHTTP(answer, r)
			if id == ".." { // no clean path
				require.Equal(t, 404, answer.Code)
				continue
			}
			require.Equal(t, 401, answer.Code, "%q %.20s", header, id)
		}
	}
}

func TestUploadIsSeenWholeOrNotAtAll(t *testing.T) {
	w, f := newFolder(t)
	require.Equal(t, 201, w.content("PUT", "file?path=/file", "old").Code)
	r := httptest.NewRequest("PUT", "/volumecontent/vol/file?path=/file&force=true", &breaking{text: "new and "})
	r.Header.Set("Authorization", "Bearer token")
	answer := httptest.NewRecorder()
	w.ServeHTTP(answer, r)
	require.Equal(t, 408, answer.Code, answer.Body)
	entries, err := os.ReadDir(f.dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "half of an upload was left")
	text, err := os.ReadFile(filepath.Join(f.dir, "file"))
	require.NoError(t, err)
	require.Equal(t, "old", string(text))
}

// breaking is a body that ends in the middle.
type breaking struct{ text string }

func (b *breaking) Read(p []byte) (int, error) {
	if b.text == "" {
		return 0, os.ErrDeadlineExceeded
	}
	n := copy(p, b.text)
	b.text = b.text[n:]
	return n, nil
}

func TestListIsSortedAndFollowsNoLinks(t *testing.T) {
	w, f := newFolder(t)
	for _, path := range []string{"b/c", "a"} {
		require.NoError(t, os.MkdirAll(filepath.Join(f.dir, path), 0o755))
	}
	require.NoError(t, os.Symlink("..", filepath.Join(f.dir, "b", "up")))
	answer := w.content("GET", "dir?path=//&depth=32", "")
	require.Equal(t, 200, answer.Code, answer.Body)
	var entries []struct{ Path, Type, Target string }
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &entries))
	require.Equal(t, []struct{ Path, Type, Target string }{
		{"/a", "directory", ""}, {"/b", "directory", ""}, {"/b/c", "directory", ""}, {"/b/up", "symlink", ".."},
	}, entries)
}
