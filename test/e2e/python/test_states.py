"""Changes of state that meet each other: whoever comes second is told the truth,
and nothing is lost. What each change does by itself is in test_pause.py,
test_fork.py and test_restart.py."""

import concurrent.futures
import os
import time

import httpx
import pytest
from e2b import Sandbox

from wait import eventually


def request(method, path, options=None, body=None):
    """One request to the control API of the tests' server, or of options'."""
    options = options or {"api_key": os.environ["E2B_API_KEY"], "api_url": os.environ["E2B_API_URL"]}
    return httpx.request(method, options["api_url"] + path, json=body, headers={"X-API-KEY": options["api_key"]}, timeout=90)


@pytest.mark.parametrize("change, body, done", [
    ("pause", {}, 204),
    ("snapshots", {}, 201),
    ("fork", {"count": 1, "timeout": 30}, 201),
    ("connect", {"timeout": 60}, 201),
])
def test_a_kill_during_a_change_is_no_failure(change, body, done):
    """The kill comes before, in or after the change: that one is done or hears that
    the sandbox was killed, and the sandbox is gone."""
    for delay in (0.01, 0.03, 0.06, 0.12):
        sandbox = Sandbox.create(timeout=300)
        path = f"/sandboxes/{sandbox.sandbox_id}"
        if change == "connect":
            sandbox.pause()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            changed = pool.submit(request, "POST", f"{path}/{change}", body=body)
            time.sleep(delay)  # the moment to be met, not a condition to wait for
            assert request("DELETE", path).status_code == 204
            answer = changed.result()
        assert answer.status_code in (done, 404), answer.text
        if answer.status_code == 404:
            assert "killed by its owner" in answer.json()["message"]
        elif change == "snapshots":
            Sandbox.delete_snapshot(answer.json()["snapshotID"])
        assert request("GET", path).status_code == 404


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_pause_in_which_the_server_ends_does_not_hurt_the_next_pause(serve, data, end):
    server = serve()
    options = server.client_options()
    sandbox = Sandbox.create(timeout=600, **options)
    written = sandbox.commands.run("head -c 300M /dev/urandom | tee big | sha256sum", timeout=120).stdout
    with concurrent.futures.ThreadPoolExecutor() as pool:
        paused = pool.submit(sandbox.pause, **options)
        eventually(lambda: list((data / "sandboxes" / sandbox.sandbox_id).glob("state-*")), 20, "the sandbox is being saved")
        getattr(server, end)()
        paused.exception()  # done when the server was stopped in order, else an error
    options = serve().client_options()
    # At once, as a timeout does that passed meanwhile: nothing has made sure that the
    # sandbox is not being saved any more.
    again = request("POST", f"/sandboxes/{sandbox.sandbox_id}/pause", options)
    assert again.status_code in (204, 409), again.text
    assert request("GET", f"/sandboxes/{sandbox.sandbox_id}", options).json()["state"] == "paused"
    resumed = Sandbox.connect(sandbox.sandbox_id, timeout=600, **options)
    assert resumed.commands.run("sha256sum < big").stdout == written
