#!/usr/bin/env bash
# Installs the system packages that building, templates and tests need. Root on
# Debian or Ubuntu. Go, Node and Python are left alone where they are there.
set -euo pipefail

go_minimum=1.26

packages=(ca-certificates curl debian-archive-keyring e2fsprogs git iproute2 make mmdebstrap util-linux)
command -v python3 >/dev/null || packages+=(python3)
python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
command -v npm >/dev/null || packages+=(nodejs npm)

missing=()
for package in "${packages[@]}"; do
  dpkg-query --show --showformat='${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ]; then
    echo "run as root, or install: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if ! command -v go >/dev/null; then
  echo "Go $go_minimum or newer is needed; Debian's is older. Get it from go.dev/dl and put it on the PATH." >&2
  exit 1
fi
