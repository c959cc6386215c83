#!/usr/bin/env bash
# Runs the engine's tests on control groups v2, on a machine that may have v1:
# boots Debian's kernel in a software-emulated machine (no KVM) whose root is
# busybox, the compiled tests and what they need. Changes nothing outside the
# state folder: Debian's packages are unpacked there, not installed.
set -euo pipefail

state=$1 binary=$2 # STATE folder, BINARY: bin/tombolo, whose doctor is run as well
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
state=$(mkdir -p "$state" && cd "$state" && pwd)
limit=900 # seconds until a machine that hangs is ended

unpack_tools() { # QEMU with its libraries, busybox and a kernel, into tools/
  if [ -f "$state/tools/complete" ]; then return; fi
  rm -rf "$state/tools" "$state/debs"
  mkdir -p "$state/tools" "$state/debs/partial"
  apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1 || apt-get update -qq
  local kernel
  kernel=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
  # Libraries that the machine has already are left out, so these are only
  # good together with it.
  apt-get install -qq --download-only --no-install-recommends -o Dir::Cache::Archives="$state/debs" qemu-system-x86 >/dev/null
  (cd "$state/debs" && apt-get download -qq -o APT::Sandbox::User=root busybox-static "$kernel")
  local package
  for package in "$state"/debs/*.deb; do
    dpkg-deb --extract "$package" "$state/tools"
  done
  rm -rf "$state/debs"
  touch "$state/tools/complete"
}

build_tests() { # everything that the machine's root holds, into root/
  rm -rf "$state/root" "$state/probe"
  mkdir -p "$state"/root/{bin,dev,proc,sys,tmp,modules} "$state/probe"
  cd "$root"
  export CGO_ENABLED=0
  go test -c -trimpath -ldflags '-s -w' -o "$state/root/gvisor.test" ./internal/engine/gvisor
  go build -trimpath -o "$state/probe/probe" ./internal/engine/enginetest/probe
  mkfs.erofs -E noinline_data "$state/root/probe.erofs" "$state/probe" >/dev/null
  cp "$binary" "$state/root/bin/tombolo"
  cp "$state/tools/bin/busybox" "$state/root/bin/busybox"
  find "$state/tools/lib/modules" -name tun.ko -exec cp {} "$state/root/modules" \;
  cp "$root/scripts/cgroup2-init.sh" "$state/root/init"
}

boot() { # prints the machine's console; the result is its last line
  local libraries="$state/tools/usr/lib/x86_64-linux-gnu:$state/tools/lib/x86_64-linux-gnu"
  local qemu
  qemu=$(command -v qemu-system-x86_64 || echo "$state/tools/usr/bin/qemu-system-x86_64")
  LD_LIBRARY_PATH=$libraries timeout "$limit" "$qemu" \
    -L "$state/tools/usr/share/qemu" -L "$state/tools/usr/share/seabios" \
    -accel tcg,thread=multi -cpu max -smp 2 -m 3072 \
    -nodefaults -no-reboot -display none -serial stdio \
    -kernel "$state"/tools/boot/vmlinuz-* -initrd "$state/initramfs" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off" </dev/null
}

unpack_tools
build_tests
(cd "$state/root" && find . | "$state/tools/bin/busybox" cpio -o -H newc >"$state/initramfs" 2>/dev/null)
boot | sed -u 's/\r$//' | tee "$state/console.log"
grep -q '^cgroup2: pass$' "$state/console.log"
