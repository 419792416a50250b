"""Replicas before the same targets, and a connection to the database that a test can cut."""

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
    """A proxy to a server. `cut` breaks its connections; `restore` accepts new ones.

    Attributes:
        is_mute: Whether bytes are dropped while connections stay open.
    """

    def __init__(self, host: str, port: int) -> None:
        self._place, self._is_up, self.is_mute = (host, port), True, False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        start = asyncio.start_server(self._pass, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection, and accept no more."""
        self._is_up = False
        asyncio.run_coroutine_threadsafe(self._break(), self._loop).result()

    def restore(self) -> None:
        self._is_up = True

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
        if not self._is_up:
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


def url_through(url: str, line: Line) -> str:
    """The URL of the database through a line."""
    parts = urlsplit(url)
    return url.replace(f":{parts.port}/", f":{line.port}/")


def build_replica(world: World, folder: Path, shared: Mapping[str, Any] | None) -> World:
    """Write the files of another gateway before the same targets, with its own receipts."""
    folder.mkdir(parents=True)
    settings = yaml.safe_load(world.files.config.read_text())
    files = replace(world.files, folder=folder, config=folder / "gateway.yaml")
    files.configure(settings if shared is None else {**settings, "shared": dict(shared)})
    return replace(world, files=files)


@contextmanager
def run_replicas(
    world: World, folder: Path, shared: Sequence[Mapping[str, Any] | None]
) -> Iterator[list[LocalGateway]]:
    """Run a gateway in a thread for each of these shared states."""
    with ExitStack() as stack:
        worlds = [build_replica(world, folder / f"{n}", each) for n, each in enumerate(shared)]
        yield [stack.enter_context(serve_world(each)) for each in worlds]


@dataclass
class ReplicaGroup:
    """Two replicas in threads, of which `far` uses a line that can be cut, and a process.

    Attributes:
        world: The targets.
        near, far: The replicas in threads.
        line: The line from `far` to the database.
        process: The third replica.
    """

    world: World
    near: LocalGateway
    far: LocalGateway
    line: Line
    process: GatewayProcess

    @property
    def urls(self) -> tuple[str, str, str]:
        return self.near.url, self.far.url, self.process.url


@contextmanager
def run_replica_group(
    world: World, folder: Path, url: str, **shared: Any
) -> Iterator[ReplicaGroup]:
    """Run three replicas that share a database."""
    with closing(Line("127.0.0.1", urlsplit(url).port or 0)) as line:
        urls = [{"url": url, **shared}, {"url": url_through(url, line), **shared}]
        replica = build_replica(world, folder / "process", {"url": url, **shared})
        options = () if world.keys is None else ("--keys", str(world.keys))
        with (
            run_replicas(world, folder, urls) as (near, far),
            gateway_process(replica.files, *options) as process,
        ):
            yield ReplicaGroup(world, near, far, line, process)
