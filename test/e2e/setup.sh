#!/usr/bin/env bash
# Installs the official clients for the end-to-end tests: two generations of
# each language. Does nothing when what is installed matches the pinned lists.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
clients="$root/.tombolo/clients"

# stamped STAMP FILE...: is STAMP the hash of these files?
hash_of() { cat "$@" | sha256sum | cut -d' ' -f1; }
stamped() { [ -f "$1" ] && [ "$(cat "$1")" = "$(hash_of "${@:2}")" ]; }

python_clients() { # NAME: into .tombolo/clients/NAME from NAME/requirements.txt
  local venv="$clients/$1" list="$here/$1/requirements.txt"
  if stamped "$venv/.stamp" "$list"; then return; fi
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$list"
  hash_of "$list" >"$venv/.stamp"
}

js_clients() { # NAME: into NAME/node_modules from NAME/package-lock.json
  local folder="$here/$1"
  local lists=("$folder/package.json" "$folder/package-lock.json")
  if stamped "$folder/node_modules/.stamp" "${lists[@]}"; then return; fi
  (cd "$folder" && npm ci --silent)
  hash_of "${lists[@]}" >"$folder/node_modules/.stamp"
}

mkdir -p "$clients"
python_clients python
python_clients python-old
python_clients world
js_clients js
js_clients js-old
