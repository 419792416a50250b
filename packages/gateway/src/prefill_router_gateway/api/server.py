"""Runs a gateway: its event loop, its server, and the signals that end or reload it.

It can also run in a thread of this process, for notebooks, tests and programs that embed it.
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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, final

import uvicorn

from prefill_router.endpoints import NO_KEY, provider_keys
from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router_gateway.api.app import guarded_app
from prefill_router_gateway.guard import Guard, guarded_config, open_connections
from prefill_router_gateway.runtime import Gateway, GatewayPaths, LoadedGateway, OtherWorkers, load
from prefill_router_gateway.settings import GatewaySettings, ListenSettings
from prefill_router_gateway.telemetry import LogWriter, logging_to

_log = logging.getLogger(__name__)
_BACKLOG = 4096
_COLLECT_AFTER = 2000  # new objects between garbage collections; Python's default is 700
_KEEP_ALIVE_SECONDS = 75
_LAST_SECONDS = 5  # after connections are closed, the time left to write receipts


def run(places: GatewayPaths, loaded: LoadedGateway, *, on_ready: Callable[[str], None]) -> None:
    """Serve until the process is asked to end and the requests in flight have ended.

    Args:
        places: The files that the gateway is loaded from.
        loaded: The gateway as loaded from them.
        on_ready: Called with the gateway's address once it answers.

    Raises:
        ConfigError: It can't listen on the address, or the encoder can't be started.
        StoreError: The receipts can't be opened.
        KeyboardInterrupt: It was asked to end before it answered.
    """
    with (
        serving_log(loaded) as log,
        listening(loaded.settings.listen) as place,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        address = url_of(loaded.settings.listen, place)
        try:
            runner.run(serve(places, loaded, place, lambda *_: on_ready(address), log))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def serving_log(
    loaded: LoadedGateway, *, worker: int | None = None
) -> AbstractContextManager[LogWriter]:
    """The log of a gateway, without the targets' keys."""
    keys = provider_keys(loaded.pool, os.environ)
    theirs = {key for key in keys.values() if key != NO_KEY}.union(*(p.secrets for p in keys))
    return logging_to(loaded.settings.logs, secrets=theirs, worker=worker)


def listening(listen: ListenSettings, *, is_shared: bool = False) -> socket.socket:
    """A bound socket, opened before anything that takes long.

    Args:
        listen: The address.
        is_shared: Whether other sockets of this user may be bound to the same address.

    Raises:
        ConfigError: The address is taken, or isn't this machine's.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is given
    place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        place.bind((listen.host, listen.port))
    except OSError as error:
        place.close()
        raise ConfigError(
            f"can't listen on {listen.host}, port {listen.port}: {error.strerror}; choose another"
            " with --host or --port, or in the settings under listen; port 0 takes any free port"
        ) from error
    return place


async def serve(
    places: GatewayPaths,
    loaded: LoadedGateway,
    place: socket.socket,
    on_ready: Callable[[Gateway, "GatewayServer"], None],
    log: LogWriter,
    *,
    other_workers: OtherWorkers | None = None,
) -> None:
    """Serve on a bound socket; see `run`."""
    gateway = Gateway(places, loaded)
    gateway.other_workers = other_workers
    gateway.on_secrets.append(log.hide)
    try:
        with cancelled_by_signals():
            await gateway.start()
            _settle_memory()
            config = server_config(guarded_app(gateway, loaded), loaded.settings)
            server = GatewayServer(
                config,
                lambda: on_ready(gateway, server),
                end_soon=gateway.end_soon,
                drain_seconds=loaded.settings.listen.drain_seconds,
            )
            _reload_on_hangup(gateway)
        await server.serve(sockets=[place])
    finally:
        await gateway.close()


@contextmanager
def cancelled_by_signals() -> Iterator[None]:
    """Cancel the current task if the process is asked to end; uvicorn does so only once it serves.

    An exception raised by a signal handler would end the tasks that close the encoder's process.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if sys.platform == "win32" or task is None:
        yield
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@final
class GatewayServer(uvicorn.Server):
    """A server that reports when it is ready, and shuts down gracefully.

    Args:
        config: uvicorn's configuration.
        on_ready: Called once it answers.
        end_soon: Called when it is to end; returns for how many seconds it still takes requests.
        drain_seconds: After that, how long requests in flight have before their connections are
            closed.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[], None],
        *,
        end_soon: Callable[[], float],
        drain_seconds: float,
    ) -> None:
        super().__init__(config)
        self._on_ready, self._end_soon, self._drain_seconds = on_ready, end_soon, drain_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start answering requests."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def main_loop(self) -> None:
        """Serve until asked to end, and then for `end_soon`'s seconds."""
        await super().main_loop()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._end_soon()
        while loop.time() < until and not self.force_exit:
            await asyncio.sleep(0.05)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more requests, and give those in flight `drain_seconds` to end.

        Requests that take longer end as if their clients had disconnected: their receipts are
        kept, and nothing is cancelled halfway.
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
        left = open_connections(self.config)
        if left:
            _log.warning("%d connections are still open and are closed now", len(left))
        for connection in left:
            connection.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture signals as uvicorn does, but don't raise them again afterwards.

        That would end the process before receipts and log lines are written.
        """
        with super().capture_signals():
            try:
                yield
            finally:
                self._captured_signals.clear()


def _settle_memory() -> None:
    """Exclude loaded objects from garbage collection: scanning them takes a tenth of a second.

    Nearly all objects of requests are freed without it, so it also runs less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)


def server_config(app: Guard, settings: GatewaySettings) -> uvicorn.Config:
    """Uvicorn's configuration for a gateway."""
    return guarded_config(
        app,
        header_bytes=settings.limits.header_bytes,
        connections=settings.limits.connections,
        waiting_per_address=settings.limits.waiting_per_address,
        on_refusal=app.on_refusal,
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
    """Reload everything on SIGHUP; if that fails, log why and change nothing."""
    going: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        try:
            await gateway.reload_all()
        except (PrefillRouterError, OSError) as error:
            _log.error("reload failed, nothing was changed: %s", error)

    def begin() -> None:
        task = asyncio.create_task(reload())
        going.add(task)
        task.add_done_callback(going.discard)

    if sys.platform != "win32":
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, begin)


def url_of(listen: ListenSettings, place: socket.socket) -> str:
    """The URL of a bound socket."""
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"http://{host}:{place.getsockname()[1]}"


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes event loops; None for Python's own."""
    try:
        import uvloop
    except ImportError:  # not available on every platform
        return None
    return uvloop.new_event_loop


@final
@dataclass(frozen=True)
class RunningGateway:
    """A running gateway.

    Attributes:
        address: Its URL, for example `http://127.0.0.1:8080`.
    """

    address: str

    @property
    def base_url(self) -> str:
        """The base URL for clients: the address with `/v1`."""
        return f"{self.address}/v1"


@contextmanager
def serving_gateway(
    router: Path | str | None,
    *,
    pool: Path | str,
    config: Path | str | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[RunningGateway]:
    """Serve until the block ends, without logging or signal handlers.

    Args:
        router: The router's folder; None where none has been fitted yet, so that the target in
            `routing.fallback` answers everything.
        pool: The pool file, with the targets and the environment variables of their keys.
        config: The settings file.
        settings: Settings that override the file, by section: `{"routing": {"lam": 0.7}}`.
            Without a port, any free one is taken.

    Raises:
        ConfigError: Some settings are invalid, and the message names them all; or it can't listen
            on the address.
        StoreError: The receipts can't be opened.
    """
    overrides = dict(settings or {})
    overrides["listen"] = {"port": 0, **overrides.get("listen", {})}
    places = GatewayPaths(
        router=None if router is None else Path(router),
        pool=Path(pool),
        config=None if config is None else Path(config),
        overrides=overrides,
    )
    loaded = load(places)
    with listening(loaded.settings.listen) as place:
        thread = _GatewayThread(places, loaded, place)
        thread.start()
        try:
            thread.await_ready()
            yield RunningGateway(url_of(loaded.settings.listen, place))
        finally:
            thread.end()


@final
class _GatewayThread(threading.Thread):
    """The thread of a gateway; it ends on request, or when the gateway can't start."""

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
        """Wait until it answers; raises the error if it can't start."""
        self._settled.wait()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """End it and wait until it has ended."""
        if self._server is not None:
            self._server.should_exit = True
        self.join()
