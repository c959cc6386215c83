"""E2B's way to run code, for comparison: a FastAPI app in front of a Jupyter
server, which speaks the lines of POST /execute that E2B's clients read.

    JUPYTER=http://127.0.0.1:8888 uvicorn jupyter_stack:app

It starts one Python kernel and keeps one WebSocket to it, as E2B's server does.
"""

import asyncio
import contextlib
import json
import os
import time
import uuid

import httpx
import websockets
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

JUPYTER = os.environ["JUPYTER"]
FIELDS = {"text/plain": "text", "text/html": "html", "image/png": "png", "application/json": "json"}


class Request(BaseModel):
    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class Kernel:
    """One kernel; runs take turns."""

    async def start(self):
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"{JUPYTER}/api/kernels", json={"name": "python3"})
            answer.raise_for_status()
        self.session = uuid.uuid4().hex
        address = JUPYTER.replace("http", "ws", 1)
        url = f"{address}/api/kernels/{answer.json()['id']}/channels?session_id={self.session}"
        self.socket = await websockets.connect(url, max_size=None)
        self.turn = asyncio.Lock()
        async for _ in self.run("pass"):
            pass

    async def run(self, code):
        """The lines of one run."""
        async with self.turn:
            message_id = uuid.uuid4().hex
            header = {"msg_id": message_id, "username": "e2b", "session": self.session, "msg_type": "execute_request", "version": "5.3"}
            content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
            await self.socket.send(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}))
            async for text in self.socket:
                message = json.loads(text)
                if message["parent_header"].get("msg_id") != message_id:
                    continue
                if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                    break
                if line := line_of(message["msg_type"], message["content"]):
                    yield json.dumps(line) + "\n"
        yield '{"type": "end_of_execution"}\n'


def line_of(kind, content):
    if kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content["execution_count"]}
    if kind == "stream":
        return {"type": content["name"], "text": content["text"], "timestamp": time.time_ns()}
    if kind in ("execute_result", "display_data"):
        named = {FIELDS[mime]: value for mime, value in content["data"].items() if mime in FIELDS}
        return {"type": "result", "is_main_result": kind == "execute_result", **named}
    if kind == "error":
        return {"type": "error", "name": content["ename"], "value": content["evalue"], "traceback": "\n".join(content["traceback"])}
    return None


kernel = Kernel()


@contextlib.asynccontextmanager
async def lifespan(_):
    await kernel.start()
    yield


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health():
    return "OK"


@app.post("/execute")
async def execute(request: Request):
    return StreamingResponse(kernel.run(request.code), media_type="application/x-ndjson")
