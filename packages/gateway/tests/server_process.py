"""A whole gateway on loopback: in a process of its own, or in a thread of this one.

Its router reads texts' complexity, so that it needs no network, no torch, and is fitted at once.
"""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
import yaml

from prefill_router.features.complexity import ComplexityConfig
from prefill_router.fitting import FitConfig, Recipe, fit_router
from prefill_router.predictors.logistic import LogisticConfig
from prefill_router.router import Router
from prefill_router.targets import Pool, Provider, write_pool
from prefill_router.testing import make_routing_dataset
from prefill_router_gateway.api.app import guarded_app
from prefill_router_gateway.api.server import listening, server_config
from prefill_router_gateway.runtime.configuration import GatewayPaths, load
from prefill_router_gateway.runtime.gateway import Gateway

COMMAND = Path(sys.executable).with_name("prefill-router")
TARGETS = ("target-0", "target-1", "target-2")
QUIET = {"logs": {"level": "warning"}}


@dataclass(frozen=True)
class Made:
    """The files that a gateway is made of."""

    folder: Path
    router: Path
    pool: Path
    config: Path

    @property
    def database(self) -> Path:
        return self.folder / "receipts.sqlite"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database}"

    def configure(self, settings: Mapping[str, Any]) -> None:
        self.config.write_text(yaml.safe_dump(dict(settings)))

    def rows(self, columns: str = "*") -> list[dict[str, Any]]:
        """The receipts, oldest first."""
        connection = sqlite3.connect(self.database)
        try:
            connection.row_factory = sqlite3.Row
            found = connection.execute(f"select {columns} from receipts order by at, id").fetchall()
        finally:
            connection.close()
        return [dict(row) for row in found]

    def places(self, **options: Any) -> GatewayPaths:
        overrides = {"listen": {"port": 0}, "receipts": {"url": self.url}}
        return GatewayPaths(
            router=self.router, pool=self.pool, config=self.config, overrides=overrides, **options
        )


@cache
def complexity_router(queries: int = 200, pool: Pool | None = None) -> Router:
    """A router of three targets, or of those of a pool, that reads texts' complexity."""
    data = make_routing_dataset(queries=queries, targets=len(pool or TARGETS))
    data = data if pool is None else replace(data, pool=pool)
    recipe = Recipe(features=(ComplexityConfig(),), predictor=LogisticConfig(c=1.0, scaling="each"))
    return fit_router(data, config=FitConfig(test=0.15, recipe=recipe, resamples=20)).router


def make_gateway(
    folder: Path,
    urls: Sequence[str] | str,
    *,
    settings: Mapping[str, Any] = QUIET,
    key_env: str | None = None,
    **what: Any,
) -> Made:
    """Write the files of a gateway before three targets, and its router.

    Args:
        folder: Where.
        urls: The targets' addresses, with /v1; or the one of all.
        settings: The gateway's.
        key_env: The variable of the targets' key.
        what: Further fields of every target, such as `serves`.
    """
    router = complexity_router()
    router.save(folder / "router")
    each = [urls] * len(TARGETS) if isinstance(urls, str) else list(urls)
    providers = tuple(
        Provider(name=f"provider-{n}", base_url=url, api_key_env=key_env)
        for n, url in enumerate(each)
    )
    targets = tuple(
        replace(target, provider=provider.name, **what)
        for target, provider in zip(router.pool, providers, strict=True)
    )
    made = Made(folder, folder / "router", folder / "pool.yaml", folder / "gateway.yaml")
    write_pool(Pool(targets, router.pool.prices_date, providers), made.pool)
    made.configure(settings)
    return made


@dataclass
class Process:
    """A gateway in a process of its own."""

    run: "subprocess.Popen[str]"
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """End it as nothing can be caught (SIGKILL)."""
        self.run.send_signal(signal.SIGKILL)
        self.run.wait()

    def reload(self) -> None:
        self.run.send_signal(signal.SIGHUP)


@contextmanager
def gateway_process(
    made: Made,
    *options: str,
    environment: Mapping[str, str] | None = None,
    port: int = 0,
) -> Iterator[Process]:
    """`prefill-router serve`, until the block ends; what it logs goes to a file."""
    log = made.folder / "gateway.log"
    line = [COMMAND, "serve", made.router, "--pool", made.pool, "--config", made.config]
    line += ["--port", str(port), "--receipts", made.url, *options]
    known = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(environment or {})}
    with (
        log.open("a") as told,
        subprocess.Popen(line, stdout=subprocess.PIPE, stderr=told, text=True, env=known) as run,
    ):
        try:
            said = run.stdout.readline() if run.stdout else ""
            if not said.startswith("serving at "):
                raise RuntimeError(f"the gateway didn't start: {log.read_text()[-2000:]}")
            yield Process(run, int(said.rsplit(":", 1)[1]), log)
        finally:
            run.terminate()
            try:
                run.wait(60)
            except subprocess.TimeoutExpired:
                run.kill()


@dataclass
class Running:
    """A gateway in a thread of this process."""

    gateway: Gateway
    port: int
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60, trust_env=False, **options)


@contextmanager
def gateway_thread(
    places: GatewayPaths, *, environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """The same within this process, so that tests can look into it."""
    loaded = load(places, environment=environment)
    place = listening(loaded.settings.listen)
    ready, ended = threading.Event(), threading.Event()
    found: list[tuple[Gateway, asyncio.AbstractEventLoop, uvicorn.Server]] = []
    failed: list[BaseException] = []

    async def serve() -> None:
        gateway = Gateway(places, loaded, environment=environment)
        try:
            await gateway.start()
            server = uvicorn.Server(server_config(guarded_app(gateway, loaded), loaded.settings))
            found.append((gateway, asyncio.get_running_loop(), server))
            serving = asyncio.create_task(server.serve(sockets=[place]))
            while not (server.started or serving.done()):
                await asyncio.sleep(0.01)
            ready.set()
            await serving
        finally:
            await gateway.close()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # told where the block begins or ends
            failed.append(error)
        finally:
            ended.set()
            ready.set()

    thread = threading.Thread(target=run, name="gateway", daemon=True)
    thread.start()
    ready.wait()
    try:
        if not failed:
            gateway, loop, _ = found[0]
            yield Running(gateway, place.getsockname()[1], loop)
    finally:
        if found:
            found[0][2].should_exit = True
        thread.join()
        place.close()
    if failed:
        raise failed[0]
