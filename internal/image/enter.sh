# Runs the shell command $2 in the tree $1 with the few things that programs
# expect to be mounted, and with this machine's name server.
umask 022
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
conf="$root/etc/resolv.conf"
made=
# A link may point out of the tree.
if [ -L "$conf" ]; then
  mv "$conf" "$conf.link"
fi
if [ ! -e "$conf" ]; then
  : >"$conf"
  made=yes
fi
cat /etc/resolv.conf >"$root/run/build-resolv.conf" || true
mount --bind "$root/run/build-resolv.conf" "$conf"
chroot "$root" /bin/sh -euc "$2"
umount "$conf" 2>/dev/null || true
[ -z "$made" ] || [ -L "$conf" ] || rm "$conf"
[ ! -L "$conf.link" ] || mv "$conf.link" "$conf"
