#!/usr/bin/env bash
# Starts a server on a free port, runs the quickstart with both official
# clients, and stops the server.
set -euo pipefail

binary=$1 data=$2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

ready=$(mktemp -u)
mkfifo "$ready"
"$binary" serve --listen 127.0.0.1:0 --on-stop end --data "$data" >"$ready" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$ready"' EXIT
exec 3<"$ready"
if ! IFS= read -r -t 60 -u 3 line; then
  echo "the server did not start" >&2
  exit 1
fi
echo "$line"
eval "$("$binary" env --data "$data")"

echo "--- examples/quickstart.py"
"$root/.tombolo/clients/python/bin/python" "$root/examples/quickstart.py"
echo "--- examples/quickstart.mjs"
(cd "$root/test/e2e/js" && node --input-type=module - <"$root/examples/quickstart.mjs")

kill -TERM "$server"
wait "$server"
trap - EXIT
rm -f "$ready"
echo "--- stopped"
