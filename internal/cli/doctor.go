package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/engine/gvisor"
)

// finding is one thing that doctor looked at.
type finding struct {
	What string `json:"what"`
	OK   bool   `json:"ok"`
	// Needed is false for what only some features want.
	Needed bool   `json:"needed"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

func newDoctor() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Tell what this machine has and lacks, with the remedy",
		Long:  "Tell what this machine has and lacks, with the remedy. The exit code is 1 when sandboxes cannot run here.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			findings := examine(cmd.Context(), c)
			healthy := true
			for _, f := range findings {
				healthy = healthy && (f.OK || !f.Needed)
			}
			if asJSON {
				err = printJSON(findings)
			} else {
				err = printFindings(findings)
			}
			if err == nil && !healthy {
				return exitCode(1)
			}
			return err
		},
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func printFindings(findings []finding) error {
	for _, f := range findings {
		mark := "ok"
		if !f.OK {
			mark = "--"
			if f.Needed {
				mark = "NO"
			}
		}
		fmt.Printf("%s  %-18s %s\n", mark, f.What, f.Found)
		if !f.OK {
			fmt.Printf("    %-18s -> %s\n", "", f.Remedy)
		}
	}
	return nil
}

func examine(ctx context.Context, c config) []finding {
	findings := []finding{root(), kernel(), cgroups(), userNamespaces(), tun(), mmdebstrap()}
	for _, platform := range []string{"systrap", "kvm"} {
		findings = append(findings, tryPlatform(ctx, platform, platform == c.Platform))
	}
	return append(findings, volumes(), disk(c.Data))
}

func root() finding {
	f := finding{What: "root", Needed: true, OK: os.Geteuid() == 0, Found: fmt.Sprintf("user id %d", os.Geteuid())}
	f.Remedy = "run tombolo as root (sudo)"
	return f
}

// kernel must be 5.10 or newer: the engine waits for sandboxes by non-blocking
// pidfds.
func kernel() finding {
	f := finding{What: "kernel", Needed: true, Remedy: "run a Linux kernel of 5.10 or newer"}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		f.Found = err.Error()
		return f
	}
	release := unix.ByteSliceToString(name.Release[:])
	var major, minor int
	fmt.Sscanf(release, "%d.%d", &major, &minor)
	f.OK, f.Found = major > 5 || (major == 5 && minor >= 10), release+" "+runtime.GOARCH
	return f
}

func cgroups() finding {
	f := finding{What: "control groups", Needed: true, Remedy: "mount control groups at /sys/fs/cgroup with the memory, cpu and pids controllers"}
	version, err := gvisor.CgroupVersion()
	f.OK, f.Found = err == nil, version
	if err != nil {
		f.Found = err.Error()
	}
	return f
}

func userNamespaces() finding {
	f := finding{What: "user namespaces", Needed: true, Remedy: "sysctl -w user.max_user_namespaces=15000"}
	raw, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
	f.Found = "max " + strings.TrimSpace(string(raw))
	f.OK = err == nil && strings.TrimSpace(string(raw)) != "0"
	return f
}

func tun() finding {
	f := finding{What: "TUN device", Needed: true, Found: "/dev/net/tun", Remedy: "modprobe tun; in a container pass --device /dev/net/tun"}
	file, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		f.Found = err.Error()
		return f
	}
	file.Close()
	f.OK = true
	return f
}

// mmdebstrap is needed for recipes that begin with Debian, not to run sandboxes.
func mmdebstrap() finding {
	f := finding{What: "mmdebstrap", Found: "not found", Remedy: "apt-get install mmdebstrap (to build the templates that come with Tombolo)"}
	if path, err := exec.LookPath("mmdebstrap"); err == nil {
		f.OK, f.Found = true, path
	}
	return f
}

// tryPlatform runs a command in gVisor, which is the only way to know.
func tryPlatform(ctx context.Context, platform string, needed bool) finding {
	f := finding{What: "platform " + platform, Needed: needed, Remedy: "use --platform systrap"}
	if needed {
		f.Remedy = "see the message; gVisor needs ptrace and seccomp"
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	began := time.Now()
	if err := gvisor.TryPlatform(ctx, platform); err != nil {
		f.Found = err.Error()
		return f
	}
	f.OK, f.Found = true, fmt.Sprintf("works (%d ms)", time.Since(began).Milliseconds())
	return f
}

func disk(data string) finding {
	f := finding{What: "disk", Remedy: "building the default templates needs 15 GiB, of which 5 GiB stay; choose another folder with --data"}
	dir := data
	var stat unix.Statfs_t
	for unix.Statfs(dir, &stat) != nil && dir != "/" {
		dir = filepath.Dir(dir)
	}
	free := int64(stat.Bavail) * stat.Bsize
	f.OK, f.Found = free >= 15<<30, fmt.Sprintf("%d GiB free for %s", free>>30, data)
	return f
}
