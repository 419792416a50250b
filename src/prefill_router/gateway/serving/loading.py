"""Reading everything that a gateway is made of, and finding every error at once."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, final

from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.gateway.guarding import ClientKeys, check_listen, read_keys
from prefill_router.gateway.protocol import Passing
from prefill_router.gateway.serving.places import Places
from prefill_router.gateway.settings import Settings, nearest, stray_variables
from prefill_router.gateway.words import FALLBACKS
from prefill_router.router.decision import refuse_cascade
from prefill_router.router.light import LightRouter, read_light
from prefill_router.targets import Pool, Target, read_pool
from prefill_router.upstream import PLAIN_HTTP, provider_keys

_T = TypeVar("_T")
_OTHER_VARIABLES = (
    "PREFILL_ROUTER_CACHE",
    "PREFILL_ROUTER_EMBEDDINGS_KEY",
    "PREFILL_ROUTER_EMBEDDINGS_URL",
    PLAIN_HTTP,
)
"""What else of this package is set in the environment."""


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
        warnings: What can be used, but hardly as it was meant.
    """

    settings: Settings
    light: LightRouter
    pool: Pool
    keys: ClientKeys | None
    warnings: tuple[str, ...] = ()


def load(places: Places, *, environment: Mapping[str, str] | None = None) -> Loaded:
    """Read and check everything.

    Args:
        places: Where it is.
        environment: Where the providers' keys are; the process's if not given.

    Raises:
        ConfigError: Something can't be used; it tells everything that can't.
    """
    found: list[str] = []
    settings = _tried(places.settings, found)
    light = _tried(partial(read_light, places.router), found)
    pool = _tried(partial(_pool, places), found)
    named = places.keys if settings is None else settings.keys
    keys = None if named is None else _tried(partial(read_keys, named), found)
    asked = None if pool is None else _askable(pool, found)
    if asked is not None:
        known = os.environ if environment is None else environment
        _tried(partial(provider_keys, asked, known), found)
    for check in _checks(settings, asked, light, keys):
        _tried(check, found)
    if found or settings is None or light is None or pool is None or asked is None:
        raise ConfigError(*found)
    merged = light.with_pool(_merged(light.pool, pool))
    warnings = tuple(_warnings(asked, merged, settings))
    return Loaded(settings=settings, light=merged, pool=asked, keys=keys, warnings=warnings)


def _pool(places: Places) -> Pool:
    """Who is asked; never as a router's folder says, which may be somebody else's."""
    if places.pool is None:
        raise ConfigError(
            "no pool file is named, and the endpoints in a router's folder are never asked; give "
            "it with --pool pool.yaml"
        )
    return read_pool(places.pool)


def _tried(read: Callable[[], _T], found: list[str]) -> _T | None:
    try:
        return read()
    except PrefillRouterError as error:
        found += error.told
    except OSError as error:
        found.append(str(error))
    return None


def _askable(pool: Pool, found: list[str]) -> Pool | None:
    names = [t.name for t in pool if t.provider is not None or t.base_url is not None]
    if not names:
        found.append("no target of the pool has an endpoint; give each a base_url or a provider")
        return None
    return pool.select(names)


def _checks(
    settings: Settings | None,
    pool: Pool | None,
    light: LightRouter | None,
    keys: ClientKeys | None,
) -> Iterator[Callable[[], object]]:
    """What each part alone doesn't show, as far as its parts could be read."""
    if light is not None:
        yield partial(refuse_cascade, light.policy)
    if settings is not None:
        yield partial(Passing, settings.forward_headers)
        if keys is not None or settings.keys is None:
            yield partial(check_listen, settings.listen, keys)
            yield partial(_check_budgets, settings, keys)
    if keys is not None and pool is not None:
        yield partial(keys.check_targets, pool.names)
    if pool is not None and light is not None:
        yield partial(_check_targets, settings, pool, light)


def _check_targets(settings: Settings | None, pool: Pool, light: LightRouter) -> None:
    told = []
    known = set(pool.names) & set(light.pool.names)
    if not known:
        told.append(
            f"the pool has none of the router's targets {list(light.pool.names)}; it has "
            f"{list(pool.names)}"
        )
    there = f"of the router's targets the pool has {sorted(known)}"
    fallback = None if settings is None else settings.routing.fallback
    if fallback is not None and fallback not in {*known, *FALLBACKS}:
        near = nearest(fallback, [*FALLBACKS, *known])
        told.append(
            f"routing.fallback is {fallback!r}; it is one of {list(FALLBACKS)}, or a target; "
            f"{there}{near}"
        )
    otherwise = None if settings is None else settings.traffic.otherwise
    if otherwise is not None and otherwise not in known:
        near = nearest(otherwise, list(known))
        told.append(f"traffic.otherwise is {otherwise!r}; {there}{near}")
    if told:
        raise ConfigError(*told)


def _check_budgets(settings: Settings, keys: ClientKeys | None) -> None:
    known = [key.name for key in keys or ()]
    named = {b.key for b in settings.budgets if b.key is not None}
    told = [
        f"budgets name the key {name!r}, which the file of keys hasn't{nearest(name, known)}"
        for name in sorted(named - set(known))
    ]
    if told:
        raise ConfigError(*told)


def _warnings(pool: Pool, light: LightRouter, settings: Settings) -> Iterator[str]:
    others = [name for name in pool.names if name not in light.pool.names]
    lacking = [name for name in light.pool.names if name not in pool.names]
    if lacking:
        near = next(filter(None, (nearest(name, others) for name in lacking)), "")
        yield f"{', '.join(lacking)}: without an endpoint in the pool, so never asked{near}"
    for name in settings.routing.names:
        if name in pool.names:
            yield f"routing.names has {name}, which is a target: who asks for it gets the target"
    yield from _unpriced(pool, () if light.costs.is_free else light.pool.names)
    theirs = {*_OTHER_VARIABLES, *(p.api_key_env for p in map(pool.provider_of, pool.names))}
    for name, meant in stray_variables().items():
        if name not in theirs:
            yield f"the environment variable {name} sets nothing{meant}"


def _unpriced(pool: Pool, estimated: Collection[str]) -> Iterator[str]:
    unpriced = [target.name for target in pool if not target.has_price]
    for known in (True, False):
        names = ", ".join(name for name in unpriced if (name in estimated) is known)
        instead = "is what the router estimates" if known else "isn't counted"
        if names:
            yield f"{names}: no prices, so what is spent there {instead}"


def _merged(routed: Pool, pool: Pool) -> Pool:
    """The router's targets, as the pool file has them; one that it lacks serves nothing."""
    known = set(pool.names)
    targets = tuple(pool[name] if name in known else _closed(routed[name]) for name in routed.names)
    return Pool(targets, pool.prices_date, pool.providers)


def _closed(target: Target) -> Target:
    return replace(target, provider=None, base_url=None, api_key_env=None, serves=())
