"""Reads everything that a gateway is made of, and reports every error at once."""

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, final

import numpy as np
from pydantic import PlainSerializer, PlainValidator

from prefill_router.endpoints import PLAIN_HTTP, provider_keys
from prefill_router.errors import ConfigError, CorruptError, PrefillRouterError, refer
from prefill_router.remote import PathOrUrl, location
from prefill_router.router import (
    EncoderSources,
    LightRouter,
    VersionRegistry,
    read_light,
    refuse_cascade,
    without_router,
)
from prefill_router.targets import Pool, Target, read_pool
from prefill_router_gateway.guard import ClientKeys, check_listen, read_keys
from prefill_router_gateway.protocol import HeaderFilter
from prefill_router_gateway.records import FALLBACKS
from prefill_router_gateway.runtime.versions import ServedVersions
from prefill_router_gateway.settings import (
    AgentSettings,
    GatewaySettings,
    meant,
    read_settings,
    stray_variables,
)

_Place = Annotated[
    PathOrUrl | None,
    PlainValidator(lambda place: None if place is None else location(place)),
    PlainSerializer(lambda place: None if place is None else str(place)),
]


@final
@dataclass(frozen=True, kw_only=True)
class GatewayPaths:
    """The files and options that a gateway is loaded from, at its start and at each reload.

    Attributes:
        router: The router's folder, on the disk or at a URL. None where none has been fitted yet,
            so that the target in `routing.fallback` answers every request for `auto`.
        pool: The pool file; None where none was given, which is an error.
        config: The settings file; None for defaults and the environment.
        overrides: Settings that override both, by section: `{"routing": {"lam": 0.7}}`.
        keys: The file of client keys; None for the one in the settings.
        encoder_folders: Folders of local encoders.
        device: The device of the encoder; None to choose automatically.
        threads: CPU threads of the encoder, each of which reads a prompt of its own where several
            wait. None for one fewer than there are cores, which leaves one for the gateway.
        encoders: The folder of the sockets of the encoders' processes that several workers share;
            None where the gateway starts its own process.
        versions: The folder or URL of a router's versions, which take the place of `router`.
        pinned: Which of them are loaded, whatever their state says; None for what it says.
    """

    router: _Place
    pool: Path | None = None
    config: Path | None = None
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    keys: Path | None = None
    encoder_folders: tuple[Path, ...] = ()
    device: str | None = None
    threads: int | None = None
    encoders: Path | None = None
    versions: _Place = None
    pinned: ServedVersions | None = None

    @property
    def registry(self) -> VersionRegistry | None:
        """The versions of a router; None where it has none."""
        return None if self.versions is None else VersionRegistry(self.versions)

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
        router: The router's folder; None where there is no router.
        version: The router's version; None where it has none.
        share: The share of the conversations that it decides on, if it is a candidate.
        step: When and why it came to decide; empty without a version.
        candidate: The same with the candidate's router; None for none.
        candidate_problems: Why the candidate can't be loaded.
    """

    settings: GatewaySettings
    light: LightRouter
    pool: Pool
    keys: ClientKeys | None
    warnings: tuple[str, ...] = ()
    router: PathOrUrl | None = None
    version: str | None = None
    share: float | None = None
    step: str = ""
    candidate: "LoadedGateway | None" = None
    candidate_problems: tuple[str, ...] = ()

    @property
    def baseline(self) -> str | None:
        """The target that costs are compared with: that of the settings, or the best by training.

        None where the router doesn't have the targets' train accuracy.
        """
        accuracy = self.light.reference_accuracy
        if self.settings.savings.baseline is not None:
            return self.settings.savings.baseline
        if accuracy is None or np.isnan(accuracy).all():
            return None
        return self.light.pool.names[int(np.nanargmax(accuracy))]

    @property
    def served(self) -> ServedVersions:
        """The versions that serve."""
        other = self.candidate
        if other is None:
            return ServedVersions(self.version)
        return ServedVersions(self.version, other.version, other.share or 0.0)

    @property
    def lam_reason(self) -> str:
        """Which lam decides, and why."""
        lam, own = self.settings.routing.lam, self.light.lam
        if own is None:
            return f"lam {lam:.3g}: the router's fit chose none"
        if lam != own:
            return f"lam {lam:.3g}, as set; the router's setting is {own:.3g}, {self.light.rule}"
        return f"lam {lam:.3g}: {self.light.rule}"

    def without_candidate(self, *problems: str) -> "LoadedGateway":
        """The same without the candidate, and why."""
        return replace(self, candidate=None, candidate_problems=problems)


def load(places: GatewayPaths, *, environment: Mapping[str, str] | None = None) -> LoadedGateway:
    """Read and check everything.

    Args:
        places: The files and options.
        environment: The variables with the providers' keys; by default the process's.

    Raises:
        ConfigError: Something is invalid; the message lists every problem.
    """
    problems: list[str] = []
    served = _collect_problems(partial(_read_served, places), problems)
    router = None if served is None else _find_router(places, served.current)
    settings = _collect_problems(places.settings, problems)
    pool = _collect_problems(partial(_read_pool, places), problems)
    key_file = places.keys if settings is None else settings.keys
    keys = None if key_file is None else _collect_problems(partial(read_keys, key_file), problems)
    called = None if pool is None else _select_callable(pool, problems)
    light = None if called is None or served is None else without_router(called)
    if router is not None:
        light = _collect_problems(partial(_read_light, router), problems)
    if called is not None:
        variables = os.environ if environment is None else environment
        _collect_problems(partial(provider_keys, called, variables), problems)
    for check in _list_checks(settings, called, light, keys):
        _collect_problems(check, problems)
    if problems or not (settings and light and pool and called and served):
        raise ConfigError(*problems)
    if light.fingerprint:
        light = light.with_pool(
            _merge_pools(light.pool, pool, _read_charged(places, served.current))
        )
    own_settings = _use_own_lam(settings, light)
    warnings = tuple(_list_warnings(called, light, own_settings))
    loaded = LoadedGateway(
        settings=own_settings,
        light=light,
        pool=called,
        keys=keys,
        warnings=warnings,
        router=router,
        version=served.current,
        step=_describe_step(places, served.current),
    )
    if served.candidate is None:
        return loaded
    return _add_candidate(loaded, places, served, pool, settings)


def _read_served(places: GatewayPaths) -> ServedVersions:
    if places.versions is None:
        return ServedVersions(None)
    return places.pinned or ServedVersions.of(VersionRegistry.at(places.versions).state())


def _find_router(places: GatewayPaths, version: str | None) -> PathOrUrl | None:
    if places.registry is None:
        return places.router
    return None if version is None else places.registry.router(version)


def _read_light(router: PathOrUrl) -> LightRouter:
    """A router's folder; where it is damaged, the error says where to read on."""
    try:
        return read_light(router)
    except CorruptError as error:
        error.reword(lambda message: f"{message}; {refer('the-router-is-damaged')}")
        raise


def _add_candidate(
    loaded: LoadedGateway,
    places: GatewayPaths,
    served: ServedVersions,
    pool: Pool,
    settings: GatewaySettings,
) -> LoadedGateway:
    """Load the candidate too; where that fails, the current version decides on everything."""
    problems: list[str] = []
    router = _find_router(places, served.candidate)
    light = None if router is None else _collect_problems(partial(_read_light, router), problems)
    if light is not None:
        _collect_problems(partial(refuse_cascade, light.policy), problems)
        _collect_problems(partial(_check_targets, loaded.settings, loaded.pool, light), problems)
    if light is None or problems:
        return loaded.without_candidate(*(f"version {served.candidate}: {why}" for why in problems))
    candidate = replace(
        loaded,
        settings=_use_own_lam(settings, light),
        light=light.with_pool(
            _merge_pools(light.pool, pool, _read_charged(places, served.candidate))
        ),
        router=router,
        version=served.candidate,
        share=served.share,
        step=_describe_step(places, served.candidate),
    )
    return replace(loaded, candidate=candidate)


def _use_own_lam(settings: GatewaySettings, light: LightRouter) -> GatewaySettings:
    """The settings with the lam that the router's fit chose; a lam that is set stays."""
    routing = settings.routing
    if light.lam is None or "lam" in routing.model_fields_set:
        return settings
    own = routing.model_copy(update={"lam": light.lam})
    return settings.model_copy(update={"routing": own})


def _read_pool(places: GatewayPaths) -> Pool:
    """The pool; never the endpoints in a router's folder, which may come from someone else."""
    if places.pool is None:
        raise ConfigError(
            "no pool file is given, and the endpoints in a router's folder are never called; give "
            "one with --pool pool.yaml"
        )
    return read_pool(places.pool)


def _collect_problems(read: Callable[[], _T], problems: list[str]) -> _T | None:
    try:
        return read()
    except PrefillRouterError as error:
        problems += error.messages
    except OSError as error:
        problems.append(str(error))
    return None


def _select_callable(pool: Pool, problems: list[str]) -> Pool | None:
    names = [t.name for t in pool if t.provider is not None or t.base_url is not None]
    if not names:
        problems.append("no target of the pool has an endpoint; give each a base_url or a provider")
        return None
    return pool.select(names)


def _list_checks(
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
        yield partial(keys.check_targets, (*pool.names, *pool.models))
    if pool is not None and light is not None:
        yield partial(_check_targets, settings, pool, light)


def _find_unknown_of_kinds(agents: AgentSettings, targets: set[str], there: str) -> Iterator[str]:
    """The problems with targets of kinds of agents' requests that aren't known."""
    for place, rule in agents.named.items():
        for name in sorted((rule.targets or frozenset()) - targets):
            near = meant(name, list(targets))
            yield f"agents.{place}.targets has {name!r}; {there}{near}"


def _check_targets(settings: GatewaySettings | None, pool: Pool, light: LightRouter) -> None:
    problems = []
    targets = set(pool.names) & set(light.pool.names)
    if not targets:
        problems.append(
            f"the pool has none of the router's targets {list(light.pool.names)}; it has "
            f"{list(pool.names)}; name the targets of the pool file as the router does"
        )
    there = f"of the router's targets the pool has {sorted(targets)}"
    fallback = None if settings is None else settings.routing.fallback
    if fallback is not None and not light.fingerprint and fallback not in targets:
        problems.append(
            "there is no router, so a target must answer everything: name it with --default, or "
            f"as routing.fallback; the pool has {sorted(targets)}{meant(fallback, list(targets))}"
        )
    elif fallback is not None and fallback not in {*targets, *FALLBACKS}:
        near = meant(fallback, [*FALLBACKS, *targets])
        problems.append(
            f"routing.fallback is {fallback!r}; it must be one of {list(FALLBACKS)} or a target; "
            f"{there}{near}"
        )
    if settings is not None:
        problems += _find_unknown_of_kinds(settings.agents, targets | set(pool.models), there)
    otherwise = None if settings is None else settings.traffic.otherwise
    if otherwise is not None and otherwise not in targets:
        near = meant(otherwise, list(targets))
        problems.append(f"traffic.otherwise is {otherwise!r}; {there}{near}")
    baseline = None if settings is None else settings.savings.baseline
    if baseline is not None and baseline not in targets:
        near = meant(baseline, list(targets))
        problems.append(f"savings.baseline is {baseline!r}; {there}{near}")
    if problems:
        raise ConfigError(*problems)


def _check_budgets(settings: GatewaySettings, keys: ClientKeys | None) -> None:
    names = [key.name for key in keys or ()]
    key_names = {b.key for b in settings.budgets if b.key is not None}
    problems = [
        f"budgets name the key {name!r}, which isn't in the file of keys{meant(name, names)}"
        for name in sorted(key_names - set(names))
    ]
    if problems:
        raise ConfigError(*problems)


def _list_warnings(pool: Pool, light: LightRouter, settings: GatewaySettings) -> Iterator[str]:
    others = [name for name in pool.names if name not in light.pool.names]
    lacking = [name for name in light.pool.names if name not in pool.names]
    if lacking:
        near = next(filter(None, (meant(name, others) for name in lacking)), "")
        yield f"{', '.join(lacking)}: no endpoint in the pool, so never called{near}"
    for name in settings.routing.names:
        if name in pool.names:
            yield f"routing.names has {name}, which is also a target: the target takes precedence"
    verdict = light.verdict
    if verdict is not None and verdict["word"] == "not worth it":
        yield "the router isn't worth it by its own verdict: prefill-router show has the reason"
    if light.labels == "vote":
        yield (
            "the router learned from votes: what is called the probability of a correct answer is "
            "the chance to win against the average target"
        )
    if light.lam is not None and settings.routing.lam != light.lam:
        yield (
            f"lam is set to {settings.routing.lam:g}; the router was fitted to be used at "
            f"{light.lam:.3g}, {light.rule}"
        )
    yield from _warn_of_unpriced(pool, () if light.costs.is_free else light.pool.names)
    deployed = pool.deployment_pool
    variables = {
        *_OTHER_VARIABLES,
        *(p.api_key_env for p in map(deployed.provider_of, deployed.names)),
    }
    for name, suggestion in stray_variables().items():
        if name not in variables:
            yield f"the environment variable {name} isn't a setting{suggestion}"


def _warn_of_unpriced(pool: Pool, estimated: Collection[str]) -> Iterator[str]:
    unpriced = [target.name for target in pool if not target.has_price]
    for is_estimated in (True, False):
        names = ", ".join(name for name in unpriced if (name in estimated) is is_estimated)
        instead = (
            "the router's estimates are counted" if is_estimated else "spending there isn't counted"
        )
        if names:
            yield f"{names}: no prices, so {instead}"


def _merge_pools(routed: Pool, pool: Pool, charged: Collection[str]) -> Pool:
    """The router's targets as in the pool file; those that it lacks serve nothing."""
    by_name = {target.name: target for target in pool}
    by_name |= {
        name: by_name[name].with_prices_of(routed[name]) for name in charged if name in by_name
    }
    targets = tuple(by_name.get(name) or _drop_endpoint(routed[name]) for name in routed.names)
    return Pool(targets, pool.prices_date, pool.providers)


def _read_charged(places: GatewayPaths, version: str | None) -> Collection[str]:
    """The targets whose prices are those of the version, before those of the pool file."""
    registry = places.registry
    return () if registry is None or version is None else registry.state()[version].charged


def _describe_step(places: GatewayPaths, version: str | None) -> str:
    """The step by which a version decides, and when it was taken; empty without a version."""
    registry = places.registry
    if registry is None or version is None:
        return ""
    step = registry.state().step_of(version)
    return "" if step is None else f"{step.at}: {step.words}"


def _drop_endpoint(target: Target) -> Target:
    return replace(target, provider=None, base_url=None, api_key_env=None, endpoints=(), serves=())


def encoder_socket(folder: Path, loaded: LoadedGateway) -> Path:
    """The socket of the shared encoder with this router and these sizes."""
    routing = loaded.settings.routing
    named = f"{loaded.light.fingerprint} {routing.max_batch} {routing.reuse_bytes}"
    return folder / hashlib.sha256(named.encode()).hexdigest()[:16]
