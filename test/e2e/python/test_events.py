"""Events of sandboxes, asked for and sent to webhooks.

The receivers here are what a user would write: they verify each delivery as E2B's
documentation tells them to, and as the Standard Webhooks specification does.
"""

import base64
import hashlib
import hmac
import http.server
import json
import os
import threading
import time

import e2b
import httpx
import pytest

from cli import as_json, tombolo
from wait import eventually

SECRET = "a secret of the tests"
LIFE = [f"sandbox.lifecycle.{what}" for what in ("created", "updated", "paused", "resumed", "checkpointed", "killed")]


class Receiver:
    """A server on a free port that keeps the deliveries it was sent."""

    def __init__(self):
        self.status = 204
        self.deliveries = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.deliveries.append((dict(self.headers), body, receiver.status))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def events(self, sandbox_id=None):
        """What was taken, in the order it came."""
        events = [json.loads(body) for _, body, status in self.deliveries if status == 204]
        return [event for event in events if sandbox_id in (None, event["sandbox_id"])]

    def types(self, sandbox_id):
        return [event["type"] for event in self.events(sandbox_id)]


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


class API:
    """The endpoints that no client has."""

    def __init__(self, url, key):
        self.http = httpx.Client(base_url=url, headers={"X-API-Key": key}, timeout=30)

    def add_webhook(self, url, events=LIFE):
        answer = self.http.post("/events/webhooks", json={
            "name": "test", "url": url, "enabled": True, "events": events, "signatureSecret": SECRET})
        assert answer.status_code == 201, answer.text
        assert SECRET not in answer.text
        return answer.json()["id"]

    def get(self, path, **query):
        answer = self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def deliveries(self, webhook):
        return self.get(f"/events/webhooks/{webhook}/deliveries", limit=100)["data"]


def verify(headers, body):
    """Raises unless the delivery is signed with the secret, both ways."""
    headers = {name.lower(): value for name, value in headers.items()}
    plain = base64.b64encode(hashlib.sha256(SECRET.encode() + body).digest()).decode()
    assert headers["e2b-signature-version"] == "v1"
    assert headers["e2b-signature"] == plain.rstrip("="), "as the service sends it"
    assert headers["e2b-signature"] == plain.replace("+", "-").replace("/", "_").rstrip("="), "as the documentation says"
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    mac = base64.b64encode(hmac.digest(SECRET.encode(), signed, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{mac}"
    assert abs(time.time() - int(headers["webhook-timestamp"])) < 60
    assert headers["e2b-delivery-id"] == headers["webhook-id"]


def test_a_webhook_is_told_the_life_of_a_sandbox(serve, receiver):
    server = serve("--webhook-allow-private")
    options = server.client_options()
    api = API(server.url, options["api_key"])
    webhook = api.add_webhook(receiver.url)

    sandbox = e2b.Sandbox.create(metadata={"user": "ü"}, timeout=300, **options)
    sandbox.set_timeout(600)
    sandbox.pause()
    sandbox = e2b.Sandbox.connect(sandbox.sandbox_id, timeout=300, **options)
    sandbox.create_snapshot()
    sandbox.kill()

    eventually(lambda: receiver.types(sandbox.sandbox_id)[-1:] == ["sandbox.lifecycle.killed"], 20, "the kill is told")
    assert [t for t in dict.fromkeys(receiver.types(sandbox.sandbox_id))] == LIFE
    for headers, body, _ in receiver.deliveries:
        verify(headers, body)
        assert {name.lower(): value for name, value in headers.items()}["e2b-webhook-id"] == webhook
    events = {event["type"]: event for event in receiver.events(sandbox.sandbox_id)}
    created, paused, killed = (events[f"sandbox.lifecycle.{what}"] for what in ("created", "paused", "killed"))
    for event in events.values():
        assert event["version"] == "v2"
        assert event["event_data"]["sandbox_metadata"] == {"user": "ü"}
        assert event["sandboxId"] == sandbox.sandbox_id, "the documentation's spelling too"
    assert created["sandbox_execution_id"] == paused["sandbox_execution_id"] != killed["sandbox_execution_id"], "a resume begins a new run"
    for event in (paused, killed):
        execution = event["event_data"]["execution"]
        assert execution["vcpu_count"] == 2 and execution["memory_mb"] > 0 and execution["execution_time"] >= 0
    assert "token" not in json.dumps(list(events.values())).lower()

    asked = api.get(f"/events/sandboxes/{sandbox.sandbox_id}", orderAsc="true", limit=100)
    assert [event["id"] for event in asked] == [event["id"] for event in receiver.events(sandbox.sandbox_id)]
    assert api.get("/events/sandboxes", limit=1)[0]["type"] == "sandbox.lifecycle.killed", "the newest comes first"
    only = api.get("/events/sandboxes", types="sandbox.lifecycle.created,sandbox.lifecycle.paused")
    assert {event["type"] for event in only} == {"sandbox.lifecycle.created", "sandbox.lifecycle.paused"}
    eventually(lambda: {group["state"] for group in api.deliveries(webhook)} == {"delivered"}, 20, "it is written down")
    assert api.http.delete(f"/events/webhooks/{webhook}").status_code == 200


def test_a_killed_server_delivers_what_it_owed(serve, receiver):
    server = serve("--webhook-allow-private")
    options = server.client_options()
    api = API(server.url, options["api_key"])
    webhook = api.add_webhook(receiver.url, ["sandbox.lifecycle.created", "sandbox.lifecycle.killed"])
    receiver.status = 503
    sandbox = e2b.Sandbox.create(timeout=300, **options)
    sandbox.kill()
    eventually(lambda: receiver.deliveries, 20, "an attempt")
    server.kill()

    receiver.status = 204
    server = serve("--webhook-allow-private")
    api = API(server.url, options["api_key"])
    expected = ["sandbox.lifecycle.created", "sandbox.lifecycle.killed"]
    eventually(lambda: receiver.types(sandbox.sandbox_id) == expected, 60, "both are delivered, in order")
    eventually(lambda: {group["state"] for group in api.deliveries(webhook)} == {"delivered"}, 20, "and written down")
    ids = [{name.lower(): value for name, value in headers.items()}["e2b-delivery-id"] for headers, _, _ in receiver.deliveries]
    assert len(set(ids)) == 2, "each has one id in all its attempts"
    created = next(group for group in api.deliveries(webhook) if group["eventType"] == expected[0])
    assert [attempt["status"] for attempt in created["attempts"]][-1] == "success"
    assert created["attempts"][0]["responseHttpStatusCode"] == 503
    assert api.http.delete(f"/events/webhooks/{webhook}").status_code == 200


@pytest.fixture
def shared():
    """The server of all tests, whose webhooks reach public addresses only."""
    api = API(os.environ["E2B_API_URL"], os.environ["E2B_API_KEY"])
    yield api
    for webhook in api.get("/events/webhooks"):
        api.http.delete(f"/events/webhooks/{webhook['id']}")


@pytest.mark.parametrize("address", [
    "http://127.0.0.1:1/", "http://[::1]:1/", "http://10.1.2.3/", "http://169.254.169.254/latest/meta-data/",
    "http://[::ffff:127.0.0.1]/", "http://0.0.0.0/", "ftp://example.com/", "http://user:pass@example.com/",
])
def test_addresses_no_webhook_may_have(shared, address):
    answer = shared.http.post("/events/webhooks", json={
        "name": "test", "url": address, "events": LIFE, "signatureSecret": SECRET})
    assert answer.status_code == 400, answer.text
    assert "url" in answer.json()["message"]


def test_a_name_is_no_way_to_the_servers_own_machine(shared, receiver, new_box):
    webhook = shared.add_webhook(receiver.url.replace("127.0.0.1", "localhost"), ["sandbox.lifecycle.created"])
    new_box(timeout=60)
    tried = eventually(lambda: shared.deliveries(webhook) and shared.deliveries(webhook)[0]["attempts"], 20, "an attempt")
    assert "loopback" in tried[0]["errorMessage"]
    assert receiver.deliveries == []


def test_events_and_webhooks_are_their_keys_own(shared, receiver, new_box):
    webhook = shared.add_webhook("https://example.com/", ["sandbox.lifecycle.killed"])
    box = new_box(timeout=60)
    made = as_json("key", "create", "other-of-events", "--data", os.environ["TOMBOLO_DATA"])
    try:
        other = API(os.environ["E2B_API_URL"], made["key"])
        assert other.get("/events/sandboxes") == []
        assert other.get(f"/events/sandboxes/{box.sandbox_id}") == []
        assert other.get("/events/webhooks") == []
        for method, path in [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/deliveries"), ("POST", "/test")]:
            answer = other.http.request(method, f"/events/webhooks/{webhook}{path}", json={} if method == "PATCH" else None)
            assert answer.status_code == 404, (method, path, answer.text)
    finally:
        tombolo("key", "delete", "other-of-events", "--data", os.environ["TOMBOLO_DATA"])
    assert shared.get(f"/events/webhooks/{webhook}")["enabled"]
    assert [event["type"] for event in shared.get(f"/events/sandboxes/{box.sandbox_id}")] == ["sandbox.lifecycle.created"]
