"""Serving the tiny pool itself, and the pool file that leads to it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from prefill_router.minipool import NAMES, folder_of, pool
from prefill_router.minipool.server.faults import Faults
from prefill_router.minipool.server.running import LOOPBACK, Server, serve
from prefill_router.targets import Endpoint, Pool, Provider, RequestOptions

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
        names: Which; all by default.
        faults: What goes wrong, and how each model replies; by default nothing, and as OpenAI.
        port: 0 takes a free one.
        host: The address to listen on.
        api_key: The key that requests must bear; None asks for none.
        max_batch: At most so many answers are generated at once.

    Raises:
        ConfigError: There is no such target, or the port can't be had.
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
    """The pool file of a server of the tiny pool: endpoint, prices, and what is asked with.

    Args:
        server: Where it runs.
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
