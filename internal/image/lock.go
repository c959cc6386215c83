package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a build looks whether the one it waits for has ended.
const lockPoll = 100 * time.Millisecond

var errLocked = errors.New("locked by another build")

// lock takes the lock at path, waiting for whoever has it; waiting is called
// once before that. The lock is held until the file is closed by this process and
// by every one that inherited it: a build's processes do, so that a lock which can
// be taken means that nobody writes into that build's tree any more.
func lock(ctx context.Context, path string, waiting func()) (*os.File, error) {
	held, err := tryLock(path)
	if !errors.Is(err, errLocked) {
		return held, err
	}
	waiting()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
		held, err = tryLock(path)
		if !errors.Is(err, errLocked) {
			return held, err
		}
	}
}

// tryLock is lock without waiting: errLocked. The file stays, so that all who
// lock it lock the same one.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errLocked
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// sweepOne removes the folder of a build unless that build lives.
func (b Builder) sweepOne(work string) error {
	held, err := tryLock(work + ".lock")
	if errors.Is(err, errLocked) {
		return nil
	}
	if err != nil {
		return err
	}
	defer held.Close()
	return os.RemoveAll(work)
}
