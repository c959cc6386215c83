package e2b

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/api/record"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Limits of the content API.
const (
	maxVolumePath    = 4096 // bytes
	maxVolumeDepth   = 32
	maxVolumeEntries = 50_000  // of one list
	maxVolumeList    = 8 << 20 // bytes of the paths in it
	// contentOwner and these modes have what is made without any: the default user
	// of E2B's templates.
	contentOwner  = 1000
	newFileMode   = 0o644
	newFolderMode = 0o755
	// partialPrefix begins the name that an upload has for the moment before its own.
	partialPrefix = ".tombolo-upload-"
	// contentPatience is for how long nothing may arrive of an upload, or be taken of
	// a download.
	contentPatience = time.Minute
)

var errNoVolumeToken = failure(http.StatusUnauthorized, "no volume has this id and token: send the token that creating the volume or asking for it answers, as Authorization: Bearer; a volume that was deleted has none")

// volumeHandler serves one endpoint for who has a volume's token, on its folder.
type volumeHandler func(w http.ResponseWriter, r *http.Request, root *os.Root, name string) error

// contentRoutes are for who has the volume's token.
var contentRoutes = map[string]volumeHandler{
	"GET /volumecontent/{id}/path":    getPath,
	"PATCH /volumecontent/{id}/path":  patchPath,
	"DELETE /volumecontent/{id}/path": deletePath,
	"GET /volumecontent/{id}/dir":     getDir,
	"POST /volumecontent/{id}/dir":    postDir,
	"GET " + fileRoute:                getFile,
	"PUT " + fileRoute:                putFile,
}

const fileRoute = "/volumecontent/{id}/file"

// content serves an endpoint of the content API, whose callers have no key.
func (a *api) content(h volumeHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := a.serveContent(w, r, h); err != nil {
			a.fail(w, r, contentError(err, r.URL.Query().Get("path")))
		}
	}
}

func (a *api) serveContent(w http.ResponseWriter, r *http.Request, h volumeHandler) error {
	v, err := a.volumeOf(r)
	if err != nil {
		return err
	}
	record.Caller(r.Context(), "volume:"+v.ID, v.KeyID)
	name, err := contentPath(r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	record.Note(r.Context(), "path", name)
	if a.admit != nil && strings.HasSuffix(r.Pattern, fileRoute) && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		if err := a.admit(r.Context(), v.ID, v.KeyID, path.Clean("/"+name)); err != nil {
			return err
		}
	}
	root, done, err := a.volumes.VolumeRoot(r.Context(), v.ID)
	if err != nil {
		return err
	}
	defer done()
	return h(w, r, root, name)
}

// volumeOf finds the volume whose id and token a request has.
func (a *api) volumeOf(r *http.Request) (store.Volume, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" {
		return store.Volume{}, errNoVolumeToken
	}
	v, err := a.store.VolumeByID(r.Context(), r.PathValue("id"))
	if errors.Is(err, store.ErrNotFound) {
		return store.Volume{}, errNoVolumeToken
	}
	if err != nil {
		return store.Volume{}, err
	}
	if subtle.ConstantTimeCompare([]byte(token), []byte(v.Token)) != 1 {
		return store.Volume{}, errNoVolumeToken
	}
	return v, nil
}

// contentPath makes a path of a request one below the volume's folder, "." for
// that itself. What it leads to by links is the root's to check.
func contentPath(p string) (string, error) {
	switch {
	case p == "":
		return "", invalid("path is missing: give one below the volume, / for the volume itself")
	case len(p) > maxVolumePath:
		return "", invalid("path has %d bytes, at most %d are possible", len(p), maxVolumePath)
	case strings.ContainsRune(p, 0):
		return "", invalid("path has a zero byte")
	}
	if p = path.Clean("/" + p)[1:]; p == "" {
		return ".", nil
	}
	return p, nil
}

// contentError says what the file system's errors mean to clients: 404 is a path
// that is not there or of another kind, as E2B's.
func contentError(err error, p string) error {
	var wire *wireError
	switch {
	case errors.As(err, &wire):
		return err
	case errors.Is(err, sandbox.ErrVolumeNotFound): // deleted just now
		return errNoVolumeToken
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return failure(http.StatusInsufficientStorage, "the volume is full: remove something, or use a larger one")
	case errors.Is(err, fs.ErrNotExist):
		return failure(http.StatusNotFound, "path '%.200s' not found", p)
	case errors.Is(err, fs.ErrExist):
		return failure(http.StatusConflict, "path '%.200s' exists already", p)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR):
		return failure(http.StatusConflict, "path '%.200s': a file is no directory, nor a directory a file", p)
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ELOOP):
		return invalid("path '%.200s' is not possible: %s", p, err)
	case strings.Contains(err.Error(), "path escapes"): // os.Root has no value for it
		return invalid("path '%.200s' leads out of the volume by a link: such links are followed inside sandboxes only", p)
	}
	return err
}

// entryStat describes a file or folder.
type entryStat struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"` // "file", "directory", "symlink" or "unknown"
	Path   string    `json:"path"`
	Size   int64     `json:"size"`
	Mode   uint32    `json:"mode"` // permissions, setuid, setgid and sticky bit
	UID    uint32    `json:"uid"`
	GID    uint32    `json:"gid"`
	ATime  time.Time `json:"atime"`
	MTime  time.Time `json:"mtime"`
	CTime  time.Time `json:"ctime"`
	Target string    `json:"target,omitempty"` // of a symlink
}

// statEntry describes what a path names itself, not what a link leads to.
func statEntry(root *os.Root, name string) (entryStat, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return entryStat{}, err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return entryStat{}, fmt.Errorf("%s: the file system tells nothing about it", name)
	}
	p := path.Clean("/" + name)
	e := entryStat{
		Name: path.Base(p), Type: entryType(info.Mode()), Path: p, Size: info.Size(),
		Mode: s.Mode & 0o7777, UID: s.Uid, GID: s.Gid,
		ATime: time.Unix(s.Atim.Unix()).UTC(), MTime: info.ModTime().UTC(), CTime: time.Unix(s.Ctim.Unix()).UTC(),
	}
	if e.Type == "symlink" {
		e.Target, err = root.Readlink(name)
	}
	return e, err
}

func entryType(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return "file"
	case mode.IsDir():
		return "directory"
	case mode&fs.ModeSymlink != 0:
		return "symlink"
	}
	return "unknown"
}

func answerEntry(w http.ResponseWriter, code int, root *os.Root, name string) error {
	e, err := statEntry(root, name)
	if err != nil {
		return err
	}
	writeJSON(w, code, e)
	return nil
}

func getPath(w http.ResponseWriter, _ *http.Request, root *os.Root, name string) error {
	return answerEntry(w, http.StatusOK, root, name)
}

func patchPath(w http.ResponseWriter, r *http.Request, root *os.Root, name string) error {
	var body struct {
		UID  *int64 `json:"uid"`
		GID  *int64 `json:"gid"`
		Mode *int64 `json:"mode"`
	}
	if err := decode(w, r, &body, false); err != nil {
		return err
	}
	change, err := checkOwnership(body.UID, body.GID, body.Mode)
	if err != nil {
		return err
	}
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 && change.mode != nil {
		return invalid("path '%.200s' is a link, which has no mode", r.URL.Query().Get("path"))
	}
	if change.uid >= 0 || change.gid >= 0 { // first: it takes setuid bits away
		if err := root.Lchown(name, change.uid, change.gid); err != nil {
			return err
		}
	}
	if change.mode != nil {
		if err := root.Chmod(name, *change.mode); err != nil {
			return err
		}
	}
	return answerEntry(w, http.StatusOK, root, name)
}

func deletePath(w http.ResponseWriter, r *http.Request, root *os.Root, name string) error {
	if name == "." {
		return failure(http.StatusNotFound, "the folder of a volume cannot be removed: delete the volume, or remove what is in it")
	}
	if _, err := root.Lstat(name); err != nil {
		return err
	}
	if err := removeTree(r.Context(), root, name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func getDir(w http.ResponseWriter, r *http.Request, root *os.Root, name string) error {
	depth := 1
	if text := r.URL.Query().Get("depth"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxVolumeDepth {
			return invalid("depth must be 1 to %d, not %.20q", maxVolumeDepth, text)
		}
		depth = n
	}
	info, err := root.Stat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return failure(http.StatusNotFound, "path '%.200s' is no directory", r.URL.Query().Get("path"))
	}
	l := lister{ctx: r.Context(), root: root}
	if err := l.list(name, depth); err != nil {
		return err
	}
	return l.answer(w)
}

func postDir(w http.ResponseWriter, r *http.Request, root *os.Root, name string) error {
	owner, err := queryOwnership(r, newFolderMode)
	if err != nil {
		return err
	}
	force, err := queryForce(r)
	if err != nil {
		return err
	}
	if info, err := root.Stat(name); err == nil && (!force || !info.IsDir()) {
		return fs.ErrExist
	} else if err == nil {
		return answerEntry(w, http.StatusCreated, root, name)
	}
	if err := makeFolder(root, name, owner, force); err != nil {
		return err
	}
	return answerEntry(w, http.StatusCreated, root, name)
}

func makeFolder(root *os.Root, name string, owner ownership, parents bool) error {
	err := root.Mkdir(name, 0o700)
	if parent := path.Dir(name); parents && errors.Is(err, fs.ErrNotExist) && parent != "." {
		if err := makeFolder(root, parent, owner, true); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		err = root.Mkdir(name, 0o700)
	}
	if err != nil {
		return err
	}
	return errors.Join(root.Lchown(name, owner.uid, owner.gid), root.Chmod(name, *owner.mode))
}

// getFile serves ranges and conditions too.
func getFile(w http.ResponseWriter, r *http.Request, root *os.Root, name string) error {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe's end must not be waited for
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return failure(http.StatusNotFound, "path '%.200s' is no file", r.URL.Query().Get("path"))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	defer http.NewResponseController(w).SetWriteDeadline(time.Time{})
	http.ServeContent(patientWriter{w}, r, "", info.ModTime(), f)
	return nil
}

// patientWriter gives up on a client that takes nothing for long.
type patientWriter struct{ http.ResponseWriter }

func (w patientWriter) Write(p []byte) (int, error) {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(contentPatience))
	return w.ResponseWriter.Write(p)
}

// putFile replaces a file at once, when all of it has arrived.
func putFile(w http.ResponseWriter, r *http.Request, root *os.Root, name string) error {
	owner, err := queryOwnership(r, newFileMode)
	if err != nil {
		return err
	}
	force, err := queryForce(r)
	if err != nil {
		return err
	}
	if err := mayPut(root, name, force); err != nil {
		return err
	}
	dir, err := root.OpenFile(path.Dir(name), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, syscall.ENOTDIR) { // on the way
		err = fs.ErrNotExist
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	// It has no name before it is whole: what a crash leaves of it is nothing.
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), path.Base(name))
	defer f.Close()
	if err := receive(w, r, f); err != nil {
		return err
	}
	if err := errors.Join(f.Chown(owner.uid, owner.gid), f.Chmod(*owner.mode)); err != nil {
		return err
	}
	if err := mayPut(root, name, force); err != nil { // another may have been faster
		return err
	}
	if err := publish(f, dir, path.Base(name)); err != nil {
		return err
	}
	return answerEntry(w, http.StatusCreated, root, name)
}

// publish gives a file without a name one in a folder, in the place of what has it.
func publish(f, dir *os.File, name string) error {
	partial := partialPrefix + rand.Text()
	err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), int(dir.Fd()), partial, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return err
	}
	if err := unix.Renameat(int(dir.Fd()), partial, int(dir.Fd()), name); err != nil {
		return errors.Join(err, ignoreNotExist(unix.Unlinkat(int(dir.Fd()), partial, 0)))
	}
	return nil
}

// mayPut tells whether a file can be put at a path. A link there is replaced.
func mayPut(root *os.Root, name string, force bool) error {
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return syscall.EISDIR
	case !force:
		return failure(http.StatusConflict, "path '/%.200s' exists already: write it with force", name)
	}
	return nil
}

// receive writes the body of a request to a file.
func receive(w http.ResponseWriter, r *http.Request, f *os.File) error {
	control := http.NewResponseController(w)
	defer control.SetReadDeadline(time.Time{}) // a writer without deadlines is a test's
	block := make([]byte, 256<<10)
	for {
		_ = control.SetReadDeadline(time.Now().Add(contentPatience))
		n, readErr := r.Body.Read(block)
		if _, err := f.Write(block[:n]); err != nil {
			return err
		}
		if errors.Is(readErr, io.EOF) {
			return nil
		}
		if readErr != nil {
			return failure(http.StatusRequestTimeout, "the body did not arrive whole: %s", readErr)
		}
	}
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ownership is who owns a file and what may be done with it; -1 and nil leave it.
type ownership struct {
	uid, gid int
	mode     *fs.FileMode
}

func checkOwnership(uid, gid, mode *int64) (ownership, error) {
	o := ownership{uid: -1, gid: -1}
	for name, id := range map[string]*int64{"uid": uid, "gid": gid} {
		if id != nil && (*id < 0 || *id >= 1<<32-1) {
			return o, invalid("%s must be 0 to %d, not %d", name, int64(1<<32-2), *id)
		}
	}
	if uid != nil {
		o.uid = int(*uid)
	}
	if gid != nil {
		o.gid = int(*gid)
	}
	if mode != nil {
		if *mode < 0 || *mode > 0o7777 {
			return o, invalid("mode must be 0 to %d (0o7777), not %d", 0o7777, *mode)
		}
		m := fileMode(*mode)
		o.mode = &m
	}
	return o, nil
}

// fileMode is a Unix mode in Go's bits.
func fileMode(mode int64) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

// queryOwnership reads uid, gid and mode of a request that makes something.
func queryOwnership(r *http.Request, mode int64) (ownership, error) {
	values := map[string]int64{"uid": contentOwner, "gid": contentOwner, "mode": mode}
	for name := range values {
		if text := r.URL.Query().Get(name); text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return ownership{}, invalid("%s must be a whole number, not %.20q", name, text)
			}
			values[name] = n
		}
	}
	uid, gid, m := values["uid"], values["gid"], values["mode"]
	return checkOwnership(&uid, &gid, &m)
}

func queryForce(r *http.Request) (bool, error) {
	text := r.URL.Query().Get("force")
	if text == "" {
		return false, nil
	}
	force, err := strconv.ParseBool(text)
	if err != nil {
		return false, invalid("force must be true or false, not %.20q", text)
	}
	return force, nil
}
