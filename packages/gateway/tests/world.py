"""What clients' tests share: targets with scripts, gateways before them, and requests."""

import asyncio
import atexit
import json
import shutil
import socketserver
import tempfile
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from packages.gateway.tests.scripted_target import ANSWER, json_reply
from packages.gateway.tests.server_process import (
    TARGETS,
    GatewayFiles,
    GatewayThread,
    complexity_router,
    gateway_thread,
)
from prefill_router_gateway import Receipt

CHEAP, MIDDLE, EXPENSIVE = TARGETS
CHATS = "/v1/chat/completions"
PATIENCE = 120.0
"""Seconds after which a test stops waiting."""
HEADER = "x-prefill-router-"
PRICES = {
    name: {"input_price": price, "output_price": 4 * price}
    for name, price in zip(TARGETS, (0.1, 0.4, 1.6), strict=True)
}
T = TypeVar("T")


@cache
def router_folder(queries: int = 200) -> Path:
    """A router that reads texts' complexity: its encoder's process loads no network."""
    folder = Path(tempfile.mkdtemp(prefix="router-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    complexity_router(queries).save(folder / "router")
    return folder / "router"


@dataclass
class TargetRequest:
    """A request that a target received."""

    path: str
    headers: dict[str, str]
    body: bytes
    method: str = "POST"

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class FakeTarget:
    """A target on a port of its own: gives each request the next script, or else the usual script.

    A script is pieces of bytes. `None` among them: no more comes until the client leaves; an event:
    what follows comes once it is set.
    """

    def __init__(self, usual: Sequence[Any] | None = None) -> None:
        self.usual: Sequence[Any] = usual or json_reply(ANSWER)
        self.next: deque[Sequence[Any]] = deque()
        self.requests: list[TargetRequest] = []
        self.request_arrived = threading.Semaphore(0)
        self.client_left = threading.Semaphore(0)
        target = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                try:
                    while target._answer(self):
                        pass
                except OSError:
                    pass

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def then(self, *scripts: Sequence[Any]) -> "FakeTarget":
        """Give each of the next requests one of these scripts."""
        self.next.extend(scripts)
        return self

    def forget(self) -> None:
        """Remove all requests and scripts."""
        self.requests.clear()
        self.next.clear()
        while self.request_arrived.acquire(blocking=False):
            pass

    @property
    def request(self) -> TargetRequest:
        """The only request."""
        (request,) = self.requests
        return request

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, client: Any) -> bool:
        first = client.rfile.readline().decode().split()
        if not first:
            return False
        headers = {}
        while line := client.rfile.readline().decode("latin-1").strip():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        body = client.rfile.read(int(headers.get("content-length", "0")))
        script = self.next.popleft() if self.next else self.usual
        self.requests.append(TargetRequest(first[1], headers, body, first[0]))
        self.request_arrived.release()
        for piece in script:
            if isinstance(piece, threading.Event):
                piece.wait(PATIENCE)
            elif piece is None:
                client.rfile.read(1)
                self.client_left.release()
                return False
            else:
                client.wfile.write(piece)
        last = script[-1] if script else b""
        return last.endswith(b"0\r\n\r\n") or b"content-length" in script[0].lower()


@dataclass
class World:
    """Targets, and the files of a gateway before them."""

    files: GatewayFiles
    targets: dict[str, FakeTarget]
    keys: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> FakeTarget:
        return self.targets[name]

    def forget(self) -> None:
        for target in self.targets.values():
            target.forget()

    def requested_targets(self) -> list[str]:
        """The name of the target of each request, in the order of the pool."""
        return [name for name, target in self.targets.items() for _ in target.requests]

    def write_pool(self, rows: Mapping[str, Mapping[str, Any]], **more: Any) -> None:
        self.files.pool.write_text(pool_text(rows, self.targets, **more))


def pool_text(
    rows: Mapping[str, Mapping[str, Any]], targets: Mapping[str, FakeTarget], **more: Any
) -> str:
    """A pool file: every row's target, at its own address."""
    entries = [
        {
            "name": name,
            **({} if {"provider", "base_url"} & set(row) else {"base_url": targets[name].url}),
            **row,
        }
        for name, row in rows.items()
    ]
    return yaml.safe_dump({**more, "targets": entries}, sort_keys=False)


@contextmanager
def make_world(
    folder: Path,
    rows: Mapping[str, Mapping[str, Any]] = PRICES,
    *,
    settings: Mapping[str, Any] | None = None,
    keys: Sequence[Mapping[str, Any]] | None = None,
    dialects: Mapping[str, str] | None = None,
    router: Path | None = None,
) -> Iterator[World]:
    """Targets, and the files of a gateway before them.

    Args:
        folder: Where the files go.
        rows: What the pool file says of each target, by name.
        settings: Of the gateway; it waits for forecasts, unless they say otherwise.
        keys: Rows of the file of keys.
        dialects: Of the targets that have a provider, whose name is theirs.
        router: The router's folder; None for that of `router_folder`.
    """
    targets = {name: FakeTarget() for name in rows}
    providers = [
        {"name": name, "base_url": targets[name].url, "dialect": dialect, "api_key_env": "LAB_KEY"}
        for name, dialect in (dialects or {}).items()
    ]
    rows = {n: {**r, "provider": n} if n in (dialects or {}) else r for n, r in rows.items()}
    more = {"providers": providers} if providers else {}
    files = GatewayFiles(
        folder, router or router_folder(), folder / "pool.yaml", folder / "gateway.yaml"
    )
    files.pool.write_text(pool_text(rows, targets, **more))
    routing = {"deadline_seconds": PATIENCE, **(settings or {}).get("routing", {})}
    files.configure({"logs": {"level": "warning"}, **(settings or {}), "routing": routing})
    key_file = None if keys is None else folder / "keys.yaml"
    if key_file is not None:
        key_file.write_text(yaml.safe_dump({"keys": [dict(key) for key in keys or ()]}))
    try:
        yield World(files, targets, key_file, {"LAB_KEY": "sk-lab"})
    finally:
        for target in targets.values():
            target.close()


@dataclass
class Reply:
    """A reply of the gateway."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    def own_header(self, name: str) -> str | None:
        """One of the gateway's own headers."""
        return self.headers.get(HEADER + name)


def ask(
    url: str,
    path: str = CHATS,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """One request: POST where there is a body, else GET."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    fields = {"content-type": "application/json", **(headers or {})}
    request = urllib.request.Request(url + path, data=data, headers=fields)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return Reply(reply.status, _lower(reply.headers), reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, _lower(error.headers), error.read())


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def chat(model: str = "auto", text: Any = "hi", **more: Any) -> dict[str, Any]:
    """The body of a chat."""
    return {"model": model, "messages": [user(text)], **more}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


class LocalGateway:
    """A gateway in a thread, before the targets of a world."""

    def __init__(self, run: GatewayThread) -> None:
        self.url, self.gateway = run.url, run.gateway
        self._loop = run.loop

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine in the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    def call_in_gateway(self, function: Callable[[], Any]) -> None:
        """Call a function in the gateway's thread."""
        self._loop.call_soon_threadsafe(function)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds in the gateway's thread."""

        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0.01)

        self.wait_for(wait())

    def ask(self, path: str = CHATS, body: Any = None, **headers: str) -> Reply:
        """One request; headers are the gateway's own, but for the session's and the key's."""
        fields = {n: v for n, v in headers.items() if n in ("authorization", "x-session-id")}
        own = {HEADER + n.replace("_", "-"): v for n, v in headers.items() if n not in fields}
        return ask(self.url, path, body, {**fields, **own})

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts of the requests that ended, the latest last."""

        async def read() -> list[Receipt]:
            return self.gateway.recent.all()

        return self.wait_for(read())


@contextmanager
def serve_world(world: World) -> Iterator[LocalGateway]:
    """Start a gateway in a thread, with all its parts but the command line."""
    paths = world.files.paths(keys=world.keys, threads=1)
    with gateway_thread(paths, environment=world.environment) as run:
        yield LocalGateway(run)
