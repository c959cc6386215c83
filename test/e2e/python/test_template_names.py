"""Names, tags and lists of templates, by the official client. Snapshots stand in
for built templates where only what their names mean is asked."""

import os
import pathlib
import uuid

import httpx
import pytest
from e2b import Sandbox, SandboxException, Template, TemplateException

from cli import as_json, tombolo

API = os.environ["E2B_API_URL"]
NOT_FOUND = pytest.raises(SandboxException, match="404: template .* not found")
SNAPSHOTS = pathlib.Path(os.environ["TOMBOLO_DATA"], "snapshots")


def api(method, path, key=os.environ["E2B_API_KEY"], **options):
    return httpx.request(method, API + path, headers={"X-API-KEY": key}, **options)


@pytest.fixture(scope="module")
def alias():
    return "names-" + uuid.uuid4().hex[:12]


@pytest.fixture(scope="module")
def name(alias):
    """A template with the builds v1 and v2, which differ in the file /home/user/v."""
    sandbox = Sandbox.create(timeout=120)
    try:
        for tag in ("v1", "v2"):
            sandbox.files.write("v", tag)
            sandbox.create_snapshot(name=f"{alias}:{tag}")
        yield alias
    finally:
        sandbox.kill()
        api("DELETE", f"/templates/{alias}")
    assert not Template.exists(alias)


@pytest.fixture(scope="module")
def other_key():
    """The secret of another key."""
    made = as_json("key", "create", "names-" + uuid.uuid4().hex[:8])
    yield made["key"]
    tombolo("key", "delete", made["id"])


def version(ref, **options):
    with Sandbox.create(ref, timeout=60, **options) as sandbox:
        return sandbox.files.read("v")


def tags_of(name):
    return {tag.tag: tag.build_id for tag in Template.get_tags(name)}


def files_of(name):
    """The folders of a template's builds."""
    return {t["tags"][0]: SNAPSHOTS / t["snapshot"] for t in as_json("template", "list") if t.get("name") == name}


def test_a_name_with_a_tag_means_that_build(name):
    assert version(f"{name}:v1") == "v1"
    assert version(f"{name}:v2") == "v2"
    with NOT_FOUND:
        Sandbox.create(name)  # there is no tag default
    with NOT_FOUND:
        Sandbox.create(f"{name}:v3")
    info = api("GET", f"/templates/{name}").json()
    assert version(f"{info['templateID']}:v1") == "v1"
    assert version(tags_of(name)["v1"]) == "v1"  # by the id of a build


def test_a_name_exists_with_whatever_tag(name, other_key):
    assert Template.exists(name) and Template.exists(f"{name}:v1")
    assert Template.exists(name, api_key=other_key), "the name is taken for others too"
    assert not Template.exists(f"{name}:v3")
    assert not Template.exists("no-" + name)
    assert Template.exists("base")


def test_tags_are_assigned_moved_and_removed(name):
    done = Template.assign_tags(f"{name}:v1", ["default", "Production"])
    tags = tags_of(name)
    assert done.tags == ["default", "production"] and done.build_id == tags["v1"]
    assert tags["default"] == tags["production"] == tags["v1"] != tags["v2"]
    assert version(name) == version(f"{name}:production") == "v1"
    Template.assign_tags(f"{name}:v2", "production")
    assert version(f"{name}:production") == "v2"
    assert [tag.tag for tag in Template.get_tags(name)][0] == "production", "the latest assignment comes first"

    Template.remove_tags(name, "production")
    assert set(tags_of(name)) == {"v1", "v2", "default"}
    with pytest.raises(TemplateException, match="cannot be removed"):
        Template.remove_tags(name, ["v1", "default"])
    assert set(tags_of(name)) == {"v1", "v2", "default"}
    assert api("DELETE", f"/templates/{name}:default").status_code == 204
    assert set(tags_of(name)) == {"v1", "v2"}


def test_the_key_s_namespace_goes_before_a_name(name):
    names = api("GET", f"/templates/{name}").json()["names"]
    assert len(names) == 1 and names[0].endswith("/" + name)
    assert Template.exists(names[0]) and version(f"{names[0]}:v2") == "v2"
    Template.assign_tags(f"{names[0]}:v2", "spaced")
    Template.remove_tags(names[0], "spaced")
    with NOT_FOUND:
        Sandbox.create(f"nobody/{name}:v2")


def test_tags_that_cannot_be_are_refused(name):
    for target, tags in ((f"{name}:v1", ["a b"]), (f"{name}:v1", [str(uuid.uuid4())]), (f"{name}:v1", []), (f"{name}:v3", ["x"]), ("base", ["x"])):
        with pytest.raises(TemplateException):
            Template.assign_tags(target, tags)
    assert set(tags_of(name)) == {"v1", "v2"}


def test_a_build_goes_with_its_last_tag(name, new_box):
    box = new_box(f"{name}:v1")
    box.files.write("v", "v3")
    box.create_snapshot(name=f"{name}:v3")
    files = files_of(name)
    assert len(files) == 3 and all(folder.is_dir() for folder in files.values())
    Template.assign_tags(f"{name}:v3", "kept")
    Template.remove_tags(name, "v3")
    assert version(f"{name}:kept") == "v3" and files["v3"].is_dir()
    Template.assign_tags(f"{name}:v2", "kept")
    assert not files["v3"].exists()
    assert box.files.read("v") == "v3", "a sandbox is not disturbed"
    Template.remove_tags(name, "kept")


def test_a_public_template_can_be_used_by_every_key(name, other_key):
    def create():
        return version(f"{name}:v1", api_key=other_key)

    with NOT_FOUND:
        create()
    assert api("PATCH", f"/v2/templates/{name}", json={"public": True}).json()["names"][0].endswith("/" + name)
    assert create() == "v1"
    assert api("PATCH", f"/v2/templates/{name}", other_key, json={"public": False}).status_code == 403
    assert api("DELETE", f"/templates/{name}", other_key).status_code == 403
    with pytest.raises(TemplateException, match="another key"):
        Template.assign_tags(f"{name}:v1", "mine", api_key=other_key)
    assert api("PATCH", f"/templates/{name}", json={"public": False}).status_code == 200
    with NOT_FOUND:
        create()


def test_built_templates_are_listed_and_snapshots_are_not(name):
    built = "listed-" + uuid.uuid4().hex[:12]
    try:
        info = Template.build(Template().from_template("base"), f"{built}:v1")
        listed = {t["templateID"]: t for t in api("GET", "/templates").json()}
        assert name not in [alias for t in listed.values() for alias in t["aliases"]]
        assert listed[info.template_id]["aliases"] == [built] and listed[info.template_id]["buildStatus"] == "ready"
        paged, token = [], ""
        while token is not None:
            page = api("GET", f"/v2/templates?limit=1&nextToken={token}")
            paged += [t["templateID"] for t in page.json()]
            token = page.headers.get("X-Next-Token")
        assert sorted(paged) == sorted(listed)
        detail = api("GET", f"/templates/{built}").json()
        assert [b["buildID"] for b in detail["builds"]] == [info.build_id] and detail["buildCount"] == 1
        row = next(t for t in as_json("template", "list") if t.get("name") == built)
        assert row["tags"] == ["v1"] and row["buildID"] == info.build_id
    finally:
        assert api("DELETE", f"/templates/{built}").status_code == 204
    assert api("GET", f"/templates/{built}").status_code == 404
