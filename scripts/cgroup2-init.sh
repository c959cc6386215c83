#!/bin/busybox sh
# The first process of the machine that scripts/cgroup2.sh boots.

# gVisor changes its root, which the kernel refuses on the root that it unpacks
# at boot: move to another one.
if [ ! -e /moved ]; then
  /bin/busybox mkdir /new
  /bin/busybox mount -t tmpfs -o size=75% tmpfs /new
  /bin/busybox cp -a /bin /dev /proc /sys /tmp /modules /init /gvisor.test /probe.erofs /new
  /bin/busybox touch /new/moved
  exec /bin/busybox switch_root /new /init
fi

export PATH=/bin
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
exec >/dev/console 2>&1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
insmod /modules/tun.ko

echo "cgroup2: $(uname -r), $(cat /sys/fs/cgroup/cgroup.controllers), up for $(cut -d' ' -f1 /proc/uptime) s"
tombolo doctor
TOMBOLO_PROBE_IMAGE=/probe.erofs TOMBOLO_TEST_PATIENCE=10 /gvisor.test -test.v && result=pass || result=FAIL
echo "cgroup2: up for $(cut -d' ' -f1 /proc/uptime) s"
echo "cgroup2: $result"
poweroff -f
