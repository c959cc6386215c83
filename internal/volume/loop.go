package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const loopControl = "/dev/loop-control"

func checkLoop() error {
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w: there are no loop devices (%w): run `modprobe loop`, or give the container its devices", ErrUnsupported, err)
	}
	return control.Close()
}

// attachLoop gives a file a free loop device, which goes with its last user.
func attachLoop(file string) (*os.File, error) {
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: there are no loop devices: %w", ErrUnsupported, err)
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := openLoop(number)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) { // another process was faster
			return nil, fmt.Errorf("set up %s: %w", device.Name(), err)
		}
	}
}

// loopNodePatience is how long the node of a new device may take to appear.
const loopNodePatience = 2 * time.Second

func openLoop(number int) (*os.File, error) {
	name := "/dev/loop" + strconv.Itoa(number)
	for deadline := time.Now().Add(loopNodePatience); ; time.Sleep(5 * time.Millisecond) {
		device, err := os.OpenFile(name, os.O_RDWR, 0)
		if err == nil {
			return device, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%w: open %s: %w", ErrUnsupported, name, err)
		}
	}
}

// loopOf is the loop device that has a file; nil when none has.
func loopOf(file string) (*os.File, error) {
	var stat unix.Stat_t
	if err := unix.Stat(file, &stat); err != nil {
		return nil, err
	}
	bound, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return nil, err
	}
	for _, dir := range bound {
		number, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(dir)), "loop"))
		if err != nil {
			continue
		}
		device, err := os.OpenFile("/dev/loop"+strconv.Itoa(number), os.O_RDWR, 0)
		if err != nil {
			continue // it is just going
		}
		// While it is open it stays what it is.
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		if err == nil && info.Inode == stat.Ino && info.Device == stat.Dev {
			return device, nil
		}
		device.Close()
	}
	return nil, nil
}
