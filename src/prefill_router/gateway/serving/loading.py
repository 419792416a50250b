"""Reading everything that a gateway is made of, and finding every error at once."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, final

from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.gateway.guarding import ClientKeys, check_listen, read_keys
from prefill_router.gateway.protocol import Passing
from prefill_router.gateway.serving.places import Places
from prefill_router.gateway.settings import Settings
from prefill_router.router.light import LightRouter, read_light
from prefill_router.targets import Pool, read_pool
from prefill_router.upstream import provider_keys

_T = TypeVar("_T")
_FALLBACKS = ("prior", "best", "cheapest")


@final
@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What was read, and holds together.

    Attributes:
        settings: The settings.
        light: The router, at the prices of the pool file and with its endpoints.
        pool: All that can be asked: the pool file's targets that have an endpoint, of which the
            router may not know all.
        keys: The clients' keys; None where none are asked for.
    """

    settings: Settings
    light: LightRouter
    pool: Pool
    keys: ClientKeys | None


def load(places: Places, *, environment: Mapping[str, str] | None = None) -> Loaded:
    """Read and check everything.

    Args:
        places: Where it is.
        environment: Where the providers' keys are; the process's if not given.

    Raises:
        ConfigError: Something can't be used; the message names everything that can't.
    """
    found: list[str] = []
    settings = _tried(places.settings, found)
    light = _tried(partial(read_light, places.router), found)
    pool = None
    if places.pool is not None:
        pool = _tried(partial(read_pool, places.pool), found)
    elif light is not None:
        pool = light.pool
    keys = None
    if settings is not None and settings.keys is not None:
        keys = _tried(partial(read_keys, settings.keys), found)
    asked = None if pool is None else _askable(pool, found)
    if asked is not None:
        known = os.environ if environment is None else environment
        _tried(partial(provider_keys, asked, known), found)
    if settings is not None and asked is not None and light is not None:
        found += _contradictions(settings, asked, light, keys)
    if found or settings is None or light is None or asked is None:
        raise ConfigError("; ".join(found))
    merged = light.with_pool(_merged(light.pool, asked))
    return Loaded(settings=settings, light=merged, pool=asked, keys=keys)


def _tried(read: Callable[[], _T], found: list[str]) -> _T | None:
    try:
        return read()
    except (PrefillRouterError, OSError) as error:
        found.append(str(error))
        return None


def _askable(pool: Pool, found: list[str]) -> Pool | None:
    names = [t.name for t in pool if t.provider is not None or t.base_url is not None]
    if not names:
        found.append("no target of the pool has an endpoint; give each a base_url or a provider")
        return None
    return pool.select(names)


def _contradictions(
    settings: Settings, pool: Pool, light: LightRouter, keys: ClientKeys | None
) -> Iterator[str]:
    """What each part alone doesn't show."""
    try:
        check_listen(settings.listen, keys)
    except ConfigError as error:
        yield str(error)
    try:
        if keys is not None:
            keys.check_targets(pool.names)
    except ConfigError as error:
        yield str(error)
    try:
        Passing(settings.forward_headers)
    except ConfigError as error:
        yield str(error)
    known = set(pool.names) & set(light.pool.names)
    if not known:
        yield (
            f"the pool has none of the router's targets {list(light.pool.names)}; it has "
            f"{list(pool.names)}"
        )
    fallback, otherwise = settings.routing.fallback, settings.traffic.otherwise
    if fallback not in known and fallback not in _FALLBACKS:
        yield (
            f"routing.fallback is {fallback!r}; it is one of {list(_FALLBACKS)}, or one of the "
            f"router's targets that the pool has: {sorted(known)}"
        )
    if otherwise is not None and otherwise not in known:
        yield (
            f"traffic.otherwise is {otherwise!r}; of the router's targets the pool has "
            f"{sorted(known)}"
        )
    named = {b.key for b in settings.budgets if b.key is not None}
    unknown = sorted(named - {key.name for key in keys or ()})
    if unknown:
        yield f"budgets name the keys {unknown}, which the file of keys hasn't"


def _merged(routed: Pool, pool: Pool) -> Pool:
    """The router's targets, as the pool file has them; one that it lacks can't be asked."""
    known = set(pool.names)
    targets = tuple(
        pool[name] if name in known else replace(routed[name], provider=None)
        for name in routed.names
    )
    return Pool(targets, pool.prices_date, pool.providers)
