package gvisor

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// CgroupVersion tells "v1" or "v2", or why neither serves.
func CgroupVersion() (string, error) {
	h, err := findHierarchy()
	if err != nil {
		return "", err
	}
	return h.String(), nil
}

// TryPlatform runs a command in gVisor on a platform and returns what went
// wrong. A device file that opens is no proof that a platform works.
func TryPlatform(ctx context.Context, platform string) error {
	dir, err := os.MkdirTemp("", "tombolo-doctor-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, "/proc/self/exe",
		"--root="+dir, "--platform="+platform, "--network=none", "--ignore-cgroups", "--host-settings=ignore", "do", "/bin/true")
	cmd.Args[0] = "runsc"
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(stderr.String())
		if i := strings.LastIndexByte(text, '\n'); i >= 0 {
			text = text[i+1:]
		}
		return fmt.Errorf("%w: %s", err, text)
	}
	return nil
}
