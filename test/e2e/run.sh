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

in_folder() { (cd "$1" && "${@:2}"); }

# The suites, by what their folders are called.
arguments=()
python() { (cd "$here/python" && "$clients/python/bin/python" -m pytest "${arguments[@]}"); }
# All of it in two, which take equally long with what runs beside.
python-a-n() { (cd "$here/python" && "$clients/python/bin/python" -m pytest test_[a-n]*.py); }
python-o-z() { (cd "$here/python" && "$clients/python/bin/python" -m pytest test_[o-z]*.py); }
python-old() { in_folder "$here/python-old" "$clients/python-old/bin/python" -m pytest -q -p no:cacheprovider; }
js() { in_folder "$here/js" node --test --test-reporter=spec; }
js-old() { in_folder "$here/js-old" node --test --test-reporter=spec; }

# The tests of what sandboxes reach have a world of their own in place of the
# machine's network, and are gone with it. They start their own servers.
world() {
  in_folder "$here/world" unshare --net --mount "$clients/world/bin/python" -m pytest -p no:cacheprovider "$@"
}

failed=()
step() { # NAME COMMAND...: runs it and remembers a failure
  echo "== $1"
  "${@:2}" || failed+=("$1")
}

told() { # fails when a step did, and says which
  [ ${#failed[@]} -eq 0 ] && return
  printf 'FAILED: %s\n' "${failed[@]}"
  return 1
}

start_server() {
  : >"$output/stdout"
  "$TOMBOLO_BIN" serve --listen 127.0.0.1:0 --on-stop end >"$output/stdout" 2>"$output/stderr" &
  server_pid=$!
  trap 'kill -TERM $server_pid 2>/dev/null; wait' EXIT
  for ((i = 0; i < 600; i++)); do
    if grep -q 'http://127\.0\.0\.1:[0-9]*$' "$output/stdout"; then
      eval "$("$TOMBOLO_BIN" env)"
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
  trap - EXIT
  if [ $status -ne 0 ]; then
    echo "the server ended with status $status; its log:" >&2
    tail -n 30 "$output/stderr" >&2
    return 1
  fi
  local left
  left=$(ls "$TOMBOLO_DATA/sandboxes" 2>/dev/null)
  [ -z "$left" ] || { echo "left in $TOMBOLO_DATA/sandboxes: $left" >&2; return 1; }
}

# one_after_another runs suites on a server of their own. It is for a subshell.
one_after_another() {
  output=$(mktemp -d)
  start_server
  local suite
  for suite in "$@"; do step "$suite" "$suite"; done
  step "clean stop after $*" stop_server
  rm -rf "$output"
  told
}

# second_data makes a data folder with the same templates: files that never change are
# linked, so it lies beside the first.
second_data() {
  second=$(mktemp -d "$(dirname "$TOMBOLO_DATA")/e2e-XXXXXX")
  (cd "$TOMBOLO_DATA" && cp -al agents engines images snapshots "$second" && mkdir "$second/keys" && cp -a keys/egress-ca* "$second/keys") &&
    TOMBOLO_DATA=$second "$TOMBOLO_BIN" template build >/dev/null
}

"$here/setup.sh"
case "${1:-}" in
world) world "${@:2}"; exit ;;
?*) arguments=("$@"); one_after_another python; exit ;;
esac

# The tests wait more than they compute: these three run side by side.
said=$(mktemp -d) second=
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$said" ${second:+"$second"}' EXIT
second_data || exit 1
world >"$said/world" 2>&1 &
world_pid=$!
(TOMBOLO_DATA=$second one_after_another js js-old python-old python-o-z) >"$said/others" 2>&1 &
others_pid=$!
step "the newest Python clients" eval '(one_after_another python-a-n)'
beside() { # PID OUTPUT: waits for what ran beside, and says what it printed
  wait "$1"
  local status=$?
  cat "$2"
  return $status
}
step "the rest of these, and the other clients" beside "$others_pid" "$said/others"
step "a world of their own" beside "$world_pid" "$said/world"
told && echo "all end-to-end tests passed"
