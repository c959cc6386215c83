"""Those who make rules and answer what sandboxes ask for, by the owner's socket."""

import httpx

from wait import eventually


class Owner:
    """All of Tombolo's own API."""

    def __init__(self, data):
        self._client = httpx.Client(transport=httpx.HTTPTransport(uds=str(data / "control.sock")),
                                    base_url="http://owner/tombolo/v1", timeout=30)

    def call(self, method, path, **options):
        """The answer's status and body."""
        answer = self._client.request(method, path, **options)
        return answer.status_code, answer.json() if answer.content else None

    def _good(self, method, path, **options):
        status, body = self.call(method, path, **options)
        assert status < 300, (method, path, status, body)
        return body

    def rules(self, *rules, default=None):
        """Makes these the rules of the server, in place of all there are."""
        table = {"scope": {"kind": "server"}, "rules": list(rules)} | ({"default": default} if default else {})
        self._good("PUT", "/policy", json={"tables": [table] if rules or default else []})

    def holds(self, sandbox, state="pending"):
        return self._good("GET", "/approvals", params={"sandbox": sandbox.sandbox_id, "state": state})

    def hold(self, hold):
        return self._good("GET", f"/approvals/{hold['id']}")

    def asked(self, sandbox, part="", within=40):
        """Waits until something of the sandbox waits whose action has part in it."""
        return eventually(lambda: next((hold for hold in self.holds(sandbox) if part in str(hold["action"])), None),
                          within, f"a question about {part}")

    def answer(self, hold, approve, **more):
        return self.call("POST", f"/approvals/{hold['id']}/answer", json={"approve": approve, "hash": hold["hash"]} | more)

    def approve(self, hold, **more):
        status, body = self.answer(hold, True, **more)
        assert status == 200, body
        return body

    def deny(self, hold, reason=""):
        status, body = self.answer(hold, False, reason=reason)
        assert status == 200, body
        return body

    def network(self, sandbox):
        return self._good("GET", f"/sandboxes/{sandbox.sandbox_id}/network")
