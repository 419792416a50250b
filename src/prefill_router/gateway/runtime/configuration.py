"""Reads everything that a gateway is made of, and reports every error at once.

Some settings can't be changed by a reload.
"""

import hashlib
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
from prefill_router.remote import PathOrUrl
from prefill_router.router import EncoderSources, LightRouter, read_light, refuse_cascade
from prefill_router.targets import Pool, Target, read_pool


@final
@dataclass(frozen=True, kw_only=True)
class GatewayPaths:
    """The files and options that a gateway is loaded from, at its start and at each reload.

    Attributes:
        router: The router's folder, on the disk or at a URL.
        pool: The pool file; None where none was given, which is an error.
        config: The settings file; None for defaults and the environment.
        overrides: Settings that override both, by section: `{"routing": {"lam": 0.7}}`.
        keys: The file of client keys; None for the one in the settings.
        encoder_folders: Folders of local encoders.
        device: The device of the encoder; None to choose automatically.
        threads: CPU threads of the encoder; None for one fewer than there are cores, which leaves
            one for the gateway.
    """

    router: PathOrUrl
    pool: Path | None = None
    config: Path | None = None
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    keys: Path | None = None
    encoder_folders: tuple[Path, ...] = ()
    device: str | None = None
    threads: int | None = None
    encoders: Path | None = None

    @property
    def encoder_sources(self) -> EncoderSources:
        """Where the router's encoders are found."""
        return EncoderSources(
            folders={path.resolve().name: path for path in self.encoder_folders}, device=self.device
        )

    def settings(self) -> GatewaySettings:
        """Read the settings.

        Raises:
            ConfigError: Some are invalid; the message lists them all.
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
"""The package's other environment variables."""


@final
@dataclass(frozen=True, kw_only=True)
class LoadedGateway:
    """The router, pool, settings and keys, read and checked.

    Attributes:
        settings: The settings.
        light: The router, with the prices and endpoints of the pool file.
        pool: The pool file's targets that have an endpoint; the router may not know all of them.
        keys: The client keys; None where none are required.
        warnings: Warnings about valid settings that are probably mistakes.
    """

    settings: GatewaySettings
    light: LightRouter
    pool: Pool
    keys: ClientKeys | None
    warnings: tuple[str, ...] = ()


def load(places: GatewayPaths, *, environment: Mapping[str, str] | None = None) -> LoadedGateway:
    """Read and check everything.

    Args:
        places: The files and options.
        environment: The variables with the providers' keys; by default the process's.

    Raises:
        ConfigError: Something is invalid; the message lists every problem.
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
    """The pool; never the endpoints in a router's folder, which may come from someone else."""
    if places.pool is None:
        raise ConfigError(
            "no pool file is given, and the endpoints in a router's folder are never called; give "
            "one with --pool pool.yaml"
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
    """The checks across several parts, as far as the parts could be read."""
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
    problems = []
    known = set(pool.names) & set(light.pool.names)
    if not known:
        problems.append(
            f"the pool has none of the router's targets {list(light.pool.names)}; it has "
            f"{list(pool.names)}"
        )
    there = f"of the router's targets the pool has {sorted(known)}"
    fallback = None if settings is None else settings.routing.fallback
    if fallback is not None and fallback not in {*known, *FALLBACKS}:
        near = nearest(fallback, [*FALLBACKS, *known])
        problems.append(
            f"routing.fallback is {fallback!r}; it must be one of {list(FALLBACKS)} or a target; "
            f"{there}{near}"
        )
    otherwise = None if settings is None else settings.traffic.otherwise
    if otherwise is not None and otherwise not in known:
        near = nearest(otherwise, list(known))
        problems.append(f"traffic.otherwise is {otherwise!r}; {there}{near}")
    if problems:
        raise ConfigError(*problems)


def _check_budgets(settings: GatewaySettings, keys: ClientKeys | None) -> None:
    known = [key.name for key in keys or ()]
    named = {b.key for b in settings.budgets if b.key is not None}
    problems = [
        f"budgets name the key {name!r}, which isn't in the file of keys{nearest(name, known)}"
        for name in sorted(named - set(known))
    ]
    if problems:
        raise ConfigError(*problems)


def _warnings(pool: Pool, light: LightRouter, settings: GatewaySettings) -> Iterator[str]:
    others = [name for name in pool.names if name not in light.pool.names]
    lacking = [name for name in light.pool.names if name not in pool.names]
    if lacking:
        near = next(filter(None, (nearest(name, others) for name in lacking)), "")
        yield f"{', '.join(lacking)}: no endpoint in the pool, so never called{near}"
    for name in settings.routing.names:
        if name in pool.names:
            yield f"routing.names has {name}, which is also a target: the target takes precedence"
    yield from _unpriced(pool, () if light.costs.is_free else light.pool.names)
    deployed = pool.deployed
    theirs = {
        *_OTHER_VARIABLES,
        *(p.api_key_env for p in map(deployed.provider_of, deployed.names)),
    }
    for name, meant in stray_variables().items():
        if name not in theirs:
            yield f"the environment variable {name} isn't a setting{meant}"


def _unpriced(pool: Pool, estimated: Collection[str]) -> Iterator[str]:
    unpriced = [target.name for target in pool if not target.has_price]
    for known in (True, False):
        names = ", ".join(name for name in unpriced if (name in estimated) is known)
        instead = "the router's estimates are counted" if known else "spending there isn't counted"
        if names:
            yield f"{names}: no prices, so {instead}"


def _merged(routed: Pool, pool: Pool) -> Pool:
    """The router's targets as in the pool file; those that it lacks serve nothing."""
    known = set(pool.names)
    targets = tuple(pool[name] if name in known else _closed(routed[name]) for name in routed.names)
    return Pool(targets, pool.prices_date, pool.providers)


def _closed(target: Target) -> Target:
    return replace(target, provider=None, base_url=None, api_key_env=None, endpoints=(), serves=())


def encoder_socket(folder: Path, loaded: LoadedGateway) -> Path:
    """The socket of the shared encoder with this router and these sizes."""
    routing = loaded.settings.routing
    named = f"{loaded.light.fingerprint} {routing.max_batch} {routing.reuse_bytes}"
    return folder / hashlib.sha256(named.encode()).hexdigest()[:16]


def needs_shared_state(loaded: LoadedGateway) -> list[str]:
    """What would be wrong if several processes served and shared no state; empty if nothing."""
    settings, pool = loaded.settings, loaded.pool
    keys = [
        key
        for key in loaded.keys or ()
        if (key.requests_per_minute, key.concurrent, key.dollars_per_hour, key.dollars_per_day)
        != (None,) * 4
    ]
    tools = sum("tools" in target.accepts for target in pool)
    storing = sum("responses" in pool.serves(name) for name in pool.names)
    found = {
        "budgets": bool(settings.budgets),
        "limits of keys": bool(keys),
        "conversations (sessions.known_by isn't none)": settings.sessions.known_by != "none",
        f"tool loops ({tools} targets accept tools)": tools > 1,
        f"stored responses ({storing} targets serve responses)": storing > 1,
    }
    return [name for name, is_needed in found.items() if is_needed]


def refuse_unshared(loaded: LoadedGateway) -> None:
    """Check that several workers may serve.

    Raises:
        ConfigError: They would need state that they don't share; the message says which.
    """
    shared = getattr(loaded.settings, "shared", None)
    missing = needs_shared_state(loaded)
    if missing and getattr(shared, "url", None) is None:
        raise ConfigError(
            f"several workers would each have their own {', '.join(missing)}; share them through "
            "PostgreSQL with shared: {url: postgresql://...}, do without them, or serve with one "
            "worker"
        )


_LASTING = (
    "listen",
    "logs",
    "traces",
    "receipts.url",
    "receipts.keep_days",
    "receipts.wait_seconds",
    "receipts.max_queue",
    "shared",
    "limits.header_bytes",
    "limits.connections",
    "limits.waiting_per_address",
    "limits.held_bytes",
)


def static_changes(begun: GatewaySettings, read: GatewaySettings) -> tuple[str, ...]:
    """A warning about changed settings that a reload can't apply; empty if there are none.

    Args:
        begun: The settings that the gateway was started with.
        read: The settings that were reloaded.
    """
    changed = [n for n in _LASTING if attrgetter(n)(begun) != attrgetter(n)(read)]
    if not changed:
        return ()
    return (f"{', '.join(changed)}: changed, but only a restart of the gateway applies it",)
