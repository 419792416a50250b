"""Serves one port with several workers that share one encoder's process.

The supervisor answers no request. It starts the encoder and the workers, restarts what ends, adds
up the workers' metrics, reloads all of them, and ends them.
"""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.router import VersionRegistry
from prefill_router_gateway.api.server import (
    cancelled_by_signals,
    listening,
    serving_log,
    url_of,
)
from prefill_router_gateway.api.worker import LONGEST_READ, PLACES, Channel
from prefill_router_gateway.forecast import (
    FrameError,
    SharedEncoder,
    pack_frame,
    plain_options,
    receive_frame,
)
from prefill_router_gateway.runtime import (
    GatewayPaths,
    LoadedGateway,
    VersionWatch,
    encoder_socket,
    load,
    refuse_unshared,
)
from prefill_router_gateway.telemetry import (
    GAUGES,
    PREFIX,
    PlainFamily,
    counters_of,
    merge_families,
)

_log = logging.getLogger(__name__)
_MODULE = "prefill_router_gateway.api.worker"
_FIRST_PAUSE, _LONGEST_PAUSE, _STABLE = 0.5, 30.0, 60.0
_BEAT, _MOST_SILENT, _SCRAPE = 5.0, 30.0, 2.0
_LAST_SECONDS = 30.0  # after the drain, the time for receipts and traces
_SUMS = frozenset(f"{PREFIX}{gauge.name}" for gauge in GAUGES.values() if gauge.is_sum)


def run_workers(
    places: GatewayPaths, loaded: LoadedGateway, *, workers: int, on_ready: Callable[[str], None]
) -> None:
    """Serve until the process is asked to end and the requests in flight have ended.

    Args:
        places: The files that the gateway is loaded from.
        loaded: The gateway as loaded from them.
        workers: The number of processes that serve.
        on_ready: Called with the gateway's address once all of them answer.

    Raises:
        ConfigError: It can't listen on the address, the encoder or a worker can't be started, or
            the workers would need state that they don't share.
        KeyboardInterrupt: It was asked to end before it answered.
    """
    if sys.platform != "linux":  # others don't spread connections over sockets of one address
        raise ConfigError("several workers need Linux; leave out --workers")
    refuse_unshared(loaded)
    with (
        serving_log(loaded),
        listening(loaded.settings.listen) as probe,  # refuses an address that another one has
        TemporaryDirectory(prefix="prefill-router-") as folder,
    ):
        port = probe.getsockname()[1]
        probe.close()
        at = loaded.settings.listen.model_copy(update={"port": port})
        with listening(at, is_shared=True) as place:  # keeps the port, and takes no connection
            try:
                asyncio.run(_Supervisor(places, loaded, place, folder, workers).run(on_ready))
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None


@final
class _WorkerLink:
    """A worker as the supervisor sees it."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self.number, self.process, self.channel = number, process, channel
        self.began = asyncio.get_running_loop().time()
        self.ended = asyncio.create_task(process.wait())
        self.metrics: list[PlainFamily] = []

    async def measure(self) -> None:
        """Ask for its metrics."""
        with suppress(ConfigError):  # it is ending
            self.metrics = await self.channel.call("metrics")

    def send(self, number: int) -> None:
        """Send it a signal, if it hasn't ended."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


@final
class _Supervisor:
    def __init__(
        self,
        places: GatewayPaths,
        loaded: LoadedGateway,
        place: socket.socket,
        folder: str,
        count: int,
    ) -> None:
        self._folder = Path(folder)
        self._places = replace(places, encoders=self._folder)
        self._loaded, self._place, self._count = loaded, place, count
        self._encoders: dict[Path, SharedEncoder] = {}
        self._workers: dict[int, _WorkerLink] = {}
        self._past_counts: list[PlainFamily] = []  # by workers that have ended
        self._shared: dict[str, Any] = {}
        self._reloads = 0
        self._failure: BaseException | None = None
        self._reloading, self._ending = asyncio.Lock(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, on_ready: Callable[[str], None]) -> None:
        try:
            with cancelled_by_signals():
                self._use(await self._start_encoders(self._loaded))
                await asyncio.gather(*(self._start(1 + n) for n in range(self._count)))
            self._catch_signals()
            for number in list(self._workers):
                self._begin(self._keep_running(number))
            if self._places.registry is not None:
                self._begin(self._version_watch(self._places.registry).run())
            on_ready(url_of(self._loaded.settings.listen, self._place))
            await self._ending.wait()
        finally:
            await self._end()
        if self._failure is not None:
            raise self._failure

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the supervisor failed and ends", exc_info=error)
            self._failure = error
            self._ending.set()

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()

        async def reload() -> None:
            try:
                await self._reload(None)
            except (PrefillRouterError, OSError) as error:
                _log.error("reload failed: %s", error)

        def end(number: int) -> None:
            for worker in self._workers.values():  # a second Ctrl-C ends them at once
                worker.send(number if self._ending.is_set() else signal.SIGTERM)
            self._ending.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end, number)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._begin(reload()))

    def _use(self, loaded: LoadedGateway) -> None:
        """Let workers that start from now on load this."""
        self._loaded = loaded
        if self._places.registry is not None:
            self._places = replace(self._places, pinned=loaded.served)

    def _version_watch(self, registry: VersionRegistry) -> VersionWatch:
        def tell(problem: str) -> None:
            self._begin(self._share({"versions_problem": problem}))

        return VersionWatch(
            registry,
            seconds=self._loaded.settings.routing.versions_seconds,
            served=lambda: self._loaded.served,
            reload=self._reload_all,
            on_problem=tell,
        )

    async def _start_encoders(self, loaded: LoadedGateway) -> LoadedGateway:
        """Start the encoders that the workers share and that don't run yet, if any.

        Returns:
            What was loaded, without the candidate if its encoder can't be started.
        """
        await self._start_encoder(loaded)
        if loaded.candidate is None:
            return loaded
        try:
            await self._start_encoder(loaded.candidate)
        except (PrefillRouterError, OSError) as error:
            return loaded.without_candidate(f"version {loaded.candidate.version}: {error}")
        return loaded

    async def _start_encoder(self, loaded: LoadedGateway) -> None:
        places, routing = self._places, loaded.settings.routing
        path = encoder_socket(self._folder, loaded)
        if loaded.router is None or path in self._encoders:
            return
        options = plain_options(
            loaded.router,
            places.encoder_sources,
            threads=places.threads,
            reuse_bytes=routing.reuse_bytes,
        )
        options |= {"most_prompts": routing.max_batch, "gateways": self._count}
        encoder = SharedEncoder(path, options)
        hello = await encoder.start()
        if hello.fingerprint != loaded.light.fingerprint:
            await encoder.close(seconds=0)
            raise ConfigError(f"{loaded.router} was replaced while it was being loaded; try again")
        self._encoders[path] = encoder

    async def _start(self, number: int) -> None:
        """Start a worker, and wait until it serves."""
        reloads = self._reloads
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal must reach only the supervisor
                pass_fds=(theirs.fileno(),),
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_READ)
        options = {
            "places": PLACES.dump_python(self._places, mode="json"),
            "number": number,
            "port": self._place.getsockname()[1],
        }
        writer.write(pack_frame(options))
        try:
            wrong = (await receive_frame(reader))["error"]
        except (FrameError, OSError):
            wrong = ["it ended before it served; its log says why"]
        except asyncio.CancelledError:
            process.kill()
            raise
        if wrong:
            writer.close()
            await process.wait()
            raise ConfigError(*(f"worker {number}: {problem}" for problem in wrong))
        handlers = {"reload": self._reload, "metrics": self._metrics, "share": self._share}
        worker = _WorkerLink(number, process, Channel(reader, writer, handlers))
        self._workers[number] = worker
        worker.channel.tell("learn", self._shared)
        await self._share({"missing": self._count - len(self._workers)})
        if self._reloads != reloads:
            await worker.channel.call("reload", self._pinned_versions)

    async def _keep_running(self, number: int) -> None:
        """Restart a worker whenever it ends."""
        pause = _FIRST_PAUSE
        while True:
            worker = self._workers[number]
            await self._watch(worker)
            self._past_counts = merge_families(
                [self._past_counts, counters_of(worker.metrics)], sums=_SUMS
            )
            del self._workers[number]
            if self._ending.is_set():
                return
            _log.warning(
                "worker %d ended with status %s; it is restarted", number, worker.process.returncode
            )
            await self._share({"missing": self._count - len(self._workers)})
            if asyncio.get_running_loop().time() - worker.began > _STABLE:
                pause = _FIRST_PAUSE
            while number not in self._workers:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                try:
                    await self._start(number)
                except (ConfigError, OSError) as error:
                    _log.error("%s", error)

    async def _watch(self, worker: _WorkerLink) -> None:
        """Wait until a worker ends; kill it if it no longer answers."""
        while not worker.ended.done():
            try:
                async with asyncio.timeout(_MOST_SILENT):
                    await worker.measure()
            except TimeoutError:
                _log.error("worker %d hasn't answered for %g s", worker.number, _MOST_SILENT)
                worker.send(signal.SIGKILL)
            await asyncio.wait((worker.ended,), timeout=_BEAT)

    async def _metrics(self, _: Any) -> list[PlainFamily]:
        tasks = [asyncio.create_task(worker.measure()) for worker in self._workers.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_SCRAPE)
            for task in late:  # what it last said counts
                task.cancel()
        current = (worker.metrics for worker in self._workers.values())
        return merge_families([self._past_counts, *current], sums=_SUMS)

    async def _share(self, values: dict[str, Any]) -> None:
        self._shared |= values
        for worker in self._workers.values():
            worker.channel.tell("learn", values)

    async def _reload(self, _: Any) -> None:
        await self._reload_all()

    async def _reload_all(self) -> LoadedGateway:
        """Reload all workers; an error that is found here changes nothing."""
        async with self._reloading:
            places = replace(self._places, pinned=None)
            loaded = await asyncio.to_thread(load, places)
            refuse_unshared(loaded)
            loaded = await self._start_encoders(loaded)
            before = self._loaded
            self._use(loaded)
            self._reloads += 1
            failed = await self._reload_workers()
            if failed:
                self._loaded = before  # so that the versions' watch tries again
                raise ConfigError(*failed)
            used = {
                encoder_socket(self._folder, each) for each in (loaded, loaded.candidate) if each
            }
            for path in self._encoders.keys() - used:
                self._begin(self._encoders.pop(path).close())  # once no worker uses it
            _log.info("all workers are reloaded, with the router %s", loaded.light.fingerprint)
            return loaded

    async def _reload_workers(self) -> list[str]:
        """Reload each worker; returns what failed."""
        failed, pinned = [], self._pinned_versions
        for worker in list(self._workers.values()):
            try:
                await worker.channel.call("reload", pinned)
            except ConfigError as error:
                failed.append(f"worker {worker.number} keeps what it had: {error}")
        return failed

    @property
    def _pinned_versions(self) -> dict[str, Any] | None:
        """The versions that workers load, as a frame has them."""
        pinned = self._places.pinned
        return None if pinned is None else asdict(pinned)

    async def _end(self) -> None:
        """End the workers as each ends alone, and then the encoder."""
        self._ending.set()
        listen = self._loaded.settings.listen
        workers = list(self._workers.values())
        for worker in workers:
            worker.send(signal.SIGTERM)
        self._place.close()
        if workers:
            limit = listen.unready_seconds + listen.drain_seconds + _LAST_SECONDS
            _, late = await asyncio.wait([worker.ended for worker in workers], timeout=limit)
            for worker in workers:
                if worker.ended in late:
                    worker.send(signal.SIGKILL)
        for task in list(self._tasks):
            task.cancel()
        for encoder in self._encoders.values():
            await encoder.close(seconds=_LAST_SECONDS)
