"""A tiny index of Python packages and a tiny registry of Node packages. Each has one
package, `worldly`, which says hello."""

import base64
import hashlib
import io
import json
import tarfile
import zipfile

NAME, VERSION = "worldly", "1.0.0"


def _wheel():
    info = f"{NAME}-{VERSION}.dist-info"
    files = {
        f"{NAME}/__init__.py": "def hello():\n    return 'hello from python'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: world\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _tarball():
    files = {
        "package/package.json": json.dumps({"name": NAME, "version": VERSION, "main": "index.js"}),
        "package/index.js": "exports.hello = () => 'hello from node'\n",
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content.encode()))
    return buffer.getvalue()


class Packages:
    def __init__(self):
        self._wheel, self._tarball = _wheel(), _tarball()
        self._wheel_name = f"{NAME}-{VERSION}-py3-none-any.whl"
        self._tarball_name = f"{NAME}-{VERSION}.tgz"

    def python(self, path):
        """A page or file of the index below /simple/, with its type; None where there is
        none."""
        if path.strip("/") == NAME:
            digest = hashlib.sha256(self._wheel).hexdigest()
            page = f'<!DOCTYPE html><a href="/simple/{NAME}/{self._wheel_name}#sha256={digest}">{self._wheel_name}</a>'
            return page.encode(), "text/html"
        if path == f"{NAME}/{self._wheel_name}":
            return self._wheel, "application/octet-stream"
        return None

    def node(self, path, base):
        """The same of the registry below base."""
        if path == NAME:
            digest = base64.b64encode(hashlib.sha512(self._tarball).digest()).decode()
            version = {"name": NAME, "version": VERSION, "main": "index.js",
                       "dist": {"tarball": f"{base}{NAME}/-/{self._tarball_name}", "integrity": f"sha512-{digest}"}}
            document = {"name": NAME, "dist-tags": {"latest": VERSION}, "versions": {VERSION: version}}
            return json.dumps(document).encode(), "application/json"
        if path == f"{NAME}/-/{self._tarball_name}":
            return self._tarball, "application/octet-stream"
        return None
