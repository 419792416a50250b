"""What a check with LiteLLM stands before: models that say their names, a gateway that decides."""

import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, final

from prefill_router.features.complexity import ComplexityConfig
from prefill_router.fitting import FitConfig, Recipe, fit_router
from prefill_router.predictors.logistic import LogisticConfig
from prefill_router.targets import Pool, Provider, write_pool
from prefill_router.testing import make_routing_dataset
from prefill_router_minipool.server import ScriptedModel, serve

COMMAND = "from prefill_router.cli import main; main()"
MODELS = ("small", "mid", "large", "spare", "other")


@final
@dataclass(frozen=True, kw_only=True)
class World:
    """Where everything is.

    Attributes:
        models: The address of all models.
        router: The router's folder.
        gateway: The gateway's address.
        targets: The router's, cheapest first.
    """

    models: str
    router: Path
    gateway: str
    targets: tuple[str, ...]

    def deployment(self, group: str, model: str, *, base: str = "") -> dict[str, Any]:
        """An entry of `model_list`."""
        place = {"api_base": base or self.models, "api_key": "none"}
        return {"model_name": group, "litellm_params": {"model": f"openai/{model}", **place}}


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """Models, a router and a gateway, until the block ends."""
    data = make_routing_dataset(queries=200, targets=3)
    recipe = Recipe(features=(ComplexityConfig(),), predictor=LogisticConfig())
    config = FitConfig(test=0.15, recipe=recipe, resamples=20)
    fit_router(data, config=config).router.save(folder / "router")
    provider = Provider(name="nobody", base_url=unheard())
    targets = tuple(replace(target, provider=provider.name) for target in data.pool)
    write_pool(Pool(targets, None, (provider,)), folder / "pool.yaml")
    with (
        serve([ScriptedModel(name, {}, otherwise=name) for name in MODELS]) as server,
        _gateway(folder) as gateway,
    ):
        yield World(
            models=server.url.removesuffix("/v1") + "/v1",
            router=folder / "router",
            gateway=gateway,
            targets=data.pool.names,
        )


@contextmanager
def _gateway(folder: Path) -> Iterator[str]:
    line = [sys.executable, "-c", COMMAND, "serve", str(folder / "router")]
    line += ["--pool", str(folder / "pool.yaml"), "--port", "0"]
    line += ["--receipts", f"sqlite:///{folder / 'receipts.sqlite'}"]
    quiet = {**os.environ, "PREFILL_ROUTER_LOGS__LEVEL": "error"}
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=quiet) as process:
        try:
            first_line = process.stdout.readline() if process.stdout else ""
            if not first_line.startswith("serving at "):
                raise SystemExit("the gateway didn't start")
            yield first_line.removeprefix("serving at ").strip()
        finally:
            process.terminate()


def count_decisions(folder: Path) -> Counter[str]:
    """How many decisions the gateway took, by endpoint, once it has ended."""
    with closing(sqlite3.connect(folder / "receipts.sqlite")) as receipts:
        return Counter(row[0] for row in receipts.execute("select endpoint from receipts"))


def unheard() -> str:
    """An address that nobody listens at."""
    with closing(socket.socket()) as place:
        place.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{place.getsockname()[1]}/v1"


@contextmanager
def refusing() -> Iterator[tuple[str, list[int]]]:
    """A gateway whose budget is spent: its address, and an entry for each time it was asked."""
    requests: list[int] = []

    class Refusal(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            requests.append(1)
            self.send_response(429)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()
