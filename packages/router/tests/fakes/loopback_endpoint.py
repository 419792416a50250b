"""An endpoint on loopback that sends the bytes of a script, one script for each request."""

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from prefill_router.data import Prompt
from prefill_router.endpoints import Reply, Upstream
from prefill_router.errors import UpstreamError
from prefill_router.targets import Pool, Provider, RequestOptions, Target

HANG, BREAK = "hang", "break"
Piece = bytes | float | str
"""Bytes to send, seconds to wait, or HANG or BREAK."""


@dataclass(frozen=True)
class Script:
    pieces: Sequence[Piece]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"


@dataclass
class ReceivedRequest:
    """One request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def events(*chunks: Mapping[str, Any], done: bool = True) -> list[Piece]:
    pieces: list[Piece] = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    return [*pieces, b"data: [DONE]\n\n"] if done else pieces


def plain(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Script:
    return Script([json.dumps(value).encode()], status, headers or {}, "application/json")


def delta(content: str | None = None, *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    fields = {**({} if content is None else {"content": content}), **more}
    return {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny-2",
        "choices": [{"index": 0, "delta": fields, "finish_reason": finish}],
    }


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
GOOD = Script(events(delta("4"), delta(finish="stop"), {"choices": [], "usage": USAGE}))


class Endpoint:
    """Gives each request the next script, and the last one over and over."""

    def __init__(self, *scripts: Script, context: ssl.SSLContext | None = None) -> None:
        self._scripts = list(scripts)
        self._context = context
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self.most_at_once = 0
        self._at_once = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Endpoint":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        port = self._server.sockets[0].getsockname()[1]
        scheme = "https" if self._context else "http"
        self.base_url = f"{scheme}://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task: asyncio.Task[None] | None = asyncio.current_task()
        self._tasks += [task] if task else []
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append(ReceivedRequest(head[0].split(" ")[1], headers, body))
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
            return await self._send(script, writer)
        finally:
            self._at_once -= 1

    async def _send(self, script: Script, writer: asyncio.StreamWriter) -> bool:
        lines = [
            f"HTTP/1.1 {script.status} Told",
            f"content-type: {script.content_type}",
            "transfer-encoding: chunked",
            *(f"{name}: {value}" for name, value in script.headers.items()),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for piece in script.pieces:
            if isinstance(piece, bytes):
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
                await asyncio.sleep(0)
            elif isinstance(piece, float):
                await asyncio.sleep(piece)
            elif piece == BREAK:
                return False
            else:
                await asyncio.sleep(3600)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def pool_of(
    base_url: str, *, request: RequestOptions | None = None, model: str = "tiny", **options: Any
) -> Pool:
    provider = Provider(name="here", base_url=base_url, **{"dialect": "vllm", **options})
    target = Target(name=model, provider="here", request=request or RequestOptions(max_tokens=64))
    return Pool((target,), providers=(provider,))


async def ask_endpoint(
    endpoint: Endpoint,
    prompt: Prompt = "What is 2 + 2?",
    *,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Reply | UpstreamError:
    """The reply, or the error in its place."""
    pool = pool_of(endpoint.base_url, **options)
    async with Upstream(pool, environment=environment or {}) as upstream:
        try:
            return await upstream.ask(pool.names[0], prompt)
        except UpstreamError as error:
            return error


def ask(script: Script, prompt: Prompt = "What is 2 + 2?", **options: Any) -> Reply | UpstreamError:
    async def run() -> Reply | UpstreamError:
        async with Endpoint(script) as endpoint:
            return await ask_endpoint(endpoint, prompt, **options)

    return asyncio.run(run())


def answer(script: Script, prompt: Prompt = "What is 2 + 2?", **options: Any) -> Reply:
    reply = ask(script, prompt, **options)
    assert isinstance(reply, Reply), reply
    return reply


def failure(script: Script, prompt: Prompt = "What is 2 + 2?", **options: Any) -> UpstreamError:
    error = ask(script, prompt, **options)
    assert isinstance(error, UpstreamError), error
    return error
