"""Runs the server in a thread of this process, on loopback by default.

It also serves the tiny pool, and makes the pool file for it.
"""

import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

from prefill_router.errors import ConfigError
from prefill_router.lazy_imports import optional_imports
from prefill_router.minipool.pool_models import NAMES, folder_of, pool
from prefill_router.minipool.server.app import App, Record, Stats
from prefill_router.minipool.server.faults import Faults
from prefill_router.minipool.server.generation import Model
from prefill_router.targets import Endpoint, Pool, Provider, RequestOptions

LOOPBACK = "127.0.0.1"
_KEEP_ALIVE = 300  # seconds; longer than clients keep idle connections, so that they close them
_PATIENCE = 3  # seconds that replies have to end when the server is stopped


@final
class Server:
    """A running server.

    Attributes:
        base_url: The base URL for clients, such as `http://127.0.0.1:8123/v1`.
        url: The same without `/v1`, for `/health` and `/stats`.
    """

    def __init__(self, app: App, *, host: str, port: int) -> None:
        self._app = app
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{port}"
        self.base_url = f"{self.url}/v1"

    @property
    def log(self) -> list[Record]:
        """The records of all requests that have ended, refused ones included, in that order."""
        return list(self._app.log.records)

    def stats(self) -> Stats:
        """The sums so far."""
        return self._app.stats()


@contextmanager
def serve(
    models: Sequence[Model],
    *,
    faults: Faults | None = None,
    port: int = 0,
    host: str = LOOPBACK,
    api_key: str | None = None,
    max_batch: int = 64,
) -> Iterator[Server]:
    """Serve models until the block ends.

    Args:
        models: The models, with distinct names.
        faults: The faults to inject, and the dialect of each model; by default none, and OpenAI's.
        port: The port to listen on; 0 picks a free one.
        host: The address to listen on.
        api_key: The key that requests must have; None for no key.
        max_batch: Most answers that are generated at once.

    Raises:
        ConfigError: There is no model, two have the same name, a fault names another model, or
            the port can't be used.
    """
    names = [model.name for model in models]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"models named {names} can't be served; give one or more, all different")
    injected = faults or Faults()
    injected.check_models(names)
    listening = _listen(host, port)
    app = App(models, faults=injected, api_key=api_key, max_batch=max_batch)
    runner = _runner(app)
    thread = threading.Thread(
        target=runner.run, kwargs={"sockets": [listening]}, name="minipool-server", daemon=True
    )
    app.worker.start()
    thread.start()
    try:
        yield Server(app, host=host, port=listening.getsockname()[1])
    finally:
        app.worker.stop()
        runner.should_exit = True
        thread.join()
        listening.close()


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; requests before the server has started wait in its backlog."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only for sockets with an explicit protocol
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
    except (OSError, OverflowError) as error:
        listening.close()
        raise ConfigError(
            f"can't listen on {host} port {port}: {error}; name another with --port, or 0 for a "
            "free one"
        ) from None
    return listening


def _runner(app: App) -> Any:
    with optional_imports("serving the tiny models"):
        import uvicorn

    logging.getLogger("uvicorn.error").addFilter(_unless_cut_off)
    config = uvicorn.Config(
        app,
        loop="asyncio",  # the same with or without uvicorn's optional parts
        http="h11",
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_PATIENCE,
    )
    return uvicorn.Server(config)


def _unless_cut_off(record: logging.LogRecord) -> bool:
    """A log filter that drops errors about replies that a fault cut off."""
    return "without completing response" not in str(record.msg)


_CONCURRENCY = 64
_SERVES: tuple[Endpoint, ...] = ("chat", "completions")
_MOST_TOKENS = 64  # several times the longest right answer


@contextmanager
def serve_pool(
    names: Sequence[str] | None = None,
    *,
    faults: Faults | None = None,
    port: int = 0,
    host: str = LOOPBACK,
    api_key: str | None = None,
    max_batch: int = 64,
) -> Iterator[Server]:
    """Serve the tiny pool's targets until the block ends.

    Args:
        names: The targets; all by default.
        faults: The faults to inject, and the dialect of each model; by default none, and OpenAI's.
        port: The port to listen on; 0 picks a free one.
        host: The address to listen on.
        api_key: The key that requests must have; None for no key.
        max_batch: Most answers that are generated at once.

    Raises:
        ConfigError: There is no such target, or the port can't be used.
    """
    from prefill_router.minipool.server.engine import LocalModel

    chosen = NAMES if names is None else names
    models = [LocalModel(folder_of(name), name=name) for name in chosen]
    with serve(
        models, faults=faults, port=port, host=host, api_key=api_key, max_batch=max_batch
    ) as server:
        yield server


def served_pool(
    server: Server, *, names: Sequence[str] | None = None, api_key_env: str | None = None
) -> Pool:
    """The pool of a server of the tiny pool: endpoint, prices, and request parameters.

    Args:
        server: The running server.
        names: The targets that it serves; all by default.
        api_key_env: The environment variable that holds its key.

    Raises:
        ConfigError: There is no such target.
    """
    priced = pool()
    provider = Provider(
        name="minipool",
        base_url=server.base_url,
        api_key_env=api_key_env,
        concurrency=_CONCURRENCY,
    )
    request = RequestOptions(max_tokens=_MOST_TOKENS, temperature=0.0)
    targets = tuple(
        replace(target, provider=provider.name, request=request, serves=_SERVES)
        for target in priced.select(NAMES if names is None else names)
    )
    return Pool(targets, priced.prices_date, (provider,))
