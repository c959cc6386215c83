#!/bin/busybox sh
# The first process of the machine that scripts/cgroup2.sh boots. The kernel
# hands it "run" from its command line.

export PATH=/bin
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
exec >/dev/console 2>&1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
insmod /modules/tun.ko

uptime() { cut -d' ' -f1 /proc/uptime; }

echo "cgroup2: $(uname -r), controllers $(cat /sys/fs/cgroup/cgroup.controllers), up for $(uptime) s"
tombolo doctor
TOMBOLO_PROBE_ROOT=/probe TOMBOLO_TEST_PATIENCE=10 /gvisor.test -test.v -test.run "$run" && result=pass || result=FAIL
echo "cgroup2: up for $(uptime) s"
echo "cgroup2: $result"
poweroff -f
