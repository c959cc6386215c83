package agent

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// A fork bomb near its limit leaves the sandbox alive and of no use: everything
// waits behind hundreds of processes that try again and again. So a process
// group that keeps the sandbox there is ended as a whole.
const (
	crowdEvery = 250 * time.Millisecond
	// crowdRounds in a row above three quarters of the limit make a bomb of what may have been a burst.
	crowdRounds = 2
	// crowdSample processes are asked for their group. Under a bomb each system
	// call takes tens of milliseconds, so a whole scan would take a minute.
	crowdSample = 12
)

// watchCrowd runs until ctx ends.
func watchCrowd(ctx context.Context, groups processGroups, spawner *spawn.Spawner, log *slog.Logger) {
	current, err := os.Open(filepath.Join(filepath.Dir(groups.max), "pids.current"))
	if err != nil {
		return // no limit, no crowd
	}
	defer current.Close()
	ticker := time.NewTicker(crowdEvery)
	defer ticker.Stop()
	rounds := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		count := readCount(current)
		if count < reserveProcesses || count < limitOf(groups.max)*3/4 {
			rounds = 0
			continue
		}
		if rounds++; rounds < crowdRounds {
			continue
		}
		rounds = 0
		group := majority(sampleGroups())
		if group <= 1 || group == unix.Getpgrp() {
			continue
		}
		reason := fmt.Sprintf("process limit: process group %d had most of the %d processes that the sandbox may have, and was ended",
			group, limitOf(groups.max))
		if p, ok := spawner.Find(group); ok {
			p.SetReason(reason)
		}
		if err := unix.Kill(-group, unix.SIGKILL); err == nil {
			log.Warn(reason)
		}
	}
}

// sampleGroups returns the process groups of some processes, evenly spread over
// those there are.
func sampleGroups() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(4096)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	var sampled []int
	step := max(1, len(pids)/crowdSample)
	for i := 0; i < len(pids); i += step {
		if group, err := unix.Getpgid(pids[i]); err == nil {
			sampled = append(sampled, group)
		}
	}
	return sampled
}

// majority is the value that more than half of them are, or 0.
func majority(values []int) int {
	counts := map[int]int{}
	for _, v := range values {
		if counts[v]++; counts[v]*2 > len(values) {
			return v
		}
	}
	return 0
}

func limitOf(file string) int {
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer f.Close()
	return readCount(f)
}

// readCount reads a number from the start of a file; "max" and errors are 0.
func readCount(file *os.File) int {
	var buffer [32]byte
	n, _ := file.ReadAt(buffer[:], 0)
	count, _ := strconv.Atoi(string(bytes.TrimSpace(buffer[:n])))
	return count
}
