"""A target on loopback that sends a script, and an application that forwards to it."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from prefill_router.endpoints import Breakers
from prefill_router.targets import Dialect, Pool, Provider, Target
from prefill_router_gateway import ForwardRequest, Header
from prefill_router_gateway.proxy import NO_FIXES, BodyFixes, FixedBody, Forwarder
from prefill_router_gateway.records import RequestOutcome, TargetAttempt
from prefill_router_gateway.settings import FailureSettings

HANG = None
"""In place of bytes: nothing more comes until the client leaves."""
PAUSE = b""
"""In place of bytes: `pause_seconds` pass."""
Script = Sequence[bytes | None]
QUICK = FailureSettings(backoff_seconds=0.0)
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


def body_reply(
    body: bytes, *, status: int = 200, kind: str = "application/json", headers: str = ""
) -> Script:
    """A reply in one piece."""
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    return [f"{head}{headers}\r\n".encode() + body]


def json_reply(value: object, *, status: int = 200, headers: str = "") -> Script:
    """A JSON reply."""
    return body_reply(json.dumps(value).encode(), status=status, headers=headers)


def chunked_reply(pieces: Iterable[bytes | None], *, headers: str = "", end: bool = True) -> Script:
    """A stream of events, each piece in a chunk of its own."""
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    script: list[bytes | None] = [f"{head}transfer-encoding: chunked\r\n{headers}\r\n".encode()]
    script += [p if p is None else b"%x\r\n%b\r\n" % (len(p), p) for p in pieces]
    return [*script, b"0\r\n\r\n"] if end else script


class Fake:
    """Gives each request the next script, and the last script over and over.

    With `closes`, each connection is closed after its first reply, whatever that was.
    """

    def __init__(
        self, *scripts: Script, closes: bool = False, context: ssl.SSLContext | None = None
    ) -> None:
        self._context = context
        self._scripts, self._closes = list(scripts), closes
        self._writers: list[asyncio.StreamWriter] = []
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.pause_seconds = 0.5
        self.request_arrived = asyncio.Event()
        self.client_left = asyncio.Event()

    async def __aenter__(self) -> "Fake":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        scheme = "https" if self._context else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.sleep(0)

    def close_idle(self) -> None:
        """Close every connection."""
        while self._writers:
            self._writers.pop().close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._answer(head, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append((first.split()[1], headers, body))
        self.request_arrived.set()
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        for piece in script:
            if piece is HANG:
                await reader.read(1)
                self.client_left.set()
                raise ConnectionError
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0 if piece else self.pause_seconds)
        if self._closes or not script or not _is_ended(script):
            raise ConnectionError


def _is_ended(script: Script) -> bool:
    """Whether the reply says where it ends, so that another request may follow."""
    reply = b"".join(piece or b"" for piece in script)
    head, _, body = reply.partition(b"\r\n\r\n")
    match = re.search(rb"content-length: (\d+)", head)
    return reply.endswith(b"0\r\n\r\n") if match is None else len(body) >= int(match[1])


class Gateway:
    """An application that forwards each request to the same targets, and keeps the outcomes."""

    def __init__(
        self,
        forwarder: Forwarder,
        breakers: Breakers,
        *,
        bodies: Callable[[str], bytes] | None = None,
        **call: Any,
    ) -> None:
        self._bodies = bodies
        self.forwarder, self.breakers, self._call = forwarder, breakers, call
        self.outcomes: list[RequestOutcome] = []
        self.ended = asyncio.Event()
        self.on_outcome: Callable[[], object] = lambda: None

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        """Forward one request."""
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        fields: dict[str, Any] = {
            "endpoint": "chat",
            "order": self.forwarder_names,
            "stream": b'"stream":true' in body,
            "body": FixedBody(body) if self._bodies is None else BodyByTarget(self._bodies),
            "headers": [(b"user-agent", b"tests")],
            "input_tokens": 5,
        }
        request = ForwardRequest(**{**fields, **self._call})
        with self.forwarder.call(request, receive, send) as call:
            try:
                await call.find_answer(lambda: own_headers(None, ()))
                request.body.release()
                await call.send_until_end(own_headers(call.target, call.attempts))
            finally:
                self._finish(call.outcome())
                await call.send_end()

    @property
    def forwarder_names(self) -> tuple[str, ...]:
        """The targets, in the pool's order."""
        return tuple(self.forwarder.state())

    def _finish(self, outcome: RequestOutcome) -> None:
        self.outcomes.append(outcome)
        self.ended.set()
        self.on_outcome()

    @property
    def outcome(self) -> RequestOutcome:
        """The only outcome."""
        (outcome,) = self.outcomes
        return outcome

    @property
    def ends(self) -> list[tuple[str, str]]:
        """Target and end of each attempt of the only outcome."""
        return [(attempt.target, attempt.end) for attempt in self.outcome.attempts]


class BodyByTarget:
    """A body for each target, made by a function of its name."""

    def __init__(self, make: Callable[[str], bytes]) -> None:
        self._make = make

    def for_target(self, name: str, fixes: BodyFixes = NO_FIXES) -> bytes:  # noqa: ARG002
        """The body for a target."""
        return self._make(name)

    def release(self) -> None:
        """Do nothing: it holds no body."""


def own_headers(target: str | None, attempts: tuple[TargetAttempt, ...]) -> list[Header]:
    """The headers that the gateway would add."""
    return [(b"x-own", f"{target} {len(attempts)}".encode())]


def plain_headers(headers: list[Header]) -> list[Header]:
    """All headers go on."""
    return headers


def pool_of(*urls: str, dialect: Dialect = "openai", key: str | None = None) -> Pool:
    """Targets a, b, ... at these addresses."""
    names = [chr(ord("a") + place) for place in range(len(urls))]
    providers = tuple(
        Provider(name=name, base_url=f"{url}/v1", dialect=dialect, api_key_env=key)
        for name, url in zip(names, urls, strict=True)
    )
    return Pool(tuple(Target(name=n, provider=n) for n in names), None, providers)


@asynccontextmanager
async def gateway(
    *fakes: Fake | str,
    failures: FailureSettings = QUICK,
    breakers: Breakers | None = None,
    pool: Callable[..., Pool] = pool_of,
    environment: dict[str, str] | None = None,
    keep_alive_seconds: float | None = None,
    **call: Any,
) -> AsyncIterator[Gateway]:
    """An application before these targets."""
    urls = [fake if isinstance(fake, str) else fake.url for fake in fakes]
    breakers = breakers or Breakers(
        failures=failures.breaker_failures, seconds=failures.breaker_seconds
    )
    forwarder = Forwarder(
        pool(*urls),
        failures=failures,
        breakers=breakers,
        passing=plain_headers,
        environment=environment or {},
        keep_alive_seconds=keep_alive_seconds,
    )
    try:
        yield Gateway(forwarder, breakers, **call)
    finally:
        await forwarder.close()


class ScriptedClient:
    """A client without a network: sends a body, and keeps the reply."""

    def __init__(self, body: bytes = CHAT) -> None:
        self._body: bytes | None = body
        self._leaving = asyncio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.body_arrived = asyncio.Event()
        self.is_over = False

    @property
    def body(self) -> bytes:
        """The whole body of the reply."""
        return b"".join(self.pieces)

    def leave(self) -> None:
        """Disconnect."""
        self._leaving.set()

    async def receive(self) -> dict[str, Any]:
        """Of ASGI."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._leaving.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """Of ASGI."""
        if self._leaving.is_set():
            raise OSError("gone")
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in message["headers"]}
            return
        self.pieces.append(message["body"])
        self.is_over = not message["more_body"]
        if message["body"]:
            self.body_arrived.set()

    async def ask(self, app: Gateway) -> "ScriptedClient":
        """Ask, and wait for the end of the reply."""
        await app({"type": "http"}, self.receive, self.send)
        return self


@asynccontextmanager
async def serve_app(app: Any) -> AsyncIterator[str]:
    """Uvicorn on a free port; its address."""
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


def event(value: object) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def delta(text: str | None = None, *, finish: str | None = None, **more: Any) -> bytes:
    """An event of a chat."""
    fields = {**({} if text is None else {"content": text}), **more}
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return event({"id": "c-1", "object": "chat.completion.chunk", "choices": [choice]})


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
COUNTS = event({"id": "c-1", "choices": [], "usage": USAGE})
GOOD = (delta("4"), delta("2"), delta(finish="stop"), COUNTS, DONE)
STREAM = CHAT.replace(b"{", b'{"stream":true,', 1)
ANSWER = {
    "id": "c-2",
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}
    ],
    "usage": USAGE,
}


GOOD_REPLY = json_reply(ANSWER)
ERROR = {"error": {"message": "secret words", "type": "server_error", "code": None}}


def ask_targets(
    *fakes: list[Script], body: bytes = CHAT, **options: Any
) -> tuple[ScriptedClient, Gateway, list[int]]:
    """Ask targets with these scripts; also returns how many requests each got."""

    async def ask() -> tuple[ScriptedClient, Gateway, list[int]]:
        targets = [await Fake(*scripts).__aenter__() for scripts in fakes]
        async with gateway(*targets, **options) as app:
            client = await ScriptedClient(body).ask(app)
        for fake in targets:
            await fake.__aexit__()
        return client, app, [len(fake.requests) for fake in targets]

    return asyncio.run(ask())
