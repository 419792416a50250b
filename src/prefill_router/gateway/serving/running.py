"""Running a gateway: its event loop, its server, and the signals that end or reload it."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import final

import uvicorn

from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.gateway.guarding import Guard
from prefill_router.gateway.guarding.connection import guarded_protocol
from prefill_router.gateway.serving.app import guarded_app
from prefill_router.gateway.serving.gateway import Gateway
from prefill_router.gateway.serving.loading import Loaded
from prefill_router.gateway.serving.places import Places
from prefill_router.gateway.settings import Listen, Settings
from prefill_router.gateway.telemetry import Log, logging_to
from prefill_router.upstream import NO_KEY, provider_keys

_log = logging.getLogger(__name__)
_BACKLOG = 4096
_COLLECT_AFTER = 2000  # objects more than there were; 700 is the usual
_KEEP_ALIVE_SECONDS = 75
_LAST_SECONDS = 5  # what was cut off still has so long to be put on record


def run(places: Places, loaded: Loaded, *, told: Callable[[str], None]) -> None:
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


def listening(listen: Listen) -> socket.socket:
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
    places: Places, loaded: Loaded, place: socket.socket, told: Callable[[str], None], log: Log
) -> None:
    gateway = Gateway(places, loaded)
    gateway.on_secrets.append(log.hide)
    try:
        await gateway.start()
        _settle_memory()
        config = server_config(guarded_app(gateway, loaded), loaded.settings)
        server = Server(
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
class Server(uvicorn.Server):
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


def server_config(app: Guard, settings: Settings) -> uvicorn.Config:
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


def address_of(listen: Listen, place: socket.socket) -> str:
    """The URL of a bound socket."""
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"http://{host}:{place.getsockname()[1]}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not made for every platform
        return None
    return uvloop.new_event_loop
