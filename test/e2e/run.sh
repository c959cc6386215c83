#!/usr/bin/env bash
# Runs the end-to-end tests: the real server, the real engine, the official
# clients. Needs root, bin/tombolo and a data folder that has the default
# templates and no server on it:
#
#   TOMBOLO_TEST_DATA=DIR test/e2e/run.sh [pytest arguments]
#   TOMBOLO_TEST_DATA=DIR test/e2e/run.sh world [pytest arguments]
#
# With arguments only the newest Python clients' tests run, with them, or those in a
# world of their own.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
clients="$root/.tombolo/clients"
export TOMBOLO_BIN="${TOMBOLO_BIN:-$root/bin/tombolo}"
TOMBOLO_DATA=$(realpath "${TOMBOLO_TEST_DATA:?the data folder with the default templates}")
export TOMBOLO_DATA
export PYTHONDONTWRITEBYTECODE=1

failed=()
step() { # NAME COMMAND...: runs it and remembers a failure
  echo "== $1"
  "${@:2}" || failed+=("$1")
}

start_server() {
  output=$(mktemp -d)
  "$TOMBOLO_BIN" serve --listen 127.0.0.1:0 --on-stop end --data "$TOMBOLO_DATA" >"$output/stdout" 2>"$output/stderr" &
  server_pid=$!
  for ((i = 0; i < 600; i++)); do
    if grep -q 'http://127\.0\.0\.1:[0-9]*$' "$output/stdout"; then
      eval "$("$TOMBOLO_BIN" env --data "$TOMBOLO_DATA")"
      return
    fi
    kill -0 "$server_pid" 2>/dev/null || break
    sleep 0.1
  done
  echo "the server gave no ready line; its log:" >&2
  tail -n 30 "$output/stderr" >&2
  exit 1
}

stop_server() { # fails unless the server ends by itself with status 0 and leaves no sandbox
  kill -TERM "$server_pid"
  wait "$server_pid"
  local status=$?
  if [ $status -ne 0 ]; then
    echo "the server ended with status $status; its log:" >&2
    tail -n 30 "$output/stderr" >&2
    return 1
  fi
  local left
  left=$(ls "$TOMBOLO_DATA/sandboxes" 2>/dev/null)
  [ -z "$left" ] || { echo "left in $TOMBOLO_DATA/sandboxes: $left" >&2; return 1; }
}

in_folder() { (cd "$1" && "${@:2}"); }

# The tests of what sandboxes reach have a world of their own in place of the
# machine's network, and are gone with it. They start their own servers.
in_world() { in_folder "$here/world" unshare --net --mount "$clients/world/bin/python" -m pytest "$@"; }

"$here/setup.sh"
if [ "${1:-}" = world ]; then
  in_world "${@:2}"
  exit
fi
start_server
trap 'kill -TERM "$server_pid" $world_pid 2>/dev/null; wait' EXIT

# The tests wait more than they compute, and those in a world of their own meet no
# others: they run beside the rest.
world_pid=
if [ $# -eq 0 ]; then
  in_world -p no:cacheprovider >"$output/world" 2>&1 &
  world_pid=$!
fi

if [ $# -gt 0 ]; then
  step "newest Python clients" in_folder "$here/python" "$clients/python/bin/python" -m pytest "$@"
else
  step "newest Python clients" in_folder "$here/python" "$clients/python/bin/python" -m pytest
  step "older Python clients" in_folder "$here/python-old" "$clients/python-old/bin/python" -m pytest -q -p no:cacheprovider
  step "newest JavaScript clients" in_folder "$here/js" node --test --test-reporter=spec
  step "older JavaScript clients" in_folder "$here/js-old" node --test --test-reporter=spec
fi
step "clean stop" stop_server
world_ended() { # says what its tests printed
  wait "$world_pid"
  local status=$?
  cat "$output/world"
  return $status
}
if [ -n "$world_pid" ]; then step "a world of their own" world_ended; fi
trap - EXIT
rm -rf "$output"

if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "all end-to-end tests passed"
