"""A git repository served over http by git's own program."""

import asyncio
import os
import subprocess

from starlette.responses import Response

NAME = "project.git"
_CLEAN = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1",
          "GIT_AUTHOR_NAME": "world", "GIT_AUTHOR_EMAIL": "world@code.example",
          "GIT_COMMITTER_NAME": "world", "GIT_COMMITTER_EMAIL": "world@code.example"}


def _git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, env=_CLEAN).stdout.strip()


class Repository:
    """A repository in folder with one commit, which may be fetched and pushed to."""

    def __init__(self, folder):
        self._folder = folder
        self.path = folder / NAME
        work = folder / "work"
        _git("init", "--quiet", "--bare", "--initial-branch=main", str(self.path))
        _git("-C", str(self.path), "config", "http.receivepack", "true")
        _git("init", "--quiet", "--initial-branch=main", str(work))
        (work / "hello.txt").write_text("hello from git\n")
        _git("-C", str(work), "add", ".")
        _git("-C", str(work), "commit", "--quiet", "-m", "Say hello")
        _git("-C", str(work), "push", "--quiet", str(self.path), "main")

    def branches(self):
        return _git("-C", str(self.path), "for-each-ref", "--format=%(refname:short)", "refs/heads").split()

    async def answer(self, request):
        """Answers a request below /git/ by `git http-backend`."""
        body = await request.body()
        variables = _CLEAN | {
            "GIT_PROJECT_ROOT": str(self._folder), "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": "/" + request.path_params["rest"], "QUERY_STRING": request.url.query,
            "REQUEST_METHOD": request.method, "REMOTE_USER": "world", "REMOTE_ADDR": "192.0.2.1",
            "CONTENT_TYPE": request.headers.get("content-type", ""), "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
        }
        process = await asyncio.create_subprocess_exec(
            "git", "http-backend", env=variables,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL)
        output, _ = await process.communicate(body)
        head, _, content = output.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        return Response(content, status_code=int(headers.pop("Status", "200").split()[0]), headers=headers)
