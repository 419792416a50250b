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
class GatewayFiles:
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
            rows = connection.execute(f"select {columns} from receipts order by at, id").fetchall()
        finally:
            connection.close()
        return [dict(row) for row in rows]

    def paths(self, **options: Any) -> GatewayPaths:
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


def write_gateway_files(
    folder: Path,
    urls: Sequence[str] | str,
    *,
    settings: Mapping[str, Any] = QUIET,
    key_env: str | None = None,
    **fields: Any,
) -> GatewayFiles:
    """Write the files of a gateway before three targets, and its router.

    Args:
        folder: Where.
        urls: The targets' addresses, with /v1; or the address of all.
        settings: The gateway's.
        key_env: The variable of the targets' key.
        fields: Further fields of every target, such as `serves`.
    """
    router = complexity_router()
    router.save(folder / "router")
    addresses = [urls] * len(TARGETS) if isinstance(urls, str) else list(urls)
    providers = tuple(
        Provider(name=f"provider-{n}", base_url=url, api_key_env=key_env)
        for n, url in enumerate(addresses)
    )
    targets = tuple(
        replace(target, provider=provider.name, **fields)
        for target, provider in zip(router.pool, providers, strict=True)
    )
    files = GatewayFiles(folder, folder / "router", folder / "pool.yaml", folder / "gateway.yaml")
    write_pool(Pool(targets, router.pool.prices_date, providers), files.pool)
    files.configure(settings)
    return files


@dataclass
class GatewayProcess:
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
    files: GatewayFiles,
    *options: str,
    environment: Mapping[str, str] | None = None,
    port: int = 0,
) -> Iterator[GatewayProcess]:
    """`prefill-router serve`, until the block ends; what it logs goes to a file."""
    log = files.folder / "gateway.log"
    line = [COMMAND, "serve", files.router, "--pool", files.pool, "--config", files.config]
    line += ["--port", str(port), "--receipts", files.url, *options]
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **(environment or {}),
    }
    with (
        log.open("a") as output,
        subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=output, text=True, env=variables
        ) as run,
    ):
        try:
            greeting = run.stdout.readline() if run.stdout else ""
            if not greeting.startswith("serving at "):
                raise RuntimeError(f"the gateway didn't start: {log.read_text()[-2000:]}")
            yield GatewayProcess(run, int(greeting.rsplit(":", 1)[1]), log)
        finally:
            run.terminate()
            try:
                run.wait(60)
            except subprocess.TimeoutExpired:
                run.kill()


@dataclass
class GatewayThread:
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
    paths: GatewayPaths, *, environment: Mapping[str, str] | None = None
) -> Iterator[GatewayThread]:
    """The same within this process, so that tests can look into it."""
    loaded = load(paths, environment=environment)
    socket = listening(loaded.settings.listen)
    ready, ended = threading.Event(), threading.Event()
    parts: list[tuple[Gateway, asyncio.AbstractEventLoop, uvicorn.Server]] = []
    errors: list[BaseException] = []

    async def serve() -> None:
        gateway = Gateway(paths, loaded, environment=environment)
        try:
            await gateway.start()
            server = uvicorn.Server(server_config(guarded_app(gateway, loaded), loaded.settings))
            parts.append((gateway, asyncio.get_running_loop(), server))
            serving = asyncio.create_task(server.serve(sockets=[socket]))
            while not (server.started or serving.done()):
                await asyncio.sleep(0.01)
            ready.set()
            await serving
        finally:
            await gateway.close()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # raised where the block begins or ends
            errors.append(error)
        finally:
            ended.set()
            ready.set()

    thread = threading.Thread(target=run, name="gateway", daemon=True)
    thread.start()
    ready.wait()
    try:
        if not errors:
            gateway, loop, _ = parts[0]
            yield GatewayThread(gateway, socket.getsockname()[1], loop)
    finally:
        if parts:
            parts[0][2].should_exit = True
        thread.join()
        socket.close()
    if errors:
        raise errors[0]
