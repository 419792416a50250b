"""Replicas before the same targets, and a line to the database that a test can cut."""

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from packages.gateway.tests.server_process import GatewayProcess, gateway_process
from packages.gateway.tests.world import LocalGateway, World, serve_world


class Line:
    """A line to a server: passes bytes on until it is cut, and again once it is mended.

    Attributes:
        is_mute: Whether what comes is dropped, while connections stay open.
    """

    def __init__(self, host: str, port: int) -> None:
        self._place, self._whole, self.is_mute = (host, port), True, False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        start = asyncio.start_server(self._pass, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection, and accept no more."""
        self._whole = False
        asyncio.run_coroutine_threadsafe(self._break(), self._loop).result()

    def mend(self) -> None:
        self._whole = True

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _break(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.05)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._whole:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(*self._place)
        self._writers |= {writer, back}
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        self._writers -= {writer, back}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(65536):
                if not self.is_mute:
                    writer.write(piece)
        writer.close()


def through(url: str, line: Line) -> str:
    """The URL of a database at the end of a line."""
    parts = urlsplit(url)
    return url.replace(f":{parts.port}/", f":{line.port}/")


def replica_of(world: World, folder: Path, shared: Mapping[str, Any] | None) -> World:
    """The files of another gateway before the same targets, with receipts of its own."""
    folder.mkdir(parents=True)
    settings = yaml.safe_load(world.files.config.read_text())
    files = replace(world.files, folder=folder, config=folder / "gateway.yaml")
    files.configure(settings if shared is None else {**settings, "shared": dict(shared)})
    return replace(world, files=files)


@contextmanager
def replicas(
    world: World, folder: Path, shared: Sequence[Mapping[str, Any] | None]
) -> Iterator[list[LocalGateway]]:
    """A gateway in a thread for each of these shared states."""
    with ExitStack() as stack:
        worlds = [replica_of(world, folder / f"{n}", each) for n, each in enumerate(shared)]
        yield [stack.enter_context(serve_world(each)) for each in worlds]


@dataclass
class Three:
    """Three replicas: two in threads, the second at a line that can be cut, and a process.

    Attributes:
        world: The targets.
        here, far: The replicas in threads.
        line: The line of the second one to the database.
        other: The process.
    """

    world: World
    here: LocalGateway
    far: LocalGateway
    line: Line
    other: GatewayProcess

    @property
    def urls(self) -> tuple[str, str, str]:
        return self.here.url, self.far.url, self.other.url


@contextmanager
def three(world: World, folder: Path, url: str, **shared: Any) -> Iterator[Three]:
    """Three replicas that share a database."""
    with closing(Line("127.0.0.1", urlsplit(url).port or 0)) as line:
        urls = [{"url": url, **shared}, {"url": through(url, line), **shared}]
        process = replica_of(world, folder / "process", {"url": url, **shared})
        options = () if world.keys is None else ("--keys", str(world.keys))
        with (
            replicas(world, folder, urls) as (here, far),
            gateway_process(process.files, *options) as other,
        ):
            yield Three(world, here, far, line, other)
