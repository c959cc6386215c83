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

// tryLock is lock without waiting: errLocked. Who has it may remove the file, so one
// that was removed before it was locked is none.
func tryLock(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		var st unix.Stat_t
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			err = unix.Fstat(int(f.Fd()), &st)
		}
		if err == nil && st.Nlink > 0 {
			return f, nil
		}
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errLocked
		}
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

// removeLock gives a lock up with its file, for a build that started no processes.
func removeLock(held *os.File) {
	os.Remove(held.Name())
	held.Close()
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
	defer removeLock(held)
	return os.RemoveAll(work)
}
