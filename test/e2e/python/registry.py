"""A small registry of OCI images, and the images in it."""

import base64
import contextlib
import gzip
import hashlib
import http.server
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Registry:
    """Serves what was pushed over http on a free loopback port. With a login,
    "user:password", it wants that for everything."""

    def __init__(self, login=None):
        self.blobs, self.manifests, self.asked = {}, {}, []
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                registry.answer(self, login)

            do_HEAD = do_GET

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"

    def answer(self, request, login):
        self.asked.append(request.path)
        status, kind, body = 404, "application/json", json.dumps({"errors": [{"code": "NAME_UNKNOWN", "message": "no such thing"}]}).encode()
        want = login and "Basic " + base64.b64encode(login.encode()).decode()
        if want and request.headers.get("Authorization") != want:
            status, body = 401, b'{"errors":[{"code":"UNAUTHORIZED","message":"log in"}]}'
        elif request.path == "/v2/":
            status, body = 200, b"{}"
        elif at := re.fullmatch(r"/v2/(.+)/manifests/(.+)", request.path):
            if found := self.manifests.get(at.groups()):
                status, (kind, body) = 200, found
        elif at := re.fullmatch(r"/v2/.+/blobs/(.+)", request.path):
            if at[1] in self.blobs:
                status, kind, body = 200, "application/octet-stream", self.blobs[at[1]]
        request.send_response(status)
        if status == 401:
            request.send_header("WWW-Authenticate", 'Basic realm="tests"')
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        if kind in (MANIFEST, INDEX):
            request.send_header("Docker-Content-Digest", digest(body))
        request.end_headers()
        if request.command != "HEAD":
            with contextlib.suppress(ConnectionError):
                request.wfile.write(body)

    def push(self, name, layers, config=None, tag="latest", architecture="amd64"):
        """Adds an image of layers, each the bytes of a tar archive, and returns
        its reference."""
        packed = [gzip.compress(layer, 1) for layer in layers]
        text = json.dumps({
            "os": "linux", "architecture": architecture, "config": config or {},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
        }).encode()
        manifest = json.dumps({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "size": len(text), "digest": digest(text)},
            "layers": [{"mediaType": LAYER, "size": len(blob), "digest": digest(blob)} for blob in packed],
        }).encode()
        self.blobs |= {digest(blob): blob for blob in (text, *packed)}
        self.manifests[name, tag] = self.manifests[name, digest(manifest)] = (MANIFEST, manifest)
        return f"{self.host}/{name}:{tag}"

    def push_index(self, name, platforms, tag="latest"):
        """Adds an index of images that were pushed, by their architecture."""
        entries = []
        for architecture, other in platforms.items():
            kind, manifest = self.manifests[other, "latest"]
            self.manifests[name, digest(manifest)] = (kind, manifest)
            entries.append({"mediaType": kind, "size": len(manifest), "digest": digest(manifest), "platform": {"os": "linux", "architecture": architecture}})
        index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
        self.manifests[name, tag] = (INDEX, index)
        return f"{self.host}/{name}:{tag}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def layer(*members):
    """A tar archive of (path, content) or (path, content, attributes of a
    tarfile.TarInfo): text makes a file, None leaves the kind to the attributes.
    A path ending in "/" is a folder."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content, *attributes in members:
            info = tarfile.TarInfo(path)
            info.mode = 0o644
            if path.endswith("/"):
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            for name, value in (attributes[0] if attributes else {}).items():
                setattr(info, name, value)
            data = (content or "").encode()
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return archive.getvalue()


def programs(*names):
    """A layer with programs of this machine, dash as /bin/sh, and the libraries
    they need."""
    files = {f"bin/{name}": os.path.realpath(shutil.which(name)) for name in names}
    files["bin/sh"] = os.path.realpath(shutil.which("dash"))
    for program in list(files.values()):
        for library in re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", program], capture_output=True, text=True).stdout):
            files[library.lstrip("/")] = os.path.realpath(library)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, file in sorted(files.items()):
            tar.add(file, path)
    return archive.getvalue()
