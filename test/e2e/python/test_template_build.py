"""Templates built by the official client: steps, files, layers, names, failures."""

import concurrent.futures
import io
import os
import pathlib
import re
import subprocess
import tarfile
import time
import uuid

import e2b
import httpx
import pytest
from e2b import BuildException, Sandbox, Template, wait_for_file, wait_for_port, wait_for_process, wait_for_url

from cli import as_json, tombolo
from server import disk_usage
from wait import eventually

API = os.environ["E2B_API_URL"]
KEY = {"X-API-KEY": os.environ["E2B_API_KEY"]}
DATA = pathlib.Path(os.environ["TOMBOLO_DATA"])


@pytest.fixture
def name(request):
    """A name for a template, which is deleted when the test ends."""
    name = "built-" + uuid.uuid4().hex[:12]
    request.addfinalizer(lambda: httpx.delete(f"{API}/templates/{name}", headers=KEY))
    return name


@pytest.fixture
def build(name):
    """Builds a template and returns what the build logged."""

    def run(template, as_name=None, **options):
        logged = []
        Template.build(template, as_name or name, on_build_logs=lambda e: logged.append(e.message), **options)
        return logged

    return run


@pytest.fixture
def start(request):
    def create(name, **options):
        sandbox = Sandbox.create(name, **options)
        request.addfinalizer(sandbox.kill)
        return sandbox

    return create


def base(**options):
    return Template(**options).from_template("base")


def failure(template, name, **options):
    with pytest.raises(BuildException) as raised:
        Template.build(template, name, **options)
    return str(raised.value)


# Steps

def test_steps_shape_the_sandboxes(build, start, name):
    template = (
        base()
        .set_envs({"GREETING": "hello", "TWICE": "$GREETING ${GREETING}", "PRICE": "$5"})
        .set_workdir("/home/user/app")
        .run_cmd("echo $TWICE > made; pwd >> made; id -un >> made")
        .run_cmd(["cd /tmp", "touch as-root"], user="root")
        .set_user("root")
        .set_workdir("sub")
        .run_cmd("id -un > ../who")
        .set_user("user")
    )
    build(template)
    sandbox = start(name)
    assert sandbox.files.read("/home/user/app/made") == "hello hello\n/home/user/app\nuser\n"
    assert sandbox.files.read("/home/user/app/who") == "root\n"
    assert sandbox.commands.run("pwd; echo $GREETING $PRICE; stat -c %U /tmp/as-root").stdout == "/home/user/app/sub\nhello $5\nroot\n"


def test_a_path_that_is_set_is_that_of_commands(build, start, name):
    build(base().run_cmd("mkdir bin && printf '#!/bin/sh\\necho found' > bin/mytool && chmod +x bin/mytool").set_envs({"PATH": "/home/user/bin:$PATH"}).run_cmd("mytool > said"))
    sandbox = start(name)
    assert sandbox.commands.run("cat said; mytool").stdout == "found\nfound\n"


def test_the_helpers_of_the_client_work(build, start, name):
    template = (
        base()
        .make_dir("/home/user/one/two", mode=0o700)
        .run_cmd("echo x > one/two/file")
        .rename("/home/user/one/two/file", "/home/user/renamed")
        .make_symlink("/home/user/renamed", "/home/user/link")
        .remove("/home/user/one", recursive=True)
        .pip_install("cowsay==6.1")
        .apt_install("cowsay")
        .npm_install("is-number@7.0.0", g=True)
    )
    build(template)
    sandbox = start(name)
    shown = sandbox.commands.run("readlink link; cat link; ls; python3 -c 'import cowsay; print(cowsay.__version__)'; ls /usr/games/cowsay").stdout
    shown += sandbox.commands.run("npm ls -g is-number", user="root").stdout
    for part in ("/home/user/renamed\nx\n", "link\nrenamed\n", "6.1", "/usr/games/cowsay", "is-number@7.0.0"):
        assert part in shown


# Files

@pytest.fixture
def context(tmp_path):
    """A folder with files to copy."""
    (tmp_path / "app" / "sub").mkdir(parents=True)
    (tmp_path / "app" / "main.py").write_text("print('main')\n")
    (tmp_path / "app" / "sub" / "data.txt").write_text("data\n")
    (tmp_path / "app" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "app" / "run.sh").chmod(0o755)
    (tmp_path / "app" / "link").symlink_to("main.py")
    (tmp_path / "notes.txt").write_text(f"notes {uuid.uuid4()}\n")
    (tmp_path / "other.txt").write_text("other\n")
    (tmp_path / ".dockerignore").write_text("**/*.secret\n")
    (tmp_path / "app" / "key.secret").write_text("secret\n")
    return tmp_path


def test_copies_follow_docker(build, start, name, context):
    template = (
        base(file_context_path=context)
        .copy("notes.txt", "/srv/one/renamed.txt", user="root", mode=0o640)
        .copy("notes.txt", "/srv/two/")
        .copy("app", "/srv/app")
        .copy("app", "/srv/app")  # into what is there
        .copy("*.txt", "/srv/many/")
        .copy("app/sub", "relative")
        .copy("app/link", "/srv/link")
        .copy(["notes.txt", "other.txt"], "/srv/list/")
        .run_cmd("mkdir -p /tmp/real && ln -s /tmp/real /tmp/door")
        .copy("notes.txt", "/tmp/door/")
    )
    build(template)
    sandbox = start(name)
    listed = sandbox.commands.run("cd /srv; find . /home/user/relative /tmp/real -type f -printf '%p %m %u %g\\n' -o -type l -printf '%p -> %l\\n' | sort", user="root").stdout
    assert sorted(listed.splitlines()) == sorted([
        "./one/renamed.txt 640 root root",
        "./two/notes.txt 644 user user",
        "./app/main.py 644 user user",
        "./app/run.sh 755 user user",
        "./app/sub/data.txt 644 user user",
        "./app/link -> main.py",
        "./many/notes.txt 644 user user",
        "./many/other.txt 644 user user",
        "/home/user/relative/data.txt 644 user user",
        "./link -> main.py",
        "./list/notes.txt 644 user user",
        "./list/other.txt 644 user user",
        "/tmp/real/notes.txt 644 user user",
    ])


def test_a_copy_that_cannot_be_made_says_why(name, context):
    message = failure(base(file_context_path=context).run_cmd("touch taken").copy("app", "taken"), name)
    assert "failed to copy 'app' to '/home/user/taken'" in message


def test_a_file_is_uploaded_once_by_its_content(build, name, context):
    template = base(file_context_path=context).copy("notes.txt", "/home/user/")
    assert "Uploaded 'notes.txt'" in build(template)
    assert "Skipping upload of 'notes.txt', already cached" in build(template)


# Layers

def test_equal_steps_are_taken_from_earlier_builds(build, start, name):
    marker = uuid.uuid4().hex
    first = base().run_cmd(f"echo {marker} > a; cat /proc/sys/kernel/random/uuid > made")
    build(first)
    made = start(name).files.read("made")
    logged = build(base().run_cmd(f"echo {marker} > a; cat /proc/sys/kernel/random/uuid > made").run_cmd("echo more > b"))
    assert any(line.startswith("CACHED [builder 1/2]: RUN echo " + marker) for line in logged)
    assert any(line.startswith("[builder 2/2]: RUN echo more") for line in logged)
    assert start(name).files.read("made") == made
    logged = build(first)
    assert [line for line in logged if line.startswith("[builder")] == []  # nothing was run


def test_forced_steps_are_run_again_with_all_after_them(build, start, name):
    def template():
        return base().run_cmd("cat /proc/sys/kernel/random/uuid > one").run_cmd("cat /proc/sys/kernel/random/uuid > two")

    def both():
        sandbox = start(name)
        return sandbox.files.read("one"), sandbox.files.read("two")

    build(template())
    one, two = both()
    forced = base().run_cmd("cat /proc/sys/kernel/random/uuid > one").skip_cache().run_cmd("cat /proc/sys/kernel/random/uuid > two")
    build(forced)
    one_forced, two_forced = both()
    assert one_forced == one and two_forced != two
    build(template(), skip_cache=True)
    anew = both()
    assert anew[0] != one and anew[1] != two_forced
    build(template())
    assert both() == anew  # what was built last is what is cached


def test_templates_of_one_image_with_other_variables_share_no_steps(build, start, name):
    below = name + "-below"
    try:
        for value in ("one", "two"):
            build(base().set_envs({"WHICH": value}), as_name=below)
            build(Template().from_template(below).run_cmd("echo $WHICH > which"))
            assert start(name).files.read("which") == f"{value}\n"
    finally:
        httpx.delete(f"{API}/templates/{below}", headers=KEY)


def test_files_of_another_key_under_the_same_hash_are_not_taken(build, start, name, context):
    """Clients choose the hash. Another key that knows what somebody will copy must
    not be able to put other files in its place."""
    def steps():
        return Template(file_context_path=str(context)).from_template("base").copy("notes.txt", "notes.txt")

    made = as_json("key", "create", f"poisoner-{uuid.uuid4().hex[:8]}")
    poisoner = {"api_key": made["key"], "api_url": API}
    theirs = name + "-theirs"
    right = (context / "notes.txt").read_text()
    try:
        Template.build(steps(), theirs, **poisoner)  # uploads, as a friend would
        [owner] = [folder for folder in (DATA / "builds" / "uploads").iterdir() if made["id"] in folder.name]
        [upload] = list(owner.iterdir())
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            info = tarfile.TarInfo("notes.txt")
            info.size = len(b"poison")
            tar.addfile(info, io.BytesIO(b"poison"))
        link = httpx.get(f"{API}/templates/any/files/{upload.name}", headers={"X-API-KEY": made["key"]}).json()["url"]
        assert httpx.put(link, content=archive.getvalue()).status_code == 200
        Template.build(steps(), theirs, skip_cache=True, **poisoner)
        build(steps())
        assert start(name).files.read("notes.txt") == right
    finally:
        httpx.delete(f"{API}/templates/{theirs}", headers={"X-API-KEY": made["key"]})
        tombolo("key", "delete", made["id"])


# Start and ready

def test_a_start_command_runs_already_in_every_sandbox(build, start, name):
    template = base().run_cmd("echo served > index.html").set_start_cmd("python3 -u -m http.server 8123", wait_for_port(8123))
    logged = build(template)
    assert any("Serving HTTP" in line for line in logged)
    sandbox = start(name)
    assert sandbox.commands.run("curl -s localhost:8123/index.html").stdout == "served\n"
    # A template made from it starts the same.
    child = name + "-child"
    try:
        build(Template().from_template(name).run_cmd("echo again > index.html"), as_name=child)
        assert start(child).commands.run("curl -s localhost:8123/index.html").stdout == "again\n"
    finally:
        httpx.delete(f"{API}/templates/{child}", headers=KEY)


@pytest.mark.parametrize("ready", [wait_for_file("/tmp/ready"), wait_for_process("tail"), wait_for_url("http://localhost:8124/", 200)], ids=["file", "process", "url"])
def test_ready_commands_of_the_client_are_awaited(build, start, name, ready):
    build(base().set_start_cmd("touch /tmp/ready; tail -f /dev/null & exec python3 -m http.server 8124", ready))
    start(name).commands.run("ls /tmp/ready && pgrep tail && pgrep -f http.server")


def test_a_start_command_that_fails_fails_the_build(name):
    message = failure(base().set_start_cmd("echo cannot start >&2; exit 3", wait_for_port(1)), name)
    assert "start command" in message and "exit status 3" in message and "cannot start" in message


# Failures

def test_a_failed_command_is_named_with_its_output(name):
    template = base().run_cmd("echo fine").run_cmd("echo broken >&2; exit 7")
    with pytest.raises(BuildException) as raised:
        Template.build(template, name)
    assert "failed to run command 'echo broken >&2; exit 7'" in str(raised.value)
    assert "exit status 7" in str(raised.value) and "broken" in str(raised.value)
    # The client shows the line that made the step.
    shown = "".join(str(frame.line) for frame in __import__("traceback").extract_tb(raised.value.__traceback__))
    assert "run_cmd" in shown
    assert not Template.exists(name)


def test_an_unknown_user_is_the_failure_that_clients_know(name):
    message = failure(base().set_user("root123").run_cmd("whoami"), name)
    assert message.endswith("failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'")


def test_an_unknown_user_that_no_step_needs_fails_the_build_too(name):
    assert "the user \"root123\" of the template has no account in it" in failure(base().set_user("root123"), name)
    assert not Template.exists(name)


@pytest.fixture
def limited(request):
    """Makes a key with limits and returns its secret."""

    def make(*flags):
        made = as_json("key", "create", "builds-" + uuid.uuid4().hex[:8], *flags)
        request.addfinalizer(lambda: tombolo("key", "delete", made["id"]))
        return made["key"]

    return make


def test_a_template_beyond_the_limits_of_its_key_is_refused(name, limited):
    key = limited("--max-memory", "1GiB", "--max-cpus", "2")
    for options, words in [({"memory_mb": 2048}, "1024 MiB of memory"), ({"cpu_count": 4}, "2 processors")]:
        with pytest.raises(Exception, match=words):
            Template.build(base(), name, api_key=key, **options)
    assert not Template.exists(name)


def test_a_build_waits_for_room_within_the_limits_of_its_key(name, limited):
    key = limited("--max-sandboxes", "1")
    running = Sandbox.create("base", api_key=key, timeout=300)
    logged = []

    def said(entry):
        logged.append(entry.message)
        if "waiting: the key is at its limit" in entry.message:
            running.kill()

    Template.build(base().run_cmd("echo built > built"), name, api_key=key, memory_mb=1024, on_build_logs=said)
    assert any("limit of 1 sandboxes at once" in line for line in logged)
    with Sandbox.create(name, api_key=key, timeout=60) as sandbox:  # and has given its place back
        assert sandbox.files.read("built") == "built\n"
    Template.build(base(), name + ":2", api_key=key)
    httpx.delete(f"{API}/templates/{name}", headers={"X-API-KEY": key})


@pytest.mark.parametrize("taken", ["desktop", "mcp-gateway", "Code-Interpreter-v1:v2"])
def test_names_of_templates_that_come_with_tombolo_are_not_for_keys(taken):
    with pytest.raises(BuildException, match="is kept for the template that comes with Tombolo"):
        Template.build(base(), taken)
    with Sandbox.create("base", timeout=60) as sandbox:
        answer = httpx.post(f"{API}/sandboxes/{sandbox.sandbox_id}/snapshots", headers=KEY, json={"name": taken}, timeout=60)
    assert answer.status_code == 403


def test_a_template_deleted_on_the_machine_does_not_come_back(name):
    build = Template.build_in_background(base().run_cmd("sleep 5"), name)
    under_way = DATA / "builds" / "logs" / f"{build.build_id}.lock"
    eventually(under_way.exists, 60, "the build runs")
    assert tombolo("template", "delete", name).returncode == 0
    eventually(lambda: not under_way.exists(), 120, "the build has ended")
    assert not Template.exists(name)


def test_an_unknown_template_is_not_found(name):
    assert "template 'nobody-has-this' not found" in failure(Template().from_template("nobody-has-this"), name)


@pytest.mark.parametrize("options, words", [
    ({"cpu_count": 3}, "even"), ({"cpu_count": 33}, "32"), ({"memory_mb": 64}, "128"), ({"memory_mb": 513}, "even"),
])
def test_limits_are_told_before_anything_is_built(name, options, words):
    with pytest.raises(BuildException, match=words):
        Template.build(base(), name, **options)
    assert not Template.exists(name)


def test_sizes_are_those_asked_for(build, start, name):
    build(base(), cpu_count=1, memory_mb=256)
    info = start(name).get_info()
    assert (info.cpu_count, info.memory_mb) == (1, 256)


# Steps that misbehave

def test_daemons_that_a_step_leaves_do_not_hold_it_up(build, start, name):
    began = time.monotonic()
    build(base().run_cmd("sleep 3000 & setsid sleep 3000 & echo done > done").run_cmd("echo on > on"), skip_cache=True)
    assert time.monotonic() - began < 60
    assert start(name).commands.run("cat done on; pgrep sleep || echo none").stdout == "done\non\nnone\n"


def test_a_file_with_a_large_hole_does_not_hold_up_the_start(build, start, name):
    build(base().run_cmd(f"truncate -s 1G hole # {name}"))
    assert start(name).commands.run("stat -c %s hole").stdout == f"{1 << 30}\n"


@pytest.mark.parametrize("command, why", [
    ("python3 -c 'x = bytearray(3 << 30)'", "memory"),
    ("kill -9 1; kill -TERM 1; sleep 5", "sandbox ended"),
])
def test_what_ended_a_step_is_told(name, command, why):
    assert why in failure(base().run_cmd(command, user="root"), name)


@pytest.mark.parametrize("step", [
    "kill -9 -1; true",
    "rm -rf /home/user /tmp /etc/passwd; ln -s /proc /tmp; ln -s /etc /home/user",
    "fork() { fork | fork & }; fork; sleep 1",
    "chmod 000 /; chmod -R 000 /home",
])
def test_a_step_that_breaks_things_breaks_its_template_alone(name, step):
    try:
        Template.build(base().run_cmd(step, user="root"), name)
        with Sandbox.create(name):
            pass
    except (BuildException, e2b.SandboxException):
        pass
    with Sandbox.create() as sandbox:
        assert sandbox.commands.run("id -un").stdout == "user\n"


# Names and tags

def test_tags_point_at_builds(build, start, name):
    build(base().run_cmd("echo one > v"), as_name=f"{name}:v1")
    build(base().run_cmd("echo two > v"), tags=["v2", "stable"])
    assert start(f"{name}:v1").files.read("v") == "one\n"
    assert start(f"{name}:stable").files.read("v") == "two\n"
    Template.assign_tags(f"{name}:v1", ["stable", "default"])
    assert start(f"{name}:stable").files.read("v") == "one\n"
    assert start(name).files.read("v") == "one\n"
    assert {tag.tag for tag in Template.get_tags(name)} == {"v1", "v2", "stable", "default"}
    Template.remove_tags(name, ["v2"])
    with pytest.raises(e2b.SandboxException, match="not found"):
        Sandbox.create(f"{name}:v2")


def test_a_template_exists_once_it_is_built(build, name):
    assert not Template.exists(name)
    build(base())
    assert Template.exists(name)


# Builds side by side, given up, cut off

def test_builds_at_once_do_not_disturb_each_other(request):
    names = [f"side-{uuid.uuid4().hex[:8]}" for _ in range(4)]
    request.addfinalizer(lambda: [httpx.delete(f"{API}/templates/{n}", headers=KEY) for n in names])

    def one(name):
        Template.build(base().run_cmd("echo shared > shared").run_cmd(f"echo {name} > own"), name)
        with Sandbox.create(name) as sandbox:
            return sandbox.files.read("shared") + sandbox.files.read("own")

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, names)) == [f"shared\n{name}\n" for name in names]


def test_a_build_goes_on_in_the_background_and_tells_its_state(name):
    info = Template.build_in_background(base().run_cmd(f"for i in $(seq 250); do echo line $i; done # {name}"), name)
    status = eventually(lambda: (s := Template.get_build_status(info)).status.value in ("ready", "error") and s, 60, "the build ends")
    assert status.status.value == "ready"
    assert len(status.log_entries) == 100  # at most at a time
    seen, offset = [], 0
    while page := Template.get_build_status(info, logs_offset=offset).log_entries:
        seen += [entry.message for entry in page]
        offset += len(page)
    assert sum("[stdout]: line " in line for line in seen) == 250


def test_deleting_a_template_ends_its_builds(name):
    info = Template.build_in_background(base().run_cmd("sleep 600"), name)
    eventually(lambda: Template.get_build_status(info).status.value == "building", 30, "the build runs")
    assert httpx.delete(f"{API}/templates/{info.template_id}", headers=KEY).status_code == 204
    eventually(lambda: httpx.get(f"{API}/templates/{info.template_id}/builds/{info.build_id}/status", headers=KEY).status_code == 404, 30, "the build is gone")
    assert not Template.exists(name)


def test_a_server_that_is_killed_leaves_nothing_of_a_build(serve, data):
    server = serve()
    options = {key: value for key, value in server.client_options().items() if key != "sandbox_url"}
    before = {folder: set(os.listdir(data / folder)) for folder in ("images", "snapshots", "builds/layers")}
    # As an import leaves it that is killed.
    (data / "images" / "build" / "oci-cut-off").mkdir()
    info = Template.build_in_background(base().run_cmd("dd if=/dev/zero of=big bs=1M count=64; sleep 600"), "cut-off", **options)
    eventually(lambda: any("big" in e.message or "[stderr]" in e.message for e in Template.get_build_status(info, **options).log_entries), 60, "the step runs")
    server.kill()
    server = serve()
    options = {key: value for key, value in server.client_options().items() if key != "sandbox_url"}
    status = Template.get_build_status(info, **options)
    assert status.status.value == "error" and "stopped" in status.reason.message
    assert not Template.exists("cut-off", **options)
    assert {folder: set(os.listdir(data / folder)) for folder in before} == before
    assert [path for path in (data / "builds").rglob("partial-*")] == []
    assert [path for path in (data / "images" / "build").iterdir() if path.is_dir()] == []
    subprocess.run([os.environ["TOMBOLO_BIN"], "sandbox", "list", "--data", str(data)], check=True)
    assert os.listdir(data / "sandboxes") in ([], [".lock"])


# The wire

def test_uploads_need_a_link_that_was_signed():
    hash = uuid.uuid4().hex * 2
    link = httpx.get(f"{API}/templates/any/files/{hash}", headers=KEY)
    assert link.status_code == 201 and link.json()["present"] is False
    url = link.json()["url"]
    assert httpx.put(url.replace("signature=", "signature=0"), content=b"x").status_code == 403
    assert httpx.put(url.replace(hash, "cd" * 32), content=b"x").status_code == 403
    assert httpx.put(url, content=b"x").status_code == 200
    assert httpx.get(f"{API}/templates/any/files/{hash}", headers=KEY).json()["present"] is True
    assert httpx.get(f"{API}/templates/any/files/..%2f..%2fx", headers=KEY).status_code in (400, 404)


@pytest.mark.parametrize("plan, words", [
    ({}, "exactly one of"),
    ({"fromImage": "a", "fromTemplate": "b"}, "exactly one of"),
    ({"fromTemplate": "base", "steps": [{"type": "DANCE", "args": []}]}, "step 1"),
    ({"fromTemplate": "base", "steps": [{"type": "RUN", "args": []}]}, "RUN requires"),
    ({"fromTemplate": "base", "steps": [{"type": "COPY", "args": ["a", "b"]}]}, "filesHash"),
    ({"fromTemplate": "base", "steps": [{"type": "ENV", "args": ["a"]}]}, "pairs"),
    ({"fromTemplate": "base", "steps": [{"type": "RUN", "args": ["true"]}] * 2000}, "at most"),
    ({"fromImage": "x", "fromImageRegistry": {"type": "moon"}}, "registry, gcp or aws"),
])
def test_plans_that_make_no_sense_are_refused(name, plan, words):
    asked = httpx.post(f"{API}/v3/templates", headers=KEY, json={"name": name}).json()
    answer = httpx.post(f"{API}/v2/templates/{asked['templateID']}/builds/{asked['buildID']}", headers=KEY, json=plan)
    assert answer.status_code == 400 and words in answer.json()["message"]


def test_the_older_endpoints_take_the_same(name):
    asked = httpx.post(f"{API}/v2/templates", headers=KEY, json={"alias": name, "cpuCount": 1, "memoryMB": 512})
    assert asked.status_code == 202 and asked.json()["aliases"] == [name]
    asked = httpx.post(f"{API}/v3/templates", headers=KEY, json={"name": "Not A Name"})
    assert asked.status_code == 400
