"""A guarded application behind uvicorn on loopback, and a client that sends raw requests."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from prefill_router_gateway.guard import KEY, ClientKey, ClientKeys, Guard, guarded_config
from prefill_router_gateway.guard.key_file import digest
from prefill_router_gateway.settings import LimitSettings, ListenSettings

JSON = ("content-type", "application/json")
Pairs = Sequence[tuple[str, str]]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


@dataclass
class GuardedServer:
    port: int
    guard: Any
    requests: list[tuple[str, str, bytes, str | None]]
    refusal_statuses: list[int] = field(default_factory=list)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def ask(
        self,
        method: str,
        path: str,
        headers: Pairs = (),
        body: bytes | None = None,
        *,
        host: str | None = "127.0.0.1",
    ) -> Reply:
        with self.connect() as sock:
            sock.sendall(build_request(method, path, headers, body, host=host))
            return read_reply(sock, method)

    def post(
        self, path: str = "/v1/chat/completions", headers: Pairs = (), body: bytes = b"{}"
    ) -> Reply:
        return self.ask("POST", path, (JSON, *headers), body)


def build_request(
    method: str,
    path: str,
    headers: Pairs = (),
    body: bytes | None = None,
    *,
    host: str | None = "127.0.0.1",
) -> bytes:
    head_fields = [*([("host", host)] if host is not None else []), *headers]
    if body is not None:
        head_fields.append(("content-length", str(len(body))))
    head = "".join(f"{name}: {value}\r\n" for name, value in head_fields)
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + (body or b"")


def read_reply(sock: socket.socket, method: str = "GET") -> Reply:
    reply = http.client.HTTPResponse(sock, method=method)
    reply.begin()
    headers = {name.lower(): value for name, value in reply.getheaders()}
    return Reply(reply.status, headers, reply.read())


def build_key(name: str, secret: str, **fields: Any) -> ClientKey:
    return ClientKey(name=name, sha256=digest(secret), **fields)


def bearer_header(secret: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {secret}")


class Echo:
    """Records its requests. Its replies claim to be open to every site."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes, str | None]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"] if scope["method"] != "GET" else b""
        key = scope[KEY]
        self.requests.append((scope["method"], scope["path"], body, key and key.name))
        headers = [(b"access-control-allow-origin", b"*"), (b"x-frame-options", b"ALLOWALL")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


@contextmanager
def serve_app(app: ASGIApp, **options: Any) -> Iterator[int]:
    """Run uvicorn in a thread; yields its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    options = {"header_bytes": 65536, **options}
    config = guarded_config(app, log_config=None, access_log=False, lifespan="off", **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextmanager
def serve_guarded(
    app: ASGIApp | None = None,
    *,
    keys: Sequence[ClientKey] | None = None,
    limits: LimitSettings | None = None,
    listen: ListenSettings | None = None,
    body_seconds: float = 60.0,
    **options: Any,
) -> Iterator[GuardedServer]:
    echo = Echo()
    statuses: list[int] = []
    guard = Guard(
        app or echo,
        listen=listen or ListenSettings(),
        limits=limits or LimitSettings(),
        keys=None if keys is None else ClientKeys(keys),
        body_seconds=body_seconds,
        on_refusal=lambda refusal, _: statuses.append(refusal.status),
    )
    with serve_app(guard, **options) as port:
        yield GuardedServer(port, guard, echo.requests, statuses)
