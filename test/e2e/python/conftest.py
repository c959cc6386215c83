"""Fixtures of the end-to-end tests.

The tests talk to the server named by E2B_API_KEY, E2B_API_URL and
E2B_SANDBOX_URL (what `tombolo env` prints); run.sh starts one and sets them.
Tests that cannot disturb each other share a sandbox per file; the rest make
their own with `new_box` or `new_interpreter`, which kill it afterwards. Tests
that stop or crash a server run their own with `serve`, on the folder `data`.
"""

import os

import e2b
import e2b_code_interpreter
import pytest

from server import Server, private_data_folder

REQUIRED = ("E2B_API_KEY", "E2B_API_URL", "E2B_SANDBOX_URL", "TOMBOLO_BIN", "TOMBOLO_DATA")


def pytest_configure(config):
    missing = [name for name in REQUIRED if not os.environ.get(name)]
    if missing:
        raise pytest.UsageError(f"{', '.join(missing)} not set: start the tests with test/e2e/run.sh")


def _factory(sandbox_class, request):
    def make(*args, **options):
        sandbox = sandbox_class.create(*args, **options)
        request.addfinalizer(sandbox.kill)
        return sandbox

    return make


@pytest.fixture
def new_box(request):
    """Makes sandboxes of the plain template, killed when the test ends."""
    return _factory(e2b.Sandbox, request)


@pytest.fixture
def new_interpreter(request):
    """Makes code interpreter sandboxes, killed when the test ends."""
    return _factory(e2b_code_interpreter.Sandbox, request)


@pytest.fixture(scope="module")
def box(request):
    """A sandbox of the plain template that the tests of one file share."""
    return _factory(e2b.Sandbox, request)(timeout=900)


@pytest.fixture(scope="module")
def interpreter(request):
    """A code interpreter sandbox that the tests of one file share."""
    return _factory(e2b_code_interpreter.Sandbox, request)(timeout=900)


@pytest.fixture(scope="session")
def data():
    """A data folder for servers of the tests' own, beside the shared one."""
    with private_data_folder(os.environ["TOMBOLO_DATA"]) as folder:
        yield folder


@pytest.fixture
def serve(data):
    """Starts servers on the data folder, one at a time. At the end of the test
    its sandboxes are killed, running and paused, whether or not a server is up."""
    started = []

    def start(*flags, **options):
        started.append(Server(data, *flags, **options).start())
        return started[-1]

    yield start
    if started:
        server = started[-1] if started[-1].runs() else Server(data).start()
        server.kill_sandboxes()
        server.delete_templates()
        server.stop()
