"""Running a gateway: its event loop, its server, and the signals that end or reload it.

Or in a thread of this process: for notebooks, tests, and programs with a gateway inside.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, final

import uvicorn

from prefill_router.client import NO_KEY, provider_keys
from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.gateway.api.app import guarded_app
from prefill_router.gateway.guard import Guard, guarded_protocol
from prefill_router.gateway.runtime import Gateway, GatewayPaths, LoadedGateway, load
from prefill_router.gateway.settings import GatewaySettings, ListenSettings
from prefill_router.gateway.telemetry import LogWriter, logging_to

_log = logging.getLogger(__name__)
_BACKLOG = 4096
_COLLECT_AFTER = 2000  # objects more than there were; 700 is the usual
_KEEP_ALIVE_SECONDS = 75
_LAST_SECONDS = 5  # what was cut off still has so long to be put on record


def run(places: GatewayPaths, loaded: LoadedGateway, *, told: Callable[[str], None]) -> None:
    """Serve until the process is asked to end, and requests under way have ended.

    Args:
        places: What the gateway is made of.
        loaded: The same, read.
        told: Given the gateway's address once it answers.

    Raises:
        ConfigError: The address can't be listened on, or the encoder can't be started.
        StoreError: The receipts can't be opened.
    """
    keys = provider_keys(loaded.pool, os.environ)
    theirs = {key for key in keys.values() if key != NO_KEY}.union(*(p.secrets for p in keys))
    with (
        logging_to(loaded.settings.logs, secrets=theirs) as log,
        listening(loaded.settings.listen) as place,
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
    ):
        runner.run(_serve(places, loaded, place, told, log))


def listening(listen: ListenSettings) -> socket.socket:
    """A socket that is bound, before anything that takes long.

    Raises:
        ConfigError: The address is taken, or isn't this machine's.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    # asyncio sends small pieces at once only where the protocol is named
    place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((listen.host, listen.port))
    except OSError as error:
        place.close()
        raise ConfigError(
            f"can't listen on {listen.host}, port {listen.port}: {error.strerror}; name another"
            " with --host or --port, or in listen; port 0 takes a free one"
        ) from error
    return place


async def _serve(
    places: GatewayPaths,
    loaded: LoadedGateway,
    place: socket.socket,
    told: Callable[[str], None],
    log: LogWriter,
) -> None:
    gateway = Gateway(places, loaded)
    gateway.on_secrets.append(log.hide)
    try:
        await gateway.start()
        _settle_memory()
        config = server_config(guarded_app(gateway, loaded), loaded.settings)
        server = GatewayServer(
            config,
            lambda: told(address_of(loaded.settings.listen, place)),
            end_soon=gateway.end_soon,
            drain_seconds=loaded.settings.listen.drain_seconds,
        )
        _reload_on_hangup(gateway)
        await server.serve(sockets=[place])
    finally:
        await gateway.close()


@final
class GatewayServer(uvicorn.Server):
    """Says when it answers, and ends in good order.

    Args:
        config: Of uvicorn.
        told: Called once it answers.
        end_soon: Called once it is to end; gives the seconds for which it still takes requests.
        drain_seconds: Then those under way have so long, before their connections are closed.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        told: Callable[[], None],
        *,
        end_soon: Callable[[], float],
        drain_seconds: float,
    ) -> None:
        super().__init__(config)
        self.told, self._end_soon, self._drain_seconds = told, end_soon, drain_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        if self.started:
            self.told()

    async def main_loop(self) -> None:
        """Serve until asked to end, and a little longer."""
        await super().main_loop()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._end_soon()
        while loop.time() < until and not self.force_exit:
            await asyncio.sleep(0.05)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing more, and let what is under way end, for as long as it may take.

        Requests that take longer end as if their clients had left: their receipts are kept, and
        nothing is cancelled in the middle.
        """
        timer = asyncio.get_running_loop().call_later(self._drain_seconds, self._cut)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
        if self.force_exit and self.server_state.tasks:
            self._cut()
            await asyncio.wait(self.server_state.tasks, timeout=_LAST_SECONDS)

    def _cut(self) -> None:
        left = list(self.server_state.connections)
        if left:
            _log.warning("%d connections are still open and are closed now", len(left))
        for connection in left:
            transport: asyncio.Transport = connection.transport
            transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, which would then raise the signal again, and so end the process.

        But receipts and lines of the log are still to be written.
        """
        with super().capture_signals():
            try:
                yield
            finally:
                self._captured_signals.clear()


def _settle_memory() -> None:
    """Keep the collector from what was loaded: looking through it takes a tenth of a second.

    Nearly all that requests make is freed without it, so it also needs to look less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)


def server_config(app: Guard, settings: GatewaySettings) -> uvicorn.Config:
    """How uvicorn serves a gateway."""
    return uvicorn.Config(
        app,
        http=guarded_protocol(
            header_bytes=settings.limits.header_bytes,
            connections=settings.limits.connections,
            waiting_per_address=settings.limits.waiting_per_address,
            refused=app.refused,
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=ceil(settings.listen.drain_seconds) + _LAST_SECONDS,
    )


def _reload_on_hangup(gateway: Gateway) -> None:
    """SIGHUP reads everything again; what can't be used is logged, and all stays as it was."""
    going: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        try:
            await gateway.reload()
        except (PrefillRouterError, OSError) as error:
            _log.error("not reloaded, all stays as it was: %s", error)

    def begin() -> None:
        task = asyncio.create_task(reload())
        going.add(task)
        task.add_done_callback(going.discard)

    if sys.platform != "win32":
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, begin)


def address_of(listen: ListenSettings, place: socket.socket) -> str:
    """The URL of a bound socket."""
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"http://{host}:{place.getsockname()[1]}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not made for every platform
        return None
    return uvloop.new_event_loop


@final
@dataclass(frozen=True)
class RunningGateway:
    """A gateway that answers.

    Attributes:
        address: Where, such as `http://127.0.0.1:8080`.
    """

    address: str

    @property
    def base_url(self) -> str:
        """For clients: the address, with `/v1`."""
        return f"{self.address}/v1"


@contextmanager
def serving_gateway(
    router: Path | str,
    *,
    pool: Path | str,
    config: Path | str | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[RunningGateway]:
    """Serve until the block ends; nothing is logged, and no signal is heard.

    Args:
        router: The router's folder.
        pool: The pool file: who is asked, and the variables of their keys.
        config: The settings' file.
        settings: Settings that come before it, by part: `{"routing": {"lam": 0.7}}`. Without a
            port a free one is taken.

    Raises:
        ConfigError: Something can't be used, and the message names everything that can't; or the
            address can't be listened on.
        StoreError: The receipts can't be opened.
    """
    given = dict(settings or {})
    given["listen"] = {"port": 0, **given.get("listen", {})}
    places = GatewayPaths(
        router=Path(router),
        pool=Path(pool),
        config=None if config is None else Path(config),
        overrides=given,
    )
    loaded = load(places)
    with listening(loaded.settings.listen) as place:
        thread = _GatewayThread(places, loaded, place)
        thread.start()
        try:
            thread.await_ready()
            yield RunningGateway(address_of(loaded.settings.listen, place))
        finally:
            thread.end()


@final
class _GatewayThread(threading.Thread):
    """A gateway's thread: it ends when it is told to, or when it can't begin."""

    def __init__(self, places: GatewayPaths, loaded: LoadedGateway, place: socket.socket) -> None:
        super().__init__(name="gateway", daemon=True)
        self._places, self._loaded, self._place = places, loaded, place
        self._settled = threading.Event()
        self._server: GatewayServer | None = None
        self._failure: PrefillRouterError | OSError | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except (PrefillRouterError, OSError) as error:
            self._failure = error
        finally:
            self._settled.set()

    async def _serve(self) -> None:
        gateway = Gateway(self._places, self._loaded)
        try:
            await gateway.start()
            config = server_config(guarded_app(gateway, self._loaded), self._loaded.settings)
            self._server = GatewayServer(
                config,
                self._settled.set,
                end_soon=lambda: 0.0,
                drain_seconds=self._loaded.settings.listen.drain_seconds,
            )
            await self._server.serve(sockets=[self._place])
        finally:
            await gateway.close()

    def await_ready(self) -> None:
        """Wait until it answers; what kept it from that is raised."""
        self._settled.wait()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Have it end, and wait for that."""
        if self._server is not None:
            self._server.should_exit = True
        self.join()
