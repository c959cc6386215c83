package kernel

import (
	"bytes"
	"fmt"
	"os"
	"syscall"

	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// killSession ends every process of a session. Processes that start while it
// looks are found by the next round.
func killSession(sid int) {
	for range 10 {
		found := false
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, entry := range entries {
			if pid, ok := inSession(entry.Name(), sid); ok {
				found = true
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if !found {
			return
		}
	}
}

// inSession reads /proc/PID/stat (proc(5): "pid (comm) state ppid pgrp session").
func inSession(name string, sid int) (pid int, ok bool) {
	if name == "" || name[0] < '0' || name[0] > '9' {
		return 0, false
	}
	stat, err := os.ReadFile("/proc/" + name + "/stat")
	if err != nil {
		return 0, false
	}
	after := bytes.LastIndexByte(stat, ')')
	if after < 0 {
		return 0, false
	}
	var state string
	var parent, group, session int
	if _, err := fmt.Sscan(string(stat[after+1:]), &state, &parent, &group, &session); err != nil || session != sid || state == "Z" {
		return 0, false
	}
	if _, err := fmt.Sscan(name, &pid); err != nil {
		return 0, false
	}
	return pid, true
}

// epitaph says how the kernel ended; call it after its end.
func epitaph(p *spawn.Process) string {
	status, _ := p.Status()
	how := fmt.Sprintf("it exited with code %d", status.ExitStatus())
	if status.Signaled() {
		how = fmt.Sprintf("it was ended by signal %d (%s)", int(status.Signal()), status.Signal())
	}
	if reason := p.Reason(); reason != "" {
		how += ": " + reason
	}
	return "the kernel died: " + how
}

// reasonEvent tells that a process of a kernel's session was ended from outside,
// which the run's code may not notice; ok is false when none was.
func reasonEvent(p *spawn.Process) (e event, ok bool) {
	reason := p.Reason()
	return event{Kind: eventStderr, Text: "[a process of this run was ended: " + reason + "]\n"}, reason != ""
}
