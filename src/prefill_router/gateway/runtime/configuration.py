"""Everything that a gateway is made of: where it is, and read with every error at once.

Some settings hold from the start of a gateway to its end, whatever is reloaded.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, final

from prefill_router.client import PLAIN_HTTP, provider_keys
from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.gateway.guard import ClientKeys, check_listen, read_keys
from prefill_router.gateway.protocol import HeaderFilter
from prefill_router.gateway.settings import GatewaySettings, nearest, read_settings, stray_variables
from prefill_router.gateway.types import FALLBACKS
from prefill_router.router import LightRouter, read_light, refuse_cascade
from prefill_router.targets import Pool, Target, read_pool


@final
@dataclass(frozen=True, kw_only=True)
class GatewayPaths:
    """What a gateway is made of, and read from again at a reload.

    Attributes:
        router: The router's folder.
        pool: The pool file; None where none is named, so that nothing can be asked.
        config: The settings' file; None for defaults and the environment's.
        overrides: Settings that come before both, by part: `{"routing": {"lam": 0.7}}`.
        keys: The file of clients' keys, in place of the settings'; None for theirs.
        encoder_folders: Folders of local encoders.
        device: Where the encoder runs; None to choose.
        threads: Processor threads of the encoder; None for one fewer than there are cores, so that
            one is left for the gateway.
    """

    router: Path
    pool: Path | None = None
    config: Path | None = None
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    keys: Path | None = None
    encoder_folders: tuple[Path, ...] = ()
    device: str | None = None
    threads: int | None = None

    def settings(self) -> GatewaySettings:
        """The settings, as they are now.

        Raises:
            ConfigError: Some can't be used; it tells every one.
        """
        named = {} if self.keys is None else {"keys": self.keys}
        return read_settings(self.config, options={**self.overrides, **named})


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
class LoadedGateway:
    """What was read, and holds together.

    Attributes:
        settings: The settings.
        light: The router, at the prices of the pool file and with its endpoints.
        pool: All that can be asked: the pool file's targets that have an endpoint, of which the
            router may not know all.
        keys: The clients' keys; None where none are asked for.
        warnings: What can be used, but hardly as it was meant.
    """

    settings: GatewaySettings
    light: LightRouter
    pool: Pool
    keys: ClientKeys | None
    warnings: tuple[str, ...] = ()


def load(places: GatewayPaths, *, environment: Mapping[str, str] | None = None) -> LoadedGateway:
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
    return LoadedGateway(settings=settings, light=merged, pool=asked, keys=keys, warnings=warnings)


def _pool(places: GatewayPaths) -> Pool:
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
    settings: GatewaySettings | None,
    pool: Pool | None,
    light: LightRouter | None,
    keys: ClientKeys | None,
) -> Iterator[Callable[[], object]]:
    """What each part alone doesn't show, as far as its parts could be read."""
    if light is not None:
        yield partial(refuse_cascade, light.policy)
    if settings is not None:
        yield partial(HeaderFilter, settings.forward_headers)
        if keys is not None or settings.keys is None:
            yield partial(check_listen, settings.listen, keys)
            yield partial(_check_budgets, settings, keys)
    if keys is not None and pool is not None:
        yield partial(keys.check_targets, pool.names)
    if pool is not None and light is not None:
        yield partial(_check_targets, settings, pool, light)


def _check_targets(settings: GatewaySettings | None, pool: Pool, light: LightRouter) -> None:
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


def _check_budgets(settings: GatewaySettings, keys: ClientKeys | None) -> None:
    known = [key.name for key in keys or ()]
    named = {b.key for b in settings.budgets if b.key is not None}
    told = [
        f"budgets name the key {name!r}, which the file of keys hasn't{nearest(name, known)}"
        for name in sorted(named - set(known))
    ]
    if told:
        raise ConfigError(*told)


def _warnings(pool: Pool, light: LightRouter, settings: GatewaySettings) -> Iterator[str]:
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


_LASTING = (
    "listen",
    "logs",
    "traces",
    "receipts.url",
    "receipts.keep_days",
    "receipts.wait_seconds",
    "receipts.max_queue",
    "limits.header_bytes",
    "limits.connections",
    "limits.waiting_per_address",
    "limits.held_bytes",
)


def static_changes(begun: GatewaySettings, read: GatewaySettings) -> tuple[str, ...]:
    """A warning of what was changed in vain; none where nothing was.

    Args:
        begun: What the gateway was started with.
        read: What was read anew.
    """
    changed = [n for n in _LASTING if attrgetter(n)(begun) != attrgetter(n)(read)]
    if not changed:
        return ()
    return (f"{', '.join(changed)}: changed, but as at the start until the gateway starts anew",)
