package gvisor

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tombolo-dev/tombolo/internal/engine"
)

// Folders below Spec.Dir.
const (
	bundleDir = "bundle" // config.json and the root the OCI spec asks for
	// rootDir is that root. The image takes its place; gVisor keeps the one sparse
	// file in it that holds what the sandbox writes.
	rootDir  = bundleDir + "/rootfs"
	stateDir = "state"     // runsc's --root
	panicLog = "panic.log" // the last words of the sentry
	pidName  = "pid"       // of the sentry
)

// cpuPeriod is the window in which processor time is dealt out, in
// microseconds. Shorter than the kernel's 100 ms so that a sandbox that burns
// its share still answers within a few milliseconds.
const cpuPeriod = 20_000

// hostTasksPerProcess bounds host threads by the processes allowed inside. Seen:
// two a process at rest, up to ten in a fork bomb. The memory limit counts them too.
const hostTasksPerProcess = 32

// capabilities of root inside. They act on the sandbox's own kernel, not on the
// host; those that would let it change its network or load code into that
// kernel stay out.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
	"CAP_IPC_OWNER", "CAP_KILL", "CAP_LEASE", "CAP_LINUX_IMMUTABLE", "CAP_MKNOD", "CAP_NET_BIND_SERVICE",
	"CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_NICE",
	"CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}

// writeBundle writes the OCI bundle of an instance below spec.Dir.
func writeBundle(spec engine.Spec, cgroupPath string) error {
	for _, dir := range []string{stateDir, rootDir} {
		if err := os.MkdirAll(filepath.Join(spec.Dir, dir), 0o700); err != nil {
			return err
		}
	}
	config, err := json.Marshal(ociSpec(spec, cgroupPath))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(spec.Dir, bundleDir, "config.json"), config, 0o600)
}

func ociSpec(spec engine.Spec, cgroupPath string) *specs.Spec {
	period := uint64(cpuPeriod)
	quota := int64(math.Ceil(spec.Limits.CPUs * cpuPeriod))
	memory := spec.Limits.MemoryBytes
	// From the first moment (v1; v2 has no such switch): a sandbox that fills its
	// memory before it is watched stands still until it is.
	disableOOMKiller := true
	caps := &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities, Inheritable: capabilities}
	annotations := map[string]string{
		"dev.gvisor.spec.rootfs.source":  spec.Image,
		"dev.gvisor.spec.rootfs.type":    "erofs",
		"dev.gvisor.spec.rootfs.overlay": "self",
		"dev.gvisor.spec.rootfs.options": fmt.Sprintf("size=%d", spec.Limits.DiskBytes),
	}
	if spec.Upper != "" {
		annotations["dev.gvisor.tar.rootfs.upper"] = spec.Upper
	}
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: spec.Hostname,
		Root:     &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args:         spec.Args,
			Env:          spec.Env,
			Cwd:          "/",
			Capabilities: caps,
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Soft: 65536, Hard: 1 << 20},
			},
		},
		Mounts:      mounts(spec),
		Annotations: annotations,
		Linux: &specs.Linux{
			CgroupsPath: cgroupPath,
			Resources: &specs.LinuxResources{
				CPU:    &specs.LinuxCPU{Period: &period, Quota: &quota},
				Memory: &specs.LinuxMemory{Limit: &memory, DisableOOMKiller: &disableOOMKiller},
				Pids:   &specs.LinuxPids{Limit: hostTaskLimit(spec.Limits)},
			},
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: spec.NetworkNamespace},
			},
		},
	}
}

// hostTaskLimit is the host's backstop behind the limit inside: it is never
// reached unless root inside lifts that one, and then ends only this sandbox.
func hostTaskLimit(l engine.Limits) int64 { return 256 + l.Processes*hostTasksPerProcess }

// mounts are what every sandbox has, and its own. What is written to /dev/shm is
// memory that no ended process gives back, so it stays well below the limit.
func mounts(spec engine.Spec) []specs.Mount {
	shared := fmt.Sprintf("size=%d", spec.Limits.MemoryBytes/2)
	all := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts"},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777", shared}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup"},
	}
	for _, m := range spec.Mounts {
		options := []string{"rbind"}
		if m.Receive {
			options = append(options, "rslave")
		}
		if m.ReadOnly {
			options = append(options, "ro")
		}
		all = append(all, specs.Mount{Destination: m.Target, Type: "bind", Source: m.Source, Options: options})
	}
	return all
}
