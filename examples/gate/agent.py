"""An agent's work that needs what it was not given: a host that no rule allows, and a
token that code in its sandbox must not have.

Its request is held until a person approves it, and leaves with the token in place of
the placeholder. Nothing here knows of that: it waits as for a slow server.
"""

import os
import sys

from e2b import CommandExitException, Sandbox, Secret

url = os.environ.get("AGENT_URL", "https://api.github.com/user")

with Sandbox.create(timeout=900, envs={"TOKEN": Secret.fill("agent-token"), "URL": url}) as sandbox:
    print("sandbox", sandbox.sandbox_id, flush=True)
    print("token inside:", sandbox.commands.run("echo $TOKEN").stdout.strip(), flush=True)

    work = 'curl -sS --fail-with-body -H "Authorization: Bearer $TOKEN" "$URL"'
    try:
        print(sandbox.commands.run(work, timeout=600).stdout)
    except CommandExitException as refused:  # the answer says by which rule, and why
        sys.exit(refused.stdout or refused.stderr)
