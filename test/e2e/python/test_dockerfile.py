"""Templates built from Dockerfiles and images by the command line, and pruning."""

import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tarfile
import time
import uuid

import pytest
from e2b import PtySize, Sandbox

from cli import as_json, tombolo


@pytest.fixture
def name():
    """A name for a template, which is deleted when the test ends."""
    name = "dockerfile-" + uuid.uuid4().hex[:12]
    yield name
    tombolo("template", "delete", name)


@pytest.fixture
def context(tmp_path):
    """Makes a folder of files by their paths and contents."""

    def make(files):
        for path, content in files.items():
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)
        return tmp_path

    return make


def build(folder, name, dockerfile, *flags, timeout=300):
    """Builds a Dockerfile and returns the finished process and what it told."""
    (folder / "Dockerfile").write_text(dockerfile)
    run = tombolo("template", "build", "-f", str(folder / "Dockerfile"), "--name", name, *flags, str(folder), timeout=timeout)
    return run, run.stderr.decode()


def built(folder, name, dockerfile, *flags):
    run, log = build(folder, name, dockerfile, *flags)
    assert run.returncode == 0, log
    return log


def inside(name, script):
    """What a script prints in a sandbox of the template."""
    run = tombolo("run", "-t", name, "--", "sh", "-ec", script)
    assert run.returncode == 0, run.stderr
    return run.stdout.decode()


def sandboxes():
    return sorted(os.listdir(pathlib.Path(os.environ["TOMBOLO_DATA"]) / "sandboxes"))


def test_a_dockerfile_with_stages(context, name):
    folder = context({"app/main.py": "print('hello')", "app/notes.log": "x", ".dockerignore": "**/*.log\n"})
    built(folder, name, """
ARG BASE=template:base
FROM $BASE AS build
USER root
WORKDIR /src
COPY app/ ./app/
RUN <<EOF
mkdir out
cp app/main.py out/
chown -R user out
ln -s main.py out/link
EOF
FROM template:base AS unused
RUN exit 1
FROM template:base
ARG GREETING
ENV GREETING="$GREETING there" TOOLS=/opt/tools
ENV PATH=$TOOLS:$PATH
COPY --from=build /src/out /opt/out/
COPY --chown=user:user --chmod=0750 . /srv/all
COPY <<E /etc/greeting
$GREETING
E
USER root
RUN ["sh", "-c", "mkdir -p $TOOLS && printf '#!/bin/sh\\\\necho tool' > $TOOLS/mytool && chmod +x $TOOLS/mytool"]
USER user
WORKDIR /srv
WORKDIR all
CMD ["sh", "-c", "echo started > /tmp/started; exec sleep infinity"]
HEALTHCHECK CMD test -f /tmp/started
""", "--build-arg", "GREETING=it's", "--memory", "512MiB", "--cpus", "1")
    with Sandbox.create(name) as sandbox:
        def run(command):
            return sandbox.commands.run(command).stdout

        assert run("cat /etc/greeting; echo $GREETING; pwd; id -un; mytool") == "it's there\nit's there\n/srv/all\nuser\ntool\n"
        assert run("stat -c '%n %U %a' /opt/out/main.py; readlink /opt/out/link") == "/opt/out/main.py user 644\nmain.py\n"
        assert run("find . | sort; stat -c '%U:%G %a' app/main.py") == \
            ".\n./.dockerignore\n./Dockerfile\n./app\n./app/main.py\nuser:user 750\n"
        assert run("cat /tmp/started; pgrep -c sleep") == "started\n1\n"
        assert sandbox.get_info().cpu_count == 1


def test_copies_are_those_of_docker(context, name):
    folder = context({"a.txt": "a", "b.txt": "b", "dir/f": "f", "dir/sub/g": "g", "one": "1", "tool": "#!/bin/sh"})
    (folder / "dir" / "link").symlink_to("f")
    (folder / "alias").symlink_to("one")
    (folder / "tool").chmod(0o4755)
    with tarfile.open(folder / "files.tar.gz", "w:gz") as archive:
        archive.add(folder / "dir", "packed")
    built(folder, name, """
FROM template:base
USER root
RUN mkdir -p /there /real/kept && ln -s /real /linked
WORKDIR /w
COPY one renamed
COPY one into/
COPY one /there
COPY dir new
COPY dir/ /linked
COPY *.txt one /several/
COPY alias /alias
COPY tool /tool
ADD files.tar.gz /unpacked
COPY files.tar.gz /packed.tar.gz
USER user
""")
    assert inside(name, "cd /w && find . -type f | sort && cat renamed into/one") == "./into/one\n./new/f\n./new/sub/g\n./renamed\n11"
    assert inside(name, "ls /there /several; cat /alias; readlink /w/new/link /linked") == \
        "/several:\na.txt\nb.txt\none\n\n/there:\none\n1f\n/real\n"
    assert inside(name, "ls /real /unpacked/packed; stat -c '%a %U' /tool; head -c 2 /packed.tar.gz | od -An -tx1") == \
        "/real:\nf\nkept\nlink\nsub\n\n/unpacked/packed:\nf\nlink\nsub\n4755 root\n 1f 8b\n"


def test_layers_are_used_again_until_a_file_changes(context, name):
    folder = context({"one": name, "two": "2"})  # no layer of another run fits
    text = "FROM template:base\nCOPY one /tmp/one\nRUN date +%N > /tmp/stamp\nCOPY two /tmp/two\n"
    built(folder, name, text)
    first = inside(name, "cat /tmp/stamp")
    os.utime(folder / "one")  # a time alone changes nothing
    assert "CACHED [builder 2/3]: RUN date" in built(folder, name, text)
    (folder / "two").write_text("3")
    built(folder, name, text)
    assert inside(name, "cat /tmp/stamp /tmp/two") == first + "3"
    built(folder, name, text, "--no-cache")
    assert inside(name, "cat /tmp/stamp") != first


def test_many_copies_of_other_stages_and_templates_share_their_sandboxes(context, name):
    stages = "".join(f"FROM template:base AS s{i}\nUSER root\nRUN echo {i} > /made\n" for i in range(6))
    copies = "".join(f"COPY --from=s{i % 6} /made /copy{i}\nCOPY --from=template:base /etc/passwd /passwd{i}\n" for i in range(12))
    log = built(context({}), name, stages + "FROM template:base\n" + copies)
    assert log.count("FROM template base") == 8, log  # six stages, the last, and what is copied from
    assert inside(name, "cat /copy*; ls /passwd* | wc -l").split() == ["0", "1", "4", "5", "2", "3", "4", "5", "0", "1", "2", "3", "12"]


def test_bind_mounts_are_there_for_the_command_alone(context, name):
    folder = context({"src/a": "a", "src/.hidden": "h", "conf": "c"})
    built(folder, name, """
FROM template:base AS made
RUN echo made > /tmp/made
FROM template:base
WORKDIR /home/user/work
RUN --mount=target=.,source=src --mount=type=bind,source=conf,target=/etc/conf --mount=type=bind,from=made,source=/tmp/made,target=sub/made \\
    ls -A . sub > /tmp/seen && cat a /etc/conf sub/made >> /tmp/seen
""")
    assert inside(name, "cat /tmp/seen; ls -A /home/user/work; ls /etc/conf 2>&1 | cat") == \
        ".:\n.hidden\na\nsub\n\nsub:\nmade\nacmade\nls: cannot access '/etc/conf': No such file or directory\n"


@pytest.mark.parametrize("text, want", [
    ("FROM template:base\n\nCOPY none /\n", 'Dockerfile, line 3: "none": the context has no such file'),
    ("FROM template:base\nRUN --mount=type=secret,id=x true", "Dockerfile, line 2: --mount=type=secret is not there"),
    ("FROM scratch", "Dockerfile, line 1: FROM scratch"),
    ("FROM template:no-such", "template 'no-such' not found"),
    ("FROM template:base\nRUN echo seen; exit 3", "step 1 of the build, RUN echo seen; exit 3: failed to run command"),
    ("FROM template:base\nCOPY --chown=nobody-here Dockerfile /x", "invalid username: 'nobody-here'"),
    ("FROM template:base\nCMD exit 7", "start command \"exit 7\""),
    ("FROM 127.0.0.1:1/some/image", "127.0.0.1:1 must not be connected to"),
])
def test_failures_say_which_line_or_step(context, name, text, want):
    run, log = build(context({}), name, text)
    assert run.returncode == 1
    assert want in log.splitlines()[-1] or want in log.split("tombolo: ")[-1]
    assert not [t for t in as_json("template", "list") if t.get("name") == name]


def test_an_interrupt_leaves_nothing(context, name):
    folder = context({"Dockerfile": "FROM template:base\nRUN echo begun; sleep 300\n"})
    before = sandboxes()
    run = subprocess.Popen(
        [os.environ["TOMBOLO_BIN"], "template", "build", "-f", str(folder / "Dockerfile"), "--name", name, str(folder)],
        stderr=subprocess.PIPE, text=True,
    )
    seen = []
    for line in run.stderr:
        seen.append(line)
        if "[stdout]: begun" in line:
            run.send_signal(signal.SIGINT)
    assert run.wait(timeout=60) == 1, seen
    assert "it was cancelled" in seen[-1]
    assert sandboxes() == before
    assert not [t for t in as_json("template", "list") if t.get("name") == name]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A docker-archive of an image with a plain shell, a few programs and no more:
    no bash, no accounts, no packages."""
    root = tmp_path_factory.mktemp("image")
    files = {f"bin/{program}": os.path.realpath(shutil.which(program)) for program in ("cat", "ls", "id", "sleep", "grep", "env")}
    files["bin/sh"] = os.path.realpath(shutil.which("dash"))
    for program in list(files.values()):
        for library in re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", program], capture_output=True, text=True).stdout):
            files[library.lstrip("/")] = os.path.realpath(library)

    def add(tar, path, content):
        info = tarfile.TarInfo(path)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))

    layer = root / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        for path, file in sorted(files.items()):
            tar.add(file, path)
        add(tar, "srv/from-image", b"image\n")
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    config = {
        "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "config": {"Env": ["PATH=/usr/bin:/bin", "FROM_IMAGE=yes"], "WorkingDir": "/srv"},
    }
    path = root / "image.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(layer, "layer.tar")
        add(tar, "config.json", json.dumps(config).encode())
        add(tar, "manifest.json", json.dumps([{"Config": "config.json", "RepoTags": ["tiny:1"], "Layers": ["layer.tar"]}]).encode())
    return path


def test_an_image_without_bash_becomes_a_template(archive, name):
    run = tombolo("template", "build", "--archive", str(archive), "--name", name, timeout=300)
    assert run.returncode == 0, run.stderr
    with Sandbox.create(name) as sandbox:
        def run(command):
            return sandbox.commands.run(command).stdout

        assert run("id -un; echo $FROM_IMAGE; cat /srv/from-image; echo ~") == "user\nyes\nimage\n/home/user\n"
        # The ready commands of E2B's clients work.
        sandbox.commands.run("sleep 1000", background=True)
        assert run("pgrep sleep > /dev/null && echo there") == "there\n"
        assert run('[ -n "$(ss -Htuln sport = :49983)" ] && echo open') == "open\n"
        assert run('curl -s -o /dev/null -w "%{http_code}" http://localhost:49983/health') == "204"
        sandbox.files.write("/home/user/x", "text")
        assert run("cat x") == "text"
        terminal = sandbox.pty.create(PtySize(rows=20, cols=80))
        sandbox.pty.send_stdin(terminal.pid, b"echo $((6 * 7)); exit\n")
        seen = []
        terminal.wait(on_pty=seen.append)
        assert b"42" in b"".join(seen)


def test_a_template_of_an_archive_begins_a_dockerfile(context, archive, name):
    other = name + "-from"
    try:
        run = tombolo("template", "build", "--archive", str(archive), "--name", other, timeout=300)
        assert run.returncode == 0, run.stderr
        built(context({}), name, f"FROM template:{other}\nUSER root\nRUN id -un > /made; env > /variables\nUSER user\n")
        assert inside(name, "cat /made /srv/from-image; grep FROM_IMAGE /variables") == "root\nimage\nFROM_IMAGE=yes\n"
    finally:
        tombolo("template", "delete", other)


def test_prune_removes_what_nothing_needs(context, name):
    data = pathlib.Path(os.environ["TOMBOLO_DATA"])
    built(context({}), name, f"FROM template:base\nRUN echo {name} > /tmp/x\n")
    row = next(t for t in as_json("template", "list") if t.get("name") == name)
    assert row["ownBytes"] > 0
    image, snapshot = data / "images" / (row.get("upper") or row["image"]), data / "snapshots" / row["snapshot"]
    agent = data / "agents" / ("0" * 32)
    agent.mkdir()
    (agent / "agent").write_text("old")
    long_ago = time.time() - 7200

    kept = {u["name"] for u in as_json("prune", "--dry-run")}
    assert agent.name in kept and image.name not in kept and snapshot.name not in kept

    with Sandbox.create(name) as sandbox:
        assert tombolo("template", "delete", name).returncode == 0
        os.utime(image, (long_ago, long_ago))
        assert image.name not in {u["name"] for u in as_json("prune")}
        assert sandbox.commands.run("cat /tmp/x").stdout == name + "\n"
    if snapshot.exists():
        os.utime(snapshot, (long_ago, long_ago))
    would = {u["name"]: u for u in as_json("prune", "--dry-run")}
    assert would[image.name]["kind"] == "image" and would[image.name]["bytes"] > 0
    assert image.exists()
    assert image.name in {u["name"] for u in as_json("prune")}
    assert not image.exists() and not agent.exists() and not snapshot.exists()
    with Sandbox.create("base") as sandbox:
        assert sandbox.commands.run("echo $((6 * 7))").stdout == "42\n"
