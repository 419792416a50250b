"""What one call of a target costs the gateway, by client: processor time and latency of one call.

A server in another process answers at once: a whole reply in one piece, or a stream of twenty
events. Each client has the interface of the gateway's `ConnectionPool`, so that it could take its
place.

    python -m benchmarks.upstream_connections [--rounds 5] [--calls 1000]
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, final

import aiohttp
import httptools
import httpx2
import uvloop
from multidict import CIMultiDict
from yarl import URL

from benchmarks._system import machine
from prefill_router import files
from prefill_router_gateway.proxy.client_connection import ClientConnection
from prefill_router_gateway.proxy.connections import IDLE_SECONDS, ConnectionPool
from prefill_router_gateway.proxy.proxied_connections import ProxiedConnections
from prefill_router_gateway.proxy.response_stream import ResponseStream
from prefill_router_gateway.records import Header

RESULTS = Path(__file__).parent / "results"
EVENTS = 20
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Why? " * 40}]}).encode()
ANSWERS = {
    "whole": json.dumps({"choices": [{"message": {"content": "word " * EVENTS}}]}).encode(),
    "stream": b"".join(
        b"data: %s\n\n" % json.dumps({"choices": [{"delta": {"content": "word "}}]}).encode()
        for _ in range(EVENTS)
    ),
}
HEADERS = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]


async def serve(ready: Connection) -> None:
    """Answer for ever; the path says how."""
    events = [event + b"\n\n" for event in ANSWERS["stream"].split(b"\n\n")[:-1]]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                if b"/stream " in head:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
                    writer.write(b"transfer-encoding: chunked\r\n\r\n")
                    for event in events:
                        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                        await asyncio.sleep(0)
                    writer.write(b"0\r\n\r\n")
                else:
                    kind = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                    size = b"content-length: %d\r\n\r\n" % len(ANSWERS["whole"])
                    writer.write(kind + size + ANSWERS["whole"])
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def run_server(ready: Connection) -> None:
    """The other process."""
    asyncio.run(serve(ready))


@final
class AiohttpConnections:
    """Calls one provider as `ConnectionPool` does, with aiohttp: a prototype to compare with."""

    def __init__(self, url: httpx2.URL, *, connect_seconds: float) -> None:
        self._url = url
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds)
        self._opened: aiohttp.ClientSession | None = None

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout,
                skip_auto_headers=("user-agent", "accept", "content-type"),
            )
        return self._opened

    async def call(
        self,
        method: bytes,
        path: bytes,
        headers: list[Header],
        body: bytes,
        *,
        client: ClientConnection,
        fresh: bool,
    ) -> ResponseStream:
        """As `ConnectionPool.call`, but failures to connect are reported by the stream."""
        del client, fresh
        may_read = asyncio.Event()
        may_read.set()
        stream = ResponseStream(
            stop=lambda: task.cancel(),
            pause=lambda on: may_read.clear() if on else may_read.set(),
        )
        request = self._session().request(
            method.decode(),
            URL(str(self._url.copy_with(raw_path=path)), encoded=True),
            data=body or None,
            headers=CIMultiDict(
                (name.decode(), value.decode("latin-1")) for name, value in headers
            ),
            allow_redirects=False,
        )
        task = asyncio.get_running_loop().create_task(_pass_on(request, stream, may_read))
        return stream

    async def close(self) -> None:
        """Close the session."""
        if self._opened is not None:
            await self._opened.close()


async def _pass_on(request: Any, stream: ResponseStream, may_read: asyncio.Event) -> None:
    try:
        async with request as response:
            headers = [(name.lower(), value) for name, value in response.raw_headers]
            stream.begin(response.status, headers)
            async for piece in response.content.iter_any():
                stream.put(piece)
                await may_read.wait()
            stream.end()
    except aiohttp.ClientConnectorError:
        stream.fail("connect")
    except (aiohttp.ClientResponseError, ValueError):
        stream.fail("broken_off" if stream.status else "malformed")
    except (aiohttp.ClientError, OSError):
        stream.fail("broken_off")


Connections = ConnectionPool | ProxiedConnections | AiohttpConnections


def ways(port: int) -> dict[str, Connections]:
    """The clients, each with a connection that it keeps."""
    url = httpx2.URL(f"http://127.0.0.1:{port}")
    return {
        "asyncio and httptools": ConnectionPool(url, connect_seconds=10.0, context=None),
        "aiohttp": AiohttpConnections(url, connect_seconds=10.0),
        "httpx2": ProxiedConnections(url, connect_seconds=10.0),
    }


async def _nothing(*_: Any) -> Any:
    """Nobody is there to leave."""


async def call(connections: Connections, what: str) -> None:
    """Make one call, read its answer, and make sure that it is the one that was sent."""
    stream = await connections.call(
        b"POST",
        b"/" + what.encode(),
        HEADERS,
        BODY,
        client=ClientConnection(_nothing, _nothing),
        fresh=False,
    )
    stream.limit(stream.began + 60.0, "answer_timeout")
    await stream.head()
    pieces: list[bytes] = []
    while piece := await stream.piece():
        pieces.append(piece)
    stream.close()
    if b"".join(pieces) != ANSWERS[what]:
        raise RuntimeError("an answer isn't what was sent")


async def microseconds(connections: Connections, what: str, calls: int) -> tuple[float, float]:
    """The processor time of one call in this process, and its median latency."""
    latencies: list[float] = []
    begin = time.process_time()
    for _ in range(calls):
        sent = time.perf_counter()
        await call(connections, what)
        latencies.append(time.perf_counter() - sent)
    return (time.process_time() - begin) / calls * 1e6, median(latencies) * 1e6


async def measure(port: int, rounds: int, calls: int) -> dict[str, Any]:
    """The least of all rounds of each way, by what is measured and sent; they take turns."""
    clients = ways(port)
    measured: dict[tuple[str, str, str], list[float]] = {}
    for way in clients.values():
        for what in ANSWERS:
            await microseconds(way, what, 50)
    for _ in range(rounds):
        for what in ANSWERS:
            for name, way in clients.items():
                both = await microseconds(way, what, calls)
                for kind, value in zip(("processor", "latency"), both, strict=True):
                    measured.setdefault((kind, what, name), []).append(value)
    for way in clients.values():
        await way.close()
    least: dict[str, Any] = {}
    for (kind, what, name), values in measured.items():
        least.setdefault(kind, {}).setdefault(what, {})[name] = round(min(values), 1)
    return least


def main() -> None:
    """Measure, print, and write benchmarks/results/upstream_connections.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=1000)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=run_server, args=(theirs,), daemon=True)
    server.start()
    port = ours.recv()
    microseconds = {
        name: runner(measure(port, options.rounds, options.calls))
        for name, runner in {"asyncio": asyncio.run, "uvloop": uvloop.run}.items()
    }
    server.terminate()
    result: dict[str, Any] = {
        "what": f"microseconds of one call, by event loop; a stream has {EVENTS} events",
        "microseconds": microseconds,
        "machine": {
            **machine(),
            "aiohttp": aiohttp.__version__,
            "httptools": httptools.__version__,
            "httpx2": httpx2.__version__,
            "load_average": round(os.getloadavg()[0], 2),
        },
    }
    files.write_json(RESULTS / "upstream_connections.json", result)
    print(result)


if __name__ == "__main__":
    main()
