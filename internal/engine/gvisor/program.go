package gvisor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// programName is the program of a version, in a folder of that name.
const programName = "tombolo"

// keepProgram puts a copy of this program below Config.Programs: what it starts
// and what it saves needs it when the program itself has been replaced. A link
// would not do, since the file it points to may be written over. Everybody may
// execute it: the sentry has no user's rights when it starts itself anew.
func (e *Engine) keepProgram() error {
	if e.config.Programs == "" {
		return nil
	}
	target := e.keptProgram(e.Version())
	if _, err := os.Stat(target); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o711); err != nil {
		return err
	}
	from, err := os.Open(e.config.Executable)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.CreateTemp(filepath.Dir(target), "new-")
	if err != nil {
		return err
	}
	defer os.Remove(to.Name())
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Chmod(0o755), to.Sync(), to.Close()); err != nil {
		return err
	}
	return os.Rename(to.Name(), target)
}

func (e *Engine) keptProgram(version string) string {
	return filepath.Join(e.config.Programs, version, programName)
}

// program is the path of the program of a version; empty is this one's.
func (e *Engine) program(version string) (string, error) {
	if version == "" || version == e.Version() {
		return e.config.Executable, nil
	}
	if !e.Has(version) {
		return "", fmt.Errorf("the engine version %s is not kept on this machine, and no other can continue what it wrote", version)
	}
	return e.keptProgram(version), nil
}

// Has implements engine.Engine.
func (e *Engine) Has(version string) bool {
	if version == e.Version() {
		return true
	}
	if e.config.Programs == "" || version == "" || filepath.Base(version) != version {
		return false
	}
	_, err := os.Stat(e.keptProgram(version))
	return err == nil
}

// Prune implements engine.Engine. The engine's own program stays.
func (e *Engine) Prune(keep func(version string) bool) error {
	if e.config.Programs == "" {
		return nil
	}
	entries, err := os.ReadDir(e.config.Programs)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if version := entry.Name(); version != e.Version() && !keep(version) {
			errs = append(errs, os.RemoveAll(filepath.Join(e.config.Programs, version)))
		}
	}
	return errors.Join(errs...)
}
