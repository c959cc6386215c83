"""Secrets by the official client: what it makes, changes and lists, and that nothing
gives a value back. What sandboxes do with them is in test/e2e/world."""

import asyncio
import os
import pathlib
import subprocess
import uuid

import httpx
import pytest
from e2b import AsyncSecret, Secret
from e2b.exceptions import SecretException, SecretNotFoundException

VALUE = "s3cr3t-" + uuid.uuid4().hex


@pytest.fixture
def made(request):
    """Makes secrets, deleted when the test ends."""

    def make(name=None, value=VALUE, **options):
        secret = Secret.create(name or "t-" + uuid.uuid4().hex[:8], value, **options)
        request.addfinalizer(lambda: Secret.destroy(secret.secret_id))
        return secret

    return make


def test_secret_is_made_changed_and_destroyed(made):
    secret = made("Mixed.Case-" + uuid.uuid4().hex[:8], metadata={"team": "ä"})
    assert secret.secret_id.startswith("sec_")
    assert secret.name == secret.name.lower()
    assert (secret.version, secret.metadata) == (1, {"team": "ä"})
    assert Secret.get_info(secret.secret_id) == Secret.get_info(secret.name) == secret
    assert Secret.get_info(secret.name.upper()) == secret

    changed = Secret.update(secret.name, VALUE + "2")
    assert (changed.secret_id, changed.version, changed.metadata) == (secret.secret_id, 2, {"team": "ä"})
    assert changed.created_at == secret.created_at and changed.updated_at > secret.updated_at
    assert Secret.update(secret.secret_id, VALUE + "3", metadata={}).metadata == {}

    assert Secret.exists(secret.name)
    assert Secret.destroy(secret.name) is True
    assert Secret.destroy(secret.name) is False
    assert not Secret.exists(secret.secret_id)
    with pytest.raises(SecretNotFoundException):
        Secret.get_info(secret.name)
    with pytest.raises(SecretNotFoundException):
        Secret.update(secret.name, VALUE)


def test_secrets_are_listed_in_pages(made):
    ours = [made().secret_id for _ in range(5)]
    paginator, seen, pages = Secret.list(limit=2), [], 0
    while paginator.has_next:
        page = paginator.next_items()
        assert len(page) <= 2
        seen += [s.secret_id for s in page]
        pages += 1
    assert [s for s in seen if s in ours] == ours, "each once, oldest first"
    assert pages >= 3
    with pytest.raises(SecretException):
        Secret.list(next_token="nonsense").next_items()


def test_asynchronous_client():
    async def life():
        secret = await AsyncSecret.create("t-" + uuid.uuid4().hex[:8], VALUE)
        try:
            page = await AsyncSecret.list(limit=100).next_items()
            assert secret.name in [s.name for s in page]
            assert (await AsyncSecret.update(secret.name, VALUE + "2")).version == 2
        finally:
            assert await AsyncSecret.destroy(secret.secret_id)

    asyncio.run(life())


@pytest.mark.parametrize(
    "name, value, options, says",
    [
        ("sec_mine", VALUE, {}, "is an id"),
        ("a b", VALUE, {}, "name"),
        ("../x", VALUE, {}, "name"),
        ("t-short", "1234567", {}, "8 at least"),
        ("t-huge", "x" * 65537, {}, "65536"),
        ("t-nul", "12345678\0", {}, "NUL"),
        ("t-metadata", VALUE, {"metadata": {"k": "v" * 1025}}, "1024"),
        ("t-typo", VALUE, {"metadata": {"tombolo.host": "example.com"}}, "tombolo.hosts"),
        ("t-everywhere", VALUE, {"metadata": {"tombolo.hosts": "*"}}, "name the hosts"),
    ],
)
def test_what_cannot_be_is_refused(made, name, value, options, says):
    with pytest.raises(SecretException) as refused:
        made(name, value, **options)
    assert says in str(refused.value)
    assert VALUE not in str(refused.value)
    assert not Secret.exists(name) or "/" in name


def test_name_is_taken_once(made):
    secret = made()
    with pytest.raises(SecretException) as refused:
        made(secret.name.upper())
    assert "409" in str(refused.value)


def test_nothing_gives_the_value_back(made):
    secret = made(metadata={"tombolo.hosts": "api.example.com"})
    url, key = os.environ["E2B_API_URL"], {"X-API-Key": os.environ["E2B_API_KEY"]}
    answers = [httpx.get(f"{url}/secrets/{secret.name}", headers=key), httpx.get(f"{url}/secrets", headers=key)]
    answers.append(httpx.post(f"{url}/secrets/{secret.name}", headers=key, json={"value": VALUE + "x"}))
    answers.append(httpx.post(f"{url}/secrets", headers=key, json={"name": secret.name, "value": VALUE}))
    answers.append(httpx.post(f"{url}/secrets", headers=key, json={"name": "t-list", "value": [VALUE]}))
    answers.append(httpx.post(f"{url}/secrets", headers=key, content='{"name":"t-broken","value":"' + VALUE))
    assert [a.status_code for a in answers] == [200, 200, 200, 409, 400, 400]
    shown = [tombolo("secret", *args) for args in (["list"], ["list", "--json"], ["show", secret.name], ["show", secret.name, "--json"])]
    for text in [a.text for a in answers] + shown:
        assert VALUE not in text
    assert secret.name in shown[0] and "api.example.com" in shown[0]


def tombolo(*args, **options):
    done = subprocess.run([os.environ["TOMBOLO_BIN"], *args], capture_output=True, text=True, check=True, **options)
    return done.stdout + done.stderr


def test_command_line_and_server_share_secrets():
    name = "t-" + uuid.uuid4().hex[:8]
    tombolo("secret", "set", name, "--host", "api.example.com", "--placeholder-prefix", "ghp_", input=VALUE + "\n")
    try:
        secret = Secret.get_info(name)
        assert secret.version == 1
        assert "ghp_tombolo_t-" in tombolo("secret", "show", name)
        assert Secret.update(name, VALUE + "2", metadata={"a": "b"}).version == 2
        assert "api.example.com" in tombolo("secret", "show", name), "the binding is not the metadata's"
    finally:
        tombolo("secret", "delete", name)
    assert not Secret.exists(name)


def test_value_is_in_no_file(made):
    made()
    for path in pathlib.Path(os.environ["TOMBOLO_DATA"]).iterdir():
        if path.is_file():
            assert VALUE.encode() not in path.read_bytes(), path
