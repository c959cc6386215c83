# Runs the shell command $2 in the tree $1 with the few things that programs
# expect to be mounted, and with this machine's name server.
root=$1
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  [ -e "/dev/$device" ] || continue
  : >"$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir -m 1777 "$root/dev/shm"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/tmp"
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs "$root/run"
if [ -e /etc/resolv.conf ]; then
  cat /etc/resolv.conf >"$root/run/build-resolv.conf"
  [ -e "$root/etc/resolv.conf" ] || : >"$root/etc/resolv.conf"
  mount --bind "$root/run/build-resolv.conf" "$root/etc/resolv.conf"
fi
chroot "$root" /bin/sh -euc "$2"
