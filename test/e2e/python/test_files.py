"""sandbox.files of the Python client, and signed URLs by a plain HTTP client."""

import hashlib
import io
import os
import time
import urllib.error
import urllib.request

import httpx
import pytest
from e2b import (
    AuthenticationException,
    FileNotFoundException,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    NotEnoughSpaceException,
)

from wait import eventually

NAMES = ["plain.txt", "with space.txt", "ünï-€-😀.txt", "per%20cent&amp=?#.txt", "quote'\"s.txt", "-dash", ".hidden"]


@pytest.fixture
def folder(box, request):
    """A new folder in the shared sandbox."""
    path = f"/home/user/{request.node.name.translate(str.maketrans('[] /', '____'))[:60]}-{time.monotonic_ns()}"
    assert box.files.make_dir(path) is True
    return path


# --- write and read ----------------------------------------------------------


def test_text_round_trip_tells_what_was_written(box, folder):
    info = box.files.write(f"{folder}/a.txt", "héllo\n")
    assert (info.name, info.path, info.type) == ("a.txt", f"{folder}/a.txt", FileType.FILE)
    assert box.files.read(f"{folder}/a.txt") == "héllo\n"


def test_bytes_round_trip(box, folder):
    data = bytes(range(256)) * 1000
    box.files.write(f"{folder}/a.bin", data)
    assert bytes(box.files.read(f"{folder}/a.bin", format="bytes")) == data


def test_streams_both_ways(box, folder):
    data = os.urandom(3 << 20)
    box.files.write(f"{folder}/up", io.BytesIO(data))
    with box.files.read(f"{folder}/up", format="stream") as stream:
        assert b"".join(stream) == data


def test_an_iterator_is_streamed(box, folder):
    box.files.write(f"{folder}/up", (b"%d," % i for i in range(10000)))
    assert box.files.read(f"{folder}/up") == "".join(f"{i}," for i in range(10000))


@pytest.mark.parametrize("how", [{"gzip": True}, {"use_octet_stream": True}, {"use_octet_stream": False}], ids=str)
def test_every_upload_form(box, folder, how):
    data = b"squeeze me " * 50000
    box.files.write(f"{folder}/f", data, **how)
    assert bytes(box.files.read(f"{folder}/f", format="bytes")) == data
    assert bytes(box.files.read(f"{folder}/f", format="bytes", gzip=True)) == data


@pytest.mark.parametrize("data", ["", b""], ids=["text", "bytes"])
def test_an_empty_file_is_a_file(box, folder, data):
    box.files.write(f"{folder}/empty", data)
    assert box.files.read(f"{folder}/empty") == ""
    assert box.files.get_info(f"{folder}/empty").size == 0


def test_writing_replaces_the_content(box, folder):
    box.files.write(f"{folder}/f", "a long first version")
    box.files.write(f"{folder}/f", "short")
    assert box.files.read(f"{folder}/f") == "short"


def test_missing_parents_are_made_and_owned_by_the_user(box, folder):
    box.files.write(f"{folder}/x/y/z.txt", "deep")
    for path in ("x", "x/y", "x/y/z.txt"):
        info = box.files.get_info(f"{folder}/{path}")
        assert (info.owner, info.group) == ("user", "user"), path


def test_write_files_writes_many(box, folder):
    files = [{"path": f"{folder}/many/{i}", "data": f"n{i}"} for i in range(30)]
    written = box.files.write_files(files)
    assert [w.path for w in written] == [f["path"] for f in files]
    assert [box.files.read(f["path"]) for f in files] == [f"n{i}" for i in range(30)]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_works(box, folder, name):
    box.files.write(f"{folder}/{name}", name)
    assert box.files.read(f"{folder}/{name}") == name
    assert [entry.name for entry in box.files.list(folder)] == [name]
    assert box.files.get_info(f"{folder}/{name}").name == name


def test_relative_and_home_paths_belong_to_the_user(box):
    box.files.write("relative.txt", "r")
    assert box.files.read("/home/user/relative.txt") == "r"
    assert box.files.read("~/relative.txt") == "r"
    box.files.write("relative.txt", "root's", user="root")
    assert box.files.read("/root/relative.txt", user="root") == "root's"


def test_a_hundred_megabytes_round_trip(box, folder):
    data = os.urandom(1 << 20) * 100
    box.files.write(f"{folder}/big", io.BytesIO(data))
    digest = hashlib.sha256()
    with box.files.read(f"{folder}/big", format="stream") as stream:
        for chunk in stream:
            digest.update(chunk)
    assert digest.hexdigest() == hashlib.sha256(data).hexdigest()
    box.files.remove(f"{folder}/big")


def test_metadata_stays_with_the_file(box, folder):
    written = box.files.write(f"{folder}/f", "x", metadata={"origin": "test", "step": "7"})
    assert written.metadata == {"origin": "test", "step": "7"}
    assert box.files.get_info(f"{folder}/f").metadata == {"origin": "test", "step": "7"}
    assert box.files.list(folder)[0].metadata == {"origin": "test", "step": "7"}
    moved = box.files.rename(f"{folder}/f", f"{folder}/g")
    assert moved.metadata == {"origin": "test", "step": "7"}


# --- what is there -----------------------------------------------------------


def test_info_of_a_file(box, folder):
    box.files.write(f"{folder}/f", "12345")
    box.commands.run(f"chmod 640 {folder}/f")
    info = box.files.get_info(f"{folder}/f")
    assert (info.name, info.path, info.type, info.size) == ("f", f"{folder}/f", FileType.FILE, 5)
    assert info.mode & 0o777 == 0o640
    assert info.permissions.endswith("rw-r-----")
    assert (info.owner, info.group) == ("user", "user")
    assert abs(info.modified_time.timestamp() - time.time()) < 60


def test_info_of_a_symlink_names_its_target(box, folder):
    box.files.write(f"{folder}/target", "x")
    box.commands.run(f"ln -s {folder}/target {folder}/link")
    info = box.files.get_info(f"{folder}/link")
    assert (info.type, info.symlink_target) == (FileType.SYMLINK, f"{folder}/target")


def test_list_depth(box, folder):
    box.files.write(f"{folder}/a/b/c.txt", "x")
    box.files.write(f"{folder}/top.txt", "x")

    def paths(depth):
        return sorted(entry.path.removeprefix(f"{folder}/") for entry in box.files.list(folder, depth=depth))

    assert paths(1) == ["a", "top.txt"]
    assert paths(2) == ["a", "a/b", "top.txt"]
    assert paths(3) == ["a", "a/b", "a/b/c.txt", "top.txt"]


def test_list_of_a_folder_with_many_files(box, folder):
    box.commands.run(f"cd {folder} && seq 3000 | xargs touch")
    assert {entry.name for entry in box.files.list(folder)} == {str(i) for i in range(1, 3001)}


def test_exists(box, folder):
    box.files.write(f"{folder}/f", "x")
    assert box.files.exists(f"{folder}/f") and box.files.exists(folder)
    assert not box.files.exists(f"{folder}/g")


# --- change ------------------------------------------------------------------


def test_rename_returns_the_new_entry(box, folder):
    box.files.write(f"{folder}/old", "x")
    entry = box.files.rename(f"{folder}/old", f"{folder}/sub/new")
    assert (entry.name, entry.path) == ("new", f"{folder}/sub/new")
    assert not box.files.exists(f"{folder}/old") and box.files.read(f"{folder}/sub/new") == "x"


def test_remove_takes_files_and_trees_and_forgives_absence(box, folder):
    box.files.write(f"{folder}/tree/a/b", "x")
    box.files.remove(f"{folder}/tree")
    assert not box.files.exists(f"{folder}/tree")
    box.files.remove(f"{folder}/tree")


def test_make_dir_says_whether_it_was_there(box, folder):
    assert box.files.make_dir(f"{folder}/p/q") is True
    assert box.files.make_dir(f"{folder}/p/q") is False
    assert box.files.get_info(f"{folder}/p/q").type == FileType.DIR


# --- errors ------------------------------------------------------------------


@pytest.mark.parametrize("act", [
    lambda files: files.read("/no/such"),
    lambda files: files.get_info("/no/such"),
    lambda files: files.list("/no/such"),
    lambda files: files.rename("/no/such", "/tmp/x"),
    lambda files: files.watch_dir("/no/such"),
], ids=["read", "get_info", "list", "rename", "watch_dir"])
def test_what_is_missing_is_not_found(box, act):
    with pytest.raises(FileNotFoundException):
        act(box.files)


@pytest.mark.parametrize("act", [
    lambda files: files.read("/etc"),
    lambda files: files.list("/etc/passwd"),
    lambda files: files.watch_dir("/etc/passwd"),
    lambda files: files.make_dir("/etc/passwd"),
    lambda files: files.write("/etc", "x", user="root"),
], ids=["read folder", "list file", "watch file", "make_dir over file", "write folder"])
def test_the_wrong_kind_is_an_invalid_argument(box, act):
    with pytest.raises(InvalidArgumentException):
        act(box.files)


@pytest.mark.parametrize("act", [
    lambda files: files.read("/etc/passwd", user="nobody-here"),
    lambda files: files.list("/etc", user="nobody-here"),
    lambda files: files.write("/tmp/x", "x", user="nobody-here"),
], ids=["read", "list", "write"])
def test_an_unknown_user_is_refused(box, act):
    with pytest.raises(AuthenticationException):
        act(box.files)


def test_a_full_disk_is_told(new_box):
    sandbox = new_box()
    free = int(sandbox.commands.run("df -B1 --output=avail /home/user | tail -1").stdout)
    sandbox.commands.run(f"fallocate -l {free - (20 << 20)} /home/user/fill")
    with pytest.raises(NotEnoughSpaceException):
        sandbox.files.write("/home/user/more", io.BytesIO(b"x" * (100 << 20)))
    assert sandbox.commands.run("echo alive").stdout == "alive\n"
    sandbox.files.remove("/home/user/fill")
    sandbox.files.write("/home/user/more", "fits")


# --- watching ----------------------------------------------------------------


def events_until(watcher, wanted):
    """Polls the watcher until every (name, type) of wanted was seen."""
    seen = []

    def all_seen():
        seen.extend((event.name, event.type) for event in watcher.get_new_events())
        return set(wanted) <= set(seen) or None

    try:
        eventually(all_seen, 10, f"events {wanted}")
    except AssertionError as failure:
        raise AssertionError(f"{failure}; seen {seen}") from None
    return seen


def test_a_watch_reports_each_kind_of_change(box, folder):
    watcher = box.files.watch_dir(folder)
    box.files.write(f"{folder}/f", "x")
    box.commands.run(f"echo more >> {folder}/f; chmod 600 {folder}/f; mv {folder}/f {folder}/g; rm {folder}/g")
    kinds = FilesystemEventType
    events_until(watcher, [("f", kinds.CREATE), ("f", kinds.WRITE), ("f", kinds.CHMOD), ("f", kinds.RENAME), ("g", kinds.REMOVE)])
    watcher.stop()


def test_a_recursive_watch_sees_new_folders(box, folder):
    box.files.make_dir(f"{folder}/there")
    watcher = box.files.watch_dir(folder, recursive=True)
    box.files.write(f"{folder}/there/f", "x")
    box.files.make_dir(f"{folder}/new")
    events_until(watcher, [("there/f", FilesystemEventType.CREATE), ("new", FilesystemEventType.CREATE)])
    box.files.write(f"{folder}/new/g", "x")
    events_until(watcher, [("new/g", FilesystemEventType.WRITE)])
    watcher.stop()


def test_a_flat_watch_ignores_what_is_deeper(box, folder):
    box.files.make_dir(f"{folder}/there")
    watcher = box.files.watch_dir(folder)
    box.files.write(f"{folder}/there/f", "x")
    box.files.write(f"{folder}/last", "x")
    seen = events_until(watcher, [("last", FilesystemEventType.WRITE)])
    assert not any(name.startswith("there/") for name, _ in seen)
    watcher.stop()


def test_a_watch_can_carry_the_entry(box, folder):
    watcher = box.files.watch_dir(folder, include_entry=True)
    box.files.write(f"{folder}/f", "12345")

    def with_entry():
        return next((e for e in watcher.get_new_events() if e.name == "f" and e.entry and e.entry.size == 5), None)

    entry = eventually(with_entry, 10, "an event with the file's entry").entry
    assert (entry.name, entry.path) == ("f", f"{folder}/f")
    watcher.stop()


# --- signed URLs -------------------------------------------------------------


def http_status(request):
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read()


@pytest.mark.parametrize("expiration", [None, 60])
def test_a_signed_url_downloads_without_headers(box, folder, expiration):
    box.files.write(f"{folder}/f ü", "signed")
    assert http_status(box.download_url(f"{folder}/f ü", use_signature_expiration=expiration)) == (200, b"signed")


@pytest.mark.parametrize("expiration", [None, 60])
def test_a_signed_url_uploads_a_form(box, folder, expiration):
    url = box.upload_url(f"{folder}/up", use_signature_expiration=expiration)
    answer = httpx.post(url, files={"file": ("ignored.txt", b"from a form")})
    assert answer.status_code == 200 and answer.json()[0]["path"] == f"{folder}/up"
    assert box.files.read(f"{folder}/up") == "from a form"


def test_a_signed_url_serves_ranges(box, folder):
    box.files.write(f"{folder}/f", "0123456789")
    answer = httpx.get(box.download_url(f"{folder}/f"), headers={"Range": "bytes=2-4"})
    assert (answer.status_code, answer.text) == (206, "234")


def test_a_signed_url_names_a_user(box):
    box.files.write("/root/secret.txt", "for root", user="root")
    assert http_status(box.download_url("/root/secret.txt", user="root")) == (200, b"for root")


def signature_of_nothing(url):
    return url.split("&signature=")[0] + "&signature=v1_" + "A" * 43


@pytest.mark.parametrize("spoil", [
    lambda url: url.replace("signed-file", "other-file"),
    lambda url: url.split("&signature=")[0],
    signature_of_nothing,
    lambda url: url + "&signature_expiration=9999999999",
    lambda url: url + "&username=root",
], ids=["other path", "no signature", "wrong signature", "expiration added", "user added"])
def test_a_spoilt_signature_is_refused(box, spoil):
    box.files.write("/home/user/signed-file", "x")
    box.files.write("/home/user/other-file", "x")
    status, body = http_status(spoil(box.download_url("/home/user/signed-file")))
    assert status in (401, 403, 404), (status, body)


def test_a_download_signature_does_not_upload(box):
    box.files.write("/home/user/signed-file", "x")
    answer = httpx.post(box.download_url("/home/user/signed-file"), files={"file": ("f", b"changed")})
    assert answer.status_code in (401, 403, 404)
    assert box.files.read("/home/user/signed-file") == "x"


def test_an_expired_signature_is_refused(box):
    box.files.write("/home/user/signed-file", "x")
    status, body = http_status(box.download_url("/home/user/signed-file", use_signature_expiration=-10))
    assert status == 401 and b"expired" in body
