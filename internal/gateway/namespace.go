package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

const (
	deviceName = "eth0" // what the sandbox sees
	// deviceMTU is the most a TAP takes (65535 less its Ethernet header). TCP
	// ends in our stack, so a segment inside may be as long as a packet can be;
	// what we send outside has the outside's MTU.
	deviceMTU = 65521
)

// Fixed hardware addresses: a sandbox restored into another namespace finds
// its own address and the gateway's unchanged, and nobody needs to ask by ARP.
var (
	sandboxMAC = net.HardwareAddr{0x02, 0, 0x0a, 0, 0, 0x02}
	gatewayMAC = net.HardwareAddr{0x02, 0, 0x0a, 0, 0, 0x01}
)

// namespace is a network namespace kept alive by a bind mount, with the TAP
// device in it.
type namespace struct {
	path   string
	queues [queueCount]*os.File // our ends of the device, non-blocking
	routes *netlink.Handle      // a netlink socket in the namespace
}

// createNamespace makes a namespace with a configured device and mounts it at
// dir/netns. On error nothing is left.
func createNamespace(dir string) (*namespace, error) {
	path := filepath.Join(dir, "netns")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return nil, fmt.Errorf("make the namespace's mount point (a network left there? sweep it): %w", err)
	}
	file.Close()
	ns := &namespace{path: path}
	err = onThrowawayThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace (root is needed): %w", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount the network namespace at %s: %w", path, err)
		}
		return ns.openDevice()
	})
	if err == nil {
		err = ns.configure()
	}
	if err != nil {
		return nil, errors.Join(err, ns.remove())
	}
	return ns, nil
}

// openNamespace opens the namespace and the device that createNamespace of a
// daemon now gone made in dir.
func openNamespace(dir string) (*namespace, error) {
	path := filepath.Join(dir, "netns")
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	defer file.Close()
	ns := &namespace{path: path}
	err = onThrowawayThread(func() error {
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			if errors.Is(err, unix.EINVAL) { // the file is there, the mount is not
				return fmt.Errorf("%s is no network namespace: %w", path, fs.ErrNotExist)
			}
			return fmt.Errorf("enter network namespace %s: %w", path, err)
		}
		return ns.openDevice()
	})
	if err != nil {
		return nil, errors.Join(err, ns.closeFiles())
	}
	return ns, nil
}

// onThrowawayThread runs fn on an OS thread that ends with it, so that fn may
// change the thread's namespace.
func onThrowawayThread(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		result <- fn()
	}()
	return <-result
}

// openDevice makes or opens the TAP in the thread's namespace, and a netlink
// socket there.
func (ns *namespace) openDevice() error {
	if err := limitIPv6(); err != nil {
		return err
	}
	for i := range ns.queues {
		queue, err := openQueue()
		if err != nil {
			return err
		}
		ns.queues[i] = queue
	}
	if err := steer(ns.queues[0]); err != nil {
		return fmt.Errorf("steer traffic to the queues of the TAP device: %w", err)
	}
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	ns.routes = routes
	return nil
}

func openQueue() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun (is the tun module loaded?): %w", err)
	}
	if err := attachTAP(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "tap"), nil
}

// attachTAP makes fd a user end of the device, its next queue. The device
// outlives fd, so that a daemon started later can open it again, and hands over
// segments with their checksum and their splitting left open: both ends are on
// this machine.
func attachTAP(fd int) error {
	request, err := unix.NewIfreq(deviceName)
	if err != nil {
		return fmt.Errorf("device name %s: %w", deviceName, err)
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("make TAP device: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("make TAP device persistent: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4); err != nil {
		return fmt.Errorf("switch on offloads of the TAP device: %w", err)
	}
	return nil
}

// limitIPv6 leaves the thread's namespace ::1 alone, which programs listen on. A
// kernel without IPv6 is fine.
func limitIPv6() error {
	for _, setting := range []struct{ scope, disable string }{{"all", "1"}, {"default", "1"}, {"lo", "0"}} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+setting.scope+"/disable_ipv6", []byte(setting.disable), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("limit IPv6 to lo: %w", err)
		}
	}
	return nil
}

// configure brings loopback and the device up and gives the device its
// address, the gateway as neighbour and default route. It may be repeated.
func (ns *namespace) configure() error {
	loopback, err := ns.routes.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	device, err := ns.routes.LinkByName(deviceName)
	if err != nil {
		return fmt.Errorf("find %s: %w", deviceName, err)
	}
	index := device.Attrs().Index
	gateway := net.ParseIP(hostapi.GatewayAddr).To4()
	address := &netlink.Addr{IPNet: &net.IPNet{
		IP:   net.ParseIP(hostapi.SandboxAddr).To4(),
		Mask: net.CIDRMask(hostapi.PrefixLen, 32),
	}}
	neighbour := &netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, IP: gateway, HardwareAddr: gatewayMAC}
	// A device may have 256 queues and has two: the kernel's default would set
	// aside megabytes for the others, and its queueing has no use here.
	direct := &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		QdiscType:  "noqueue",
	}
	route := &netlink.Route{LinkIndex: index, Gw: gateway}
	for _, step := range []struct {
		what string
		err  func() error
	}{
		{"bring lo up", func() error { return ns.routes.LinkSetUp(loopback) }},
		{"set MAC", func() error { return ns.routes.LinkSetHardwareAddr(device, sandboxMAC) }},
		{"set MTU", func() error { return ns.routes.LinkSetMTU(device, deviceMTU) }},
		{"set queueing", func() error { return ns.routes.QdiscReplace(direct) }},
		{"bring device up", func() error { return ns.routes.LinkSetUp(device) }},
		{"set address", func() error { return ns.routes.AddrReplace(device, address) }},
		{"set neighbour", func() error { return ns.routes.NeighSet(neighbour) }},
		{"set route", func() error { return ns.routes.RouteReplace(route) }},
	} {
		if err := step.err(); err != nil {
			return fmt.Errorf("configure network namespace %s: %s: %w", ns.path, step.what, err)
		}
	}
	return nil
}

// remove takes the mount away; the namespace and its device go when no process
// is left in it.
func (ns *namespace) remove() error {
	return errors.Join(ns.closeFiles(), unmount(ns.path))
}

func (ns *namespace) closeFiles() error {
	if ns.routes != nil {
		ns.routes.Close()
	}
	var errs []error
	for _, queue := range ns.queues {
		if queue == nil {
			continue
		}
		if err := queue.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
			errs = append(errs, fmt.Errorf("close TAP device: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Sweep removes the network that a daemon which is gone left in dir. It is no
// error when there is none.
func Sweep(dir string) error {
	return errors.Join(unmount(filepath.Join(dir, "netns")), removeLedger(dir))
}

func unmount(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // EINVAL: not mounted
		return fmt.Errorf("unmount network namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove mount point of network namespace: %w", err)
	}
	return nil
}
