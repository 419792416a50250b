"""What one call of a target costs the gateway's process, by client: processor time of one call.

A server in another process answers at once: a whole reply in one piece, or a stream of twenty
events. Each way reads the whole answer and makes sure that it is the one that was sent.

    python -m benchmarks.target_client [--rounds 5] [--calls 1000]
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import httptools
import httpx2
import uvloop

from benchmarks._system import machine
from prefill_router import files
from prefill_router_gateway.proxy.connections import ClientConnection
from prefill_router_gateway.proxy.deployments import ConnectionPool

RESULTS = Path(__file__).parent / "results"
EVENTS = 20
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Why? " * 40}]}).encode()
SENT = {
    "whole": json.dumps({"choices": [{"message": {"content": "word " * EVENTS}}]}).encode(),
    "stream": b"".join(
        b"data: %s\n\n" % json.dumps({"choices": [{"delta": {"content": "word "}}]}).encode()
        for _ in range(EVENTS)
    ),
}
Way = Callable[[str], Awaitable[bytes]]


async def serve(ready: Connection) -> None:
    """Answer for ever; the path says how."""
    events = [event + b"\n\n" for event in SENT["stream"].split(b"\n\n")[:-1]]

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
                    told = b"content-length: %d\r\n\r\n" % len(SENT["whole"])
                    writer.write(kind + told + SENT["whole"])
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def run_server(ready: Connection) -> None:
    """The other process."""
    asyncio.run(serve(ready))


async def ways(port: int, opened: AsyncExitStack) -> dict[str, Way]:
    """The clients, each with a connection that it keeps."""
    url = f"http://127.0.0.1:{port}"
    theirs = await opened.enter_async_context(httpx2.AsyncClient(timeout=None))
    session = await opened.enter_async_context(aiohttp.ClientSession())
    ours = ConnectionPool(httpx2.URL(url), connect_seconds=10.0, context=None)
    opened.push_async_callback(ours.close)
    kind = {"content-type": "application/json", "accept-encoding": "identity"}
    headers = [(name.encode(), value.encode()) for name, value in kind.items()]

    async def by_httpx2(what: str) -> bytes:
        async with theirs.stream("POST", f"{url}/{what}", content=BODY, headers=kind) as reply:
            return b"".join([piece async for piece in reply.aiter_raw()])

    async def by_aiohttp(what: str) -> bytes:
        async with session.post(f"{url}/{what}", data=BODY, headers=kind) as reply:
            return b"".join([piece async for piece in reply.content.iter_any()])

    async def by_ours(what: str) -> bytes:
        client = ClientConnection(_nothing, _nothing)
        path = f"/{what}".encode()
        reply = await ours.call(b"POST", path, headers, BODY, client=client, fresh=False)
        reply.limit(reply.began + 60.0, "answer_timeout")
        await reply.head()
        pieces: list[bytes] = []
        while piece := await reply.piece():
            pieces.append(piece)
        reply.close()
        return b"".join(pieces)

    return {"asyncio and httptools": by_ours, "aiohttp": by_aiohttp, "httpx2": by_httpx2}


async def _nothing(*_: Any) -> Any:
    """Nobody is there to leave."""


async def microseconds(way: Way, what: str, calls: int) -> float:
    """Processor time of one call, in this process."""
    begin = time.process_time()
    for _ in range(calls):
        if await way(what) != SENT[what]:
            raise RuntimeError("an answer isn't what was sent")
    return (time.process_time() - begin) / calls * 1e6


async def measure(port: int, rounds: int, calls: int) -> dict[str, dict[str, float]]:
    """The least of all rounds of each way; they take turns."""
    found: dict[str, dict[str, list[float]]] = {}
    async with AsyncExitStack() as opened:
        clients = await ways(port, opened)
        for way in clients.values():
            for what in SENT:
                await microseconds(way, what, 50)
        for _ in range(rounds):
            for what in SENT:
                for name, way in clients.items():
                    taken = await microseconds(way, what, calls)
                    found.setdefault(what, {}).setdefault(name, []).append(taken)
    return {
        what: {name: round(min(taken), 1) for name, taken in each.items()}
        for what, each in found.items()
    }


def main() -> None:
    """Measure, print, and write benchmarks/results/target_client.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=1000)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=run_server, args=(theirs,), daemon=True)
    server.start()
    port = ours.recv()
    found = {
        name: runner(measure(port, options.rounds, options.calls))
        for name, runner in {"asyncio": asyncio.run, "uvloop": uvloop.run}.items()
    }
    server.terminate()
    result: dict[str, Any] = {
        "what": f"processor microseconds of one call, by event loop; a stream has {EVENTS} events",
        "microseconds": found,
        "machine": {
            **machine(),
            "aiohttp": aiohttp.__version__,
            "httptools": httptools.__version__,
            "httpx2": httpx2.__version__,
            "load_average": round(os.getloadavg()[0], 2),
        },
    }
    files.write_json(RESULTS / "target_client.json", result)
    print(result)


if __name__ == "__main__":
    main()
