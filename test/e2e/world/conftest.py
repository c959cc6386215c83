"""Fixtures of the tests that need a world: a server and everything it can reach are in
network namespaces of the tests' own, which run.sh makes.

One server serves all tests but those that stop it. Every test finds the world as it
was in the beginning.
"""

import os
import pathlib
import tempfile

import e2b
import e2b_code_interpreter
import pytest

import link
from outside import World
from server import Server, private_data_folder

REQUIRED = ("TOMBOLO_BIN", "TOMBOLO_DATA")


def pytest_configure(config):
    missing = [name for name in REQUIRED if not os.environ.get(name)]
    if missing or not link.alone():
        raise pytest.UsageError(f"{', '.join(missing) or 'a network namespace'} is missing: start the tests with test/e2e/run.sh")


@pytest.fixture(scope="session")
def _world():
    with tempfile.TemporaryDirectory(prefix="world-") as folder:
        yield World(pathlib.Path(folder)).start()


@pytest.fixture
def world(_world):
    """The world, with nothing seen yet."""
    _world.reset()
    return _world


@pytest.fixture(scope="session")
def data(_world):
    """A data folder of the tests' own. Commands find it, and the server, by the
    environment."""
    with private_data_folder(os.environ["TOMBOLO_DATA"]) as folder:
        os.environ |= {"TOMBOLO_DATA": str(folder), "TOMBOLO_CA_BUNDLE": str(_world.authority.bundle),
                       "SSL_CERT_FILE": str(_world.authority.bundle)}
        yield folder


@pytest.fixture(scope="session")
def server(data):
    """The server that tests share. It keeps its address when it is started again."""
    server = Server(data, "--on-stop", "end", listen="127.0.0.1:4800").start()
    os.environ |= server.environment()
    yield server
    assert server.stop() == 0, server.log()[-3000:]


def _factory(sandbox_class, request):
    def make(**options):
        sandbox = sandbox_class.create(**options)
        request.addfinalizer(sandbox.kill)
        return sandbox

    return make


@pytest.fixture
def new_box(server, request):
    """Makes sandboxes of the plain template, killed when the test ends."""
    return _factory(e2b.Sandbox, request)


@pytest.fixture
def new_interpreter(server, request):
    """The same of the code interpreter."""
    return _factory(e2b_code_interpreter.Sandbox, request)


@pytest.fixture(scope="module")
def box(server, request):
    """A sandbox without rules that the tests of a file share."""
    return _factory(e2b.Sandbox, request)(timeout=900)
