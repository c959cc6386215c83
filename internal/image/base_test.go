package image

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// TestBaseIsWhatSandboxesCountOn runs commands in the tree of base, as one that
// is made from it would.
func TestBaseIsWhatSandboxesCountOn(t *testing.T) {
	tree := recipes(nil)
	text := "name: checks\nfrom: base\nrun:\n"
	for _, check := range baseChecks {
		text += fmt.Sprintf("  - %q\n", "# "+check.what+"\n"+check.command)
	}
	tree["checks/template.yaml"] = &fstest.MapFile{Data: []byte(text)}
	_, err := shared(t).Build(t.Context(), recipe(t, tree, "base"))
	require.NoError(t, err)
	b := shared(t)
	image, err := b.Build(t.Context(), recipe(t, tree, "checks"))
	require.NoError(t, err)
	others, err := filepath.Glob(filepath.Join(b.Dir, "checks-*.erofs"))
	require.NoError(t, err)
	for _, other := range others {
		if other != image.Path {
			require.NoError(t, os.Remove(other))
		}
	}
}

// asUser is how the agent starts a command of a client, nearly.
const asUser = "cd /home/user && setpriv --reuid=user --regid=user --init-groups env -i HOME=/home/user USER=user PATH=/usr/local/bin:/usr/bin:/bin "

var baseChecks = []struct{ what, command string }{
	{"user has the ids that clients expect", `[ "$(id -u user):$(id -g user)" = 1000:1000 ]
		[ "$(getent passwd user | cut -d: -f6,7)" = /home/user:/bin/bash ]
		[ "$(stat -c %U:%G /home/user /home/user/.profile | sort -u)" = user:user ]`},
	{"sudo needs no password", asUser + `sudo -n id -u | grep -qx 0`},
	{"sudo is setuid", `[ "$(stat -c %a /usr/bin/sudo)" = 4755 ] && [ "$(stat -c %a /etc/sudoers.d/user)" = 440 ]`},
	{"a login shell forks nothing", `
		before=$(sh -c 'echo $$'); /bin/true; after=$(sh -c 'echo $$'); alone=$((after - before))
		for home in /root /home/user; do
			before=$(sh -c 'echo $$'); HOME=$home bash -l -c :; after=$(sh -c 'echo $$')
			[ $((after - before)) = "$alone" ]
		done`},
	{"a login shell needs no environment", `[ "$(env -i PATH= /bin/bash -l -c 'echo ok')" = ok ]
		[ "$(env -i PATH= /bin/bash -l -c 'command -v ls')" = /usr/bin/ls ]`},
	{"a login shell keeps the PATH it is given", asUser + `PATH=/opt/x:/usr/bin HOME=/home/user bash -l -c 'echo $PATH' |
		grep -qx /home/user/.local/bin:/opt/x:/usr/bin`},
	{"the locale is one file", `[ "$(LANG=C.UTF-8 locale charmap)" = UTF-8 ] && mv /usr/lib/locale/C.utf8 /usr/lib/locale/away
		[ "$(LANG=C.UTF-8 locale charmap 2>/dev/null)" = UTF-8 ] && mv /usr/lib/locale/away /usr/lib/locale/C.utf8`},
	{"an interactive shell has completions", asUser + `bash -i -c 'complete -p | grep -q _comp' 2>/dev/null`},
	{"an interactive shell has a prompt", asUser + `bash -i -c 'echo "$PS1"' 2>/dev/null | grep -q '\\u@\\h'`},
	{"what clients call is there", `for program in bash bzip2 cc curl file g++ gcc git gpg ip jq less lsof make nano nc \
		node npm npx pgrep pip pip3 pkill ps python python3 rsync ss ssh sudo tar top tree unzip vi wget xz zip zstd; do
			command -v "$program" >/dev/null || { echo "no $program"; exit 1; }
		done`},
	{"versions", `python3 -c 'import sys; assert sys.version_info[:2] == (3, 13)'
		[ "$(node -p 'process.versions.node.split(".")[0]')" = 20 ]`},
	{"pip installs for root and for user", `pip install -q --no-deps tabulate && python3 -c 'import tabulate'
		pip uninstall -q -y tabulate
		` + asUser + `pip install -q --no-deps tabulate
		` + asUser + `python3 -c 'import tabulate; assert tabulate.__file__.startswith("/usr/local")'
		` + asUser + `pip uninstall -q -y tabulate`},
	{"user may replace what root installed", `pip install -q --no-deps tabulate && ` + asUser + `pip uninstall -q -y tabulate`},
	{"a virtual environment works", asUser + `sh -c 'python3 -m venv /tmp/venv && /tmp/venv/bin/pip --version'`},
	{"npm installs for user without sudo", asUser + `npm install --global --silent is-odd
		[ -d /home/user/.local/lib/node_modules/is-odd ]`},
	{"npm asks for nothing but packages", `[ "$(npm config get audit):$(npm config get fund):$(npm config get update-notifier)" = false:false:false ]`},
	{"npm installs in a folder", asUser + `sh -c 'mkdir /tmp/p && cd /tmp/p && npm install --silent is-number && node -e "require(\"is-number\")"'
		` + asUser + `npx --version`},
	{"apt installs", `apt-get -qq update && apt-get -qq -y install hello >/dev/null && hello | grep -q Hello`},
	{"a compiler works", `cd /tmp && echo 'int main(void){return 0;}' >a.c && gcc a.c && ./a.out`},
	{"Python headers", `[ -f /usr/include/python3.13/Python.h ]`},
	{"byte code is fresh", `[ -z "$(python3 -v -c 'import json, asyncio, pip' 2>&1 | grep -E "^# (wrote|code object from .*[.]py'?$)")" ]`},
	{"the clock is UTC", `[ "$(date +%Z)" = UTC ]`},
	{"names resolve", `grep -q '^hosts:.*files.*dns' /etc/nsswitch.conf && getent hosts localhost >/dev/null`},
	{"no traces of this machine", `[ ! -s /etc/machine-id ] && [ "$(cat /etc/hostname)" = sandbox ]
		umount /etc/resolv.conf && [ "$(cat /etc/resolv.conf)" = "$(printf 'nameserver 10.0.0.1\noptions no-aaaa')" ]
		mount --bind /run/build-resolv.conf /etc/resolv.conf`},
}
