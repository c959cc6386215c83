#!/usr/bin/env bash
# Runs the engine's tests on control groups v2, on a machine that may have v1:
# boots Debian's kernel in a software-emulated machine (no KVM) whose disk holds
# busybox, the compiled tests and what they need. Changes nothing outside the
# state folder: Debian's packages are unpacked there, not installed.
set -euo pipefail

state=$1 binary=$2 # STATE folder, BINARY: bin/tombolo, whose doctor is run as well; TEST_RUN picks tests
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
binary=$(realpath "$binary")
state=$(mkdir -p "$state" && cd "$state" && pwd)
tools="$state/tools"
patience=900 # seconds until a machine that hangs is ended

unpack_tools() { # QEMU with its libraries, busybox and a kernel
  if [ -f "$tools/complete" ]; then return; fi
  rm -rf "$tools" "$state/debs"
  mkdir -p "$tools" "$state/debs/partial"
  apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1 || apt-get update -qq
  local kernel
  kernel=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
  # Libraries that this machine has are left out.
  apt-get install -qq --download-only --no-install-recommends -o Dir::Cache::Archives="$state/debs" qemu-system-x86 >/dev/null
  (cd "$state/debs" && apt-get download -qq -o APT::Sandbox::User=root busybox-static "$kernel")
  local package
  for package in "$state"/debs/*.deb; do
    dpkg-deb --extract "$package" "$tools"
  done
  rm -rf "$state/debs"
  touch "$tools/complete"
}

make_disk() {
  local disk="$state/root"
  rm -rf "$disk" "$state/disk.ext4"
  mkdir -p "$disk"/{bin,dev,proc,sys,tmp,modules,probe}
  cd "$root"
  export CGO_ENABLED=0
  go test -c -trimpath -ldflags '-s -w' -o "$disk/gvisor.test" ./internal/engine/gvisor
  go build -trimpath -o "$disk/probe/probe" ./internal/engine/enginetest/probe
  cp "$binary" "$disk/bin/tombolo"
  cp "$tools/bin/busybox" "$disk/bin/busybox"
  find "$tools/lib/modules" -name tun.ko -exec cp {} "$disk/modules" \;
  cp "$root/scripts/cgroup2-init.sh" "$disk/init"
  # Not on tmpfs: what is written there would count as memory.
  truncate -s 2G "$state/disk.ext4"
  mkfs.ext4 -q -O ^has_journal -E lazy_itable_init=1 -d "$disk" "$state/disk.ext4"
}

boot() { # prints the machine's console, whose last line is the result
  local qemu
  qemu=$(command -v qemu-system-x86_64 || echo "$tools/usr/bin/qemu-system-x86_64")
  LD_LIBRARY_PATH="$tools/usr/lib/x86_64-linux-gnu:$tools/lib/x86_64-linux-gnu" \
    timeout "$patience" "$qemu" \
    -L "$tools/usr/share/qemu" -L "$tools/usr/share/seabios" \
    -accel tcg,thread=multi -cpu max -smp 2 -m 3072 \
    -nodefaults -no-reboot -display none -serial stdio \
    -drive if=none,id=disk,format=raw,cache=unsafe,file="$state/disk.ext4" -device nvme,drive=disk,serial=disk \
    -kernel "$tools"/boot/vmlinuz-* \
    -append "root=/dev/nvme0n1 rw rootwait init=/init console=ttyS0 quiet panic=-1 mitigations=off run=${TEST_RUN:-.}" \
    </dev/null | sed -u 's/\r$//'
}

if [ "$(uname -m)" != x86_64 ]; then
  echo "the emulated machine runs this machine's binaries and is x86-64; this one is $(uname -m)" >&2
  exit 1
fi
unpack_tools
make_disk
boot | tee "$state/console.log"
rm -rf "$state/disk.ext4" "$state/root" "$state/probe"
grep -q '^cgroup2: pass$' "$state/console.log"
