"""The mcp option of create: MCP servers in a sandbox behind the MCP gateway."""

import asyncio
import json
import os
import urllib.parse
from contextlib import asynccontextmanager

import e2b
import httpx
import httpx2
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from wait import eventually

SERVER = urllib.parse.urlparse(os.environ["E2B_API_URL"])

# A server of the test's own: it speaks MCP on its standard streams and uses
# nothing. Each tool shows something; `grow` adds one, `end` ends the process.
SERVER_PY = r'''
import json, os, sys
tools = ["end", "grow", "memory_tool", "read_graph", "who"]
print("a banner that is no message", flush=True)
def say(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    ask = json.loads(line)
    method, params = ask.get("method"), ask.get("params") or {}
    if "id" not in ask: continue
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "serverInfo": {"name": "own", "version": "1"},
                  "capabilities": {"tools": {"listChanged": True}}}
    elif method == "tools/list":
        result = {"tools": [{"name": t, "inputSchema": {"type": "object"}} for t in tools]}
    elif method == "tools/call":
        if params["name"] == "end": sys.exit("the end was asked for")
        if params["name"] == "grow":
            tools.append(f"grown{len(tools)}")
            say(method="notifications/tools/list_changed")
        token = (params.get("_meta") or {}).get("progressToken")
        if token is not None:
            say(method="notifications/progress", params={"progressToken": token, "progress": 1, "total": 2})
        text = {"pid": os.getpid(), "uid": os.getuid(), "home": os.environ["HOME"], "mine": os.environ.get("MINE"),
                "token": os.environ.get("GATEWAY_ACCESS_TOKEN"), "args": sys.argv[1:], "cwd": os.getcwd()}
        result = {"content": [{"type": "text", "text": json.dumps(text)}]}
    else:
        say(id=ask["id"], error={"code": -32601, "message": "no such method"})
        continue
    say(id=ask["id"], result=result)
'''


def own(*args, **env):
    """The configuration of SERVER_PY."""
    return {"command": ["python3", "-c", SERVER_PY, *args], "env": env}


def headers(box, token):
    return {"Host": f"50005-{box.sandbox_id}.localhost", "Authorization": f"Bearer {token}"}


@asynccontextmanager
async def session(box, **handlers):
    """A session of the official MCP client, through the edge."""
    async with httpx2.AsyncClient(headers=headers(box, box.get_mcp_token()), timeout=60) as client:
        async with streamable_http_client(f"http://{SERVER.netloc}/mcp", http_client=client) as streams:
            async with ClientSession(*streams[:2], **handlers) as opened:
                await opened.initialize()
                yield opened


def using(box, what, **handlers):
    async def run():
        async with session(box, **handlers) as opened:
            return await asyncio.wait_for(what(opened), 60)

    return asyncio.run(run())


async def names(opened):
    return {tool.name for tool in (await opened.list_tools()).tools}


async def call(opened, tool, arguments=None, **options):
    result = await opened.call_tool(tool, arguments or {}, **options)
    return result.is_error, result.content[0].text


@pytest.fixture(scope="module")
def many(request):
    """A sandbox with several servers, that the tests share."""
    sandbox = e2b.Sandbox.create(timeout=900, mcp={
        "filesystem": {"paths": ["/home/user"]}, "memory": {}, "time": {}, "everything": {},
        "mine": own("an argument", MINE="a value"),
    })
    request.addfinalizer(sandbox.kill)
    return sandbox


def test_the_tools_of_all_servers_are_there(many):
    async def look(opened):
        tools = await names(opened)
        assert {"get_current_time", "create_entities", "list_directory", "echo", "who"} <= tools
        assert await call(opened, "echo", {"message": "hello"}) == (False, "Echo: hello")
        failed, text = await call(opened, "get_current_time", {"timezone": "Etc/UTC"})
        assert not failed and json.loads(text)["timezone"] == "Etc/UTC"
        await call(opened, "write_file", {"path": "/home/user/note.txt", "content": "by a tool"})
        failed, text = await call(opened, "add", {"a": 1}) if "add" in tools else (True, "")
        assert failed

    using(many, look)
    assert many.files.read("/home/user/note.txt") == "by a tool"
    assert many.files.get_info("/home/user/note.txt").owner == "user"


def test_what_two_servers_call_by_one_name_has_theirs_before_it(many):
    async def look(opened):
        tools = await names(opened)
        assert {"mine_read_graph", "memory_read_graph"} <= tools and "read_graph" not in tools
        await call(opened, "create_entities", {"entities": [{"name": "Ada", "entityType": "person", "observations": []}]})
        assert "Ada" in (await call(opened, "memory_read_graph"))[1]
        assert "an argument" in (await call(opened, "mine_read_graph"))[1]

    using(many, look)


def test_prompts_and_resources_are_there(many):
    async def look(opened):
        prompts = {prompt.name for prompt in (await opened.list_prompts()).prompts}
        assert "simple-prompt" in prompts
        assert (await opened.get_prompt("simple-prompt")).messages
        resources = (await opened.list_resources()).resources
        assert resources
        assert (await opened.read_resource(resources[0].uri)).contents
        assert (await opened.list_resource_templates()).resource_templates

    using(many, look)


def test_a_server_runs_as_the_user_with_its_variables_and_without_the_token(many):
    _, text = using(many, lambda opened: call(opened, "who"))
    seen = json.loads(text)
    assert seen["args"] == ["an argument"] and seen["mine"] == "a value" and seen["token"] is None
    assert (seen["uid"], seen["home"], seen["cwd"]) == (1000, "/home/user", "/home/user")


def test_progress_is_passed_on(many):
    heard = []

    async def progress(done, total, message):
        heard.append((done, total))

    using(many, lambda opened: call(opened, "who", progress_callback=progress))
    assert heard == [(1.0, 2.0)]


def test_a_change_of_the_list_is_passed_on(many):
    async def look(opened):
        before = await names(opened)
        await call(opened, "grow")
        await asyncio.wait_for(changed.wait(), 20)
        more = await names(opened) - before
        assert len(more) == 1 and more.pop().startswith("grown")

    changed = asyncio.Event()

    async def hear(message):
        if "list_changed" in getattr(getattr(message, "root", message), "method", ""):
            changed.set()

    using(many, look, message_handler=hear)


def test_a_server_that_dies_comes_back(many):
    async def look(opened):
        before = json.loads((await call(opened, "who"))[1])["pid"]
        failed, text = await call(opened, "end")
        assert failed and '"mine"' in text and "ended during the call" in text
        failed, text = await call(opened, "who")  # waits for it
        assert not failed and json.loads(text)["pid"] != before
        assert (await call(opened, "echo", {"message": "still"}))[1] == "Echo: still"

    using(many, look)
    log = many.commands.run("cat /var/log/mcp-gateway/*.log", user="root").stdout
    assert "the end was asked for" in log and "a banner that is no message" in log and "server runs again" in log


@pytest.mark.parametrize("token", ["wrong", "x" * 5000, None])
def test_only_the_token_opens(many, token):
    sent = headers(many, token)
    if token is None:
        del sent["Authorization"]
    answer = httpx.post(f"http://{SERVER.netloc}/mcp", headers=sent, json={}, timeout=20)
    assert answer.status_code == 401 and "Authorization" in answer.text
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_another_client_reads_the_token(many):
    other = e2b.Sandbox.connect(many.sandbox_id)
    assert other.get_mcp_token() == many.get_mcp_token()
    assert other.get_mcp_url() == f"https://50005-{many.sandbox_id}.{other.sandbox_domain}/mcp"
    assert other.files.get_info("/etc/mcp-gateway/.token").mode & 0o777 == 0o600
    assert using(other, names)


def test_the_gateway_outlives_a_pause(many):
    many.pause()
    many.connect()
    assert using(many, lambda opened: call(opened, "echo", {"message": "on"})) == (False, "Echo: on")


@pytest.mark.parametrize("mcp, says", [
    ({"nothing": {}}, ["nothing", "not in the catalogue", "filesystem", '"command"']),
    ({"filesystem": {}}, ["filesystem", "paths is missing"]),
    ({"time": {"zone": "UTC"}}, ["time", "zone is not a key"]),
    ({"mine": {"command": ["/no/such/program"]}}, ["mine", "/no/such/program", "no such file"]),
    ({"mine": {"command": ["sh", "-c", "echo it is broken >&2; exit 3"]}}, ["mine", "it is broken", "exit status 3"]),
    ({"github/a/../b": {"run_cmd": "true"}}, ["github/a/../b", "OWNER/REPO"]),
])
def test_a_mistake_is_told(mcp, says):
    before = {listed.sandbox_id for listed in e2b.Sandbox.list().next_items()}
    with pytest.raises(e2b.SandboxException) as failed:
        e2b.Sandbox.create(mcp=mcp, timeout=60)
    for part in ["Failed to start MCP gateway", *says]:
        assert part in str(failed.value)
    assert {listed.sandbox_id for listed in e2b.Sandbox.list().next_items()} <= before


def test_a_server_from_a_repository(new_box):
    """From a repository on this disk that git takes for GitHub's."""
    sandbox = new_box("mcp-gateway", timeout=300)
    sandbox.files.write("/home/user/made/server.py", SERVER_PY)
    sandbox.commands.run("cd made && git init -q && git add . && git -c user.name=a -c user.email=a@b commit -qm x && "
                         "git config --global url.file:///home/user/made.insteadOf https://github.com/some/repo.git")
    config = {"github/some/repo": {"run_cmd": "python3 server.py $(cat built)", "install_cmd": "echo $HOW > built",
                                   "envs": {"HOW": "installed", "MINE": "x"}}}
    sandbox.files.write("/tmp/config.json", json.dumps(config))
    sandbox.commands.run('mcp-gateway --config "$(cat /tmp/config.json)"', user="root")
    seen = json.loads(using(sandbox, lambda opened: call(opened, "who"))[1])
    assert seen["args"] == ["installed"] and seen["mine"] == "x" and seen["cwd"] == "/opt/mcp/github/some/repo"


def test_one_gateway_at_a_time_and_a_clean_end(many, new_box):
    sandbox = new_box("mcp-gateway", timeout=300)
    start = f"mcp-gateway --config '{json.dumps({'time': {}})}'"
    sandbox.commands.run(start, user="root")
    with pytest.raises(e2b.CommandExitException, match="port 50005 is in use"):
        sandbox.commands.run(start, user="root")
    sandbox.commands.run("pkill mcp-gateway", user="root")
    eventually(lambda: "mcp" not in sandbox.commands.run("ps -eo comm,args | grep -v ps").stdout, 20, "all has ended")
    sandbox.commands.run(start, user="root")  # with a token of its own
    assert "get_current_time" in using(sandbox, names)


def test_pull_and_list(many):
    assert "is there" in many.commands.run("mcp-gateway pull time filesystem", user="root").stdout
    with pytest.raises(e2b.CommandExitException, match="not in the catalogue"):
        many.commands.run("mcp-gateway pull time nothing", user="root")
    catalogue = many.commands.run("mcp-gateway list").stdout
    assert "mcp-server-time" in catalogue and len(catalogue.splitlines()) > 25
