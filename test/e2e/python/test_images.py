"""Templates from images in registries, built by the official client: what the
image says is so in sandboxes, and images that lie or attack do no harm."""

import tarfile
import uuid

import pytest
from e2b import BuildException, Sandbox, Template

from registry import MANIFEST, Registry, digest, layer, programs
from server import Server

LOGIN = "robot:s3cret:with/odd$chars"


@pytest.fixture(scope="module")
def registry():
    with Registry() as registry:
        yield registry


@pytest.fixture(scope="module")
def closed():
    """A registry that wants a login."""
    with Registry(LOGIN) as registry:
        yield registry


@pytest.fixture(scope="module")
def server(data, registry, closed):
    """A server that may use the two registries."""
    server = Server(data, "--private-registry", registry.host, "--private-registry", closed.host).start()
    yield server
    server.kill_sandboxes()
    server.stop()


@pytest.fixture(scope="module")
def tools():
    return programs("cat", "ls", "id", "env", "stat", "find", "sort", "head", "mkdir")


class Cloud:
    """The official client, for the server of this file."""

    def __init__(self, server, request):
        self.options, self.request = server.client_options(), request

    def build(self, image, *steps, **login):
        name = "image-" + uuid.uuid4().hex[:12]
        template = Template().from_image(image, **login)
        for step in steps:
            template = step(template)
        Template.build(template, name, **self.options)
        return name

    def start(self, name):
        sandbox = Sandbox.create(name, **self.options)
        self.request.addfinalizer(sandbox.kill)
        return sandbox

    def failure(self, image, **login):
        with pytest.raises(BuildException) as raised:
            self.build(image, **login)
        return str(raised.value)


@pytest.fixture
def cloud(server, request):
    return Cloud(server, request)


PASSWD = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/srv/app:/bin/sh\n"


def test_what_an_image_says_is_so_in_its_sandboxes(cloud, registry, tools):
    image = registry.push("team/app", [
        tools,
        layer(
            ("etc/passwd", PASSWD), ("etc/group", "root:x:0:\napp:x:1000:\n"),
            ("opt/tool/bin/hello", "#!/bin/sh\necho hello\n", {"mode": 0o755}),
            ("srv/app/own", "of app\n", {"uid": 1000, "gid": 1000}),
            ("srv/gone", "x"), ("srv/emptied/a", "x"), ("srv/emptied/sub/b", "x"), ("srv/both", "below"),
        ),
        layer(("srv/.wh.gone", ""), ("srv/emptied/.wh..wh..opq", ""), ("srv/emptied/new", "new\n"), ("srv/both", "above\n")),
    ], {
        "Env": ["PATH=/opt/tool/bin:/usr/bin:/bin", "GREETING=hi there"], "User": "app:app", "WorkingDir": "/srv/app",
        "Entrypoint": ["/bin/false"], "Cmd": ["x"],
    }, tag="v1.0")
    name = cloud.build(image, lambda t: t.run_cmd("hello > /home/user/said; id -un >> /home/user/said; echo $GREETING >> /home/user/said"))
    sandbox = cloud.start(name)

    def run(command, **options):
        return sandbox.commands.run(command, **options).stdout

    assert sandbox.files.read("said") == "hello\nuser\nhi there\n"
    assert run("hello; id -un; pwd; echo $GREETING") == "hello\nuser\n/home/user\nhi there\n"
    assert run("id -u", user="app") == "1000\n"
    assert run("id -u") == "1001\n", "the image's own account has the first number"
    assert run("cd /srv && find . | sort") == ".\n./app\n./app/own\n./both\n./emptied\n./emptied/new\n"
    assert run("cat /srv/both /srv/emptied/new; stat -c %U /srv/app/own") == "above\nnew\napp\n"
    assert run("head -n1 /etc/ssl/certs/ca-certificates.crt").startswith("-----BEGIN CERTIFICATE")
    sandbox.files.write("/home/user/x", "text")
    assert run("cat x; stat -c %U x") == "textuser\n"


def test_an_index_leads_to_the_image_for_this_machine(cloud, registry, tools):
    registry.push("here", [tools, layer(("which", "amd64\n"))])
    registry.push("there", [layer(("which", "arm64\n"))], architecture="arm64")
    image = registry.push_index("both", {"arm64": "there", "amd64": "here"})
    assert cloud.start(cloud.build(image)).commands.run("cat /which").stdout == "amd64\n"
    assert "linux/arm64" in cloud.failure(registry.push_index("elsewhere", {"arm64": "there"}))
    assert "linux/arm64" in cloud.failure(f"{registry.host}/there")


def test_a_registry_with_a_login(cloud, closed, tools):
    image = closed.push("secret", [tools, layer(("secret", "found\n"))])
    user, password = LOGIN.split(":", 1)
    assert "login" in cloud.failure(image)
    refused = cloud.failure(image, username=user, password="wrong")
    assert "login" in refused and "wrong" not in refused.replace("was wrong", "")
    name = cloud.build(image, username=user, password=password)
    assert cloud.start(name).commands.run("cat /secret").stdout == "found\n"
    assert "login" in cloud.failure(image), "an image that is there still takes a login"


def test_what_cannot_be_had(cloud, registry, server):
    assert "no such image" in cloud.failure(f"{registry.host}/nothing")
    assert "no such image" in cloud.failure(registry.push("tagged", [layer(("a", "a"))]) + "-other")
    assert "--private-registry" in cloud.failure("127.0.0.1:9/image:1")
    assert "--private-registry" in cloud.failure(f"{server.url.removeprefix('http://')}/image:1")
    assert "reference" in cloud.failure("not a reference")


def test_an_image_that_lies_about_itself(cloud, registry):
    image = registry.push("lies", [layer(("a", "first"))])
    registry.push("truth", [layer(("a", "other"))])
    kind, manifest = registry.manifests["lies", "latest"]
    blob = [d for d in registry.blobs if d in manifest.decode()][-1]
    kept, registry.blobs[blob] = registry.blobs[blob], registry.manifests["truth", "latest"][1]
    try:
        assert "layer 1 of 1" in cloud.failure(image)
    finally:
        registry.blobs[blob] = kept
    # One whose content is not that of the config.
    _, other = registry.manifests["truth", "latest"]
    mixed = manifest.replace(manifest[manifest.index(b'"layers"'):], other[other.index(b'"layers"'):])
    registry.manifests["mixed", "latest"] = (MANIFEST, mixed)
    assert "is not what the image's config says" in cloud.failure(f"{registry.host}/mixed")
    # By a digest that is another's.
    registry.manifests["lies", digest(b"x")] = (kind, manifest)
    assert "digest" in cloud.failure(f"{registry.host}/lies@{digest(b'x')}")


def symlink(to):
    return {"type": tarfile.SYMTYPE, "linkname": to}


def test_a_layer_that_attacks_does_no_harm(cloud, registry, tools, tmp_path):
    target = tmp_path / "target"
    target.write_text("unharmed")
    up = "../" * 20
    image = registry.push("attack", [
        tools,
        layer(
            ("link", None, symlink(str(tmp_path))), ("link/target", "harmed"),
            ("home/user", None, symlink("/etc")), ("etc/ssl", None, symlink(up + "var/ssl")),
            ("code", None, symlink("/proc/1/root")), ("tmp", None, symlink("/proc")),
            (".tombolo/agent", "#!/bin/sh\n", {"mode": 0o755}), (".tombolo/.wh.agent", ""),
            ("usr/bin/sudo", "x", {"mode": 0o6755}),
        ),
    ])
    name = cloud.build(image)
    sandbox = cloud.start(name)
    assert sandbox.commands.run("id -un; ls /etc/passwd").stdout == "user\n/etc/passwd\n"
    assert target.read_text() == "unharmed"
    for member in (
        (up + str(target), "harmed"), ("dev/disk", None, {"type": tarfile.BLKTYPE, "devmajor": 8}),
        ("a/" + up + "etc/cron.d/x", "harmed"), ("hard", None, {"type": tarfile.LNKTYPE, "linkname": str(target)}),
        ("hard", None, {"type": tarfile.LNKTYPE, "linkname": up + str(target)}), ("x/.wh..", ""), ("..", "x"),
    ):
        reference = registry.push("attack-" + uuid.uuid4().hex[:6], [tools, layer(member)])
        try:
            assert cloud.start(cloud.build(reference)).commands.run("id -un").stdout == "user\n"
        except BuildException as refused:
            assert "layer 2 of 2" in str(refused)
        assert target.read_text() == "unharmed"


def test_imports_leave_only_images(server, data):
    left = [p.name for p in (data / "images" / "build").iterdir() if p.suffix not in (".lock", ".log")]
    assert left == []
    assert not list((data / "builds").glob("*/partial-*"))
