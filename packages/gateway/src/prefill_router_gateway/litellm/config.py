"""Imports LiteLLM's `config.yaml` as a pool and gateway settings.

The format is documented at https://docs.litellm.ai/docs/proxy/configs and .../config_settings.
"""

import os
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, final

from prefill_router.errors import ConfigError
from prefill_router.options import read_bounds
from prefill_router.targets import PRICES, Pool, Provider, Target, TargetEndpoint
from prefill_router.yaml_files import read_yaml
from prefill_router_gateway.litellm.deployments import (
    MODES,
    ConfigFields,
    Deployment,
    LitellmProxy,
    TimeLimits,
    UnreachableError,
    find_listed,
    read_deployment,
)
from prefill_router_gateway.litellm.model_list import ModelList, read_model_list
from prefill_router_gateway.settings import FailureSettings, LimitSettings, SettingsSection

_NO_COUNTERPART = "has no counterpart"
_ROUTES = "the router chooses, and its order gives the fallbacks"
_BUDGETS = "budgets of the settings are dollars per hour or day; keys have their own"
_METRICS = "metrics are at /metrics, for Prometheus; the setting traces sends traces"
_SHARED = "replicas share budgets and conversations through PostgreSQL, see shared.url"
_WHY = {
    "max_budget": _BUDGETS,
    "budget_duration": _BUDGETS,
    "callbacks": _METRICS,
    "success_callback": _METRICS,
    "failure_callback": _METRICS,
    "redis_host": _SHARED,
    "redis_port": _SHARED,
    "redis_password": _SHARED,
    "redis_url": _SHARED,
    "routing_strategy": _ROUTES,
    "routing_strategy_args": _ROUTES,
    "fallbacks": _ROUTES,
    "default_fallbacks": _ROUTES,
    "content_policy_fallbacks": _ROUTES,
    "context_window_fallbacks": "targets too small for a request are skipped, see context_tokens",
    "enable_pre_call_checks": "always on: targets too small for a request are skipped",
    "model_group_alias": "a target has one name; routing.names are names that route",
    "master_key": "client keys are made by prefill-router key, and kept as hashes",
    "database_url": "receipts go to receipts.url",
    "forward_client_headers_to_llm_api": "see forward_headers",
    "litellm_params.api_version": "Azure's /openai/v1 needs none",
    "drop_params": "clients' parameters are forwarded unchanged",
    "cache": "answers aren't cached",
    "environment_variables": "set them where the gateway runs",
    "include": "other files aren't read; import each",
    "litellm_params.num_retries": "num_retries of router_settings applies to all",
    "litellm_params.max_retries": "num_retries of router_settings applies to all",
}
_ODD = re.compile(r"[^A-Za-z0-9._-]")
_WHOLE = ("num_retries", "max_fallbacks", "allowed_fails")
_TIMES = ("cooldown_time", "timeout", "stream_timeout")
_PARTS = ("router_settings", "litellm_settings", "general_settings")


@final
@dataclass(frozen=True, kw_only=True)
class GeneralSettings:
    """The parts of the file that apply to all its models.

    Attributes:
        settings: The gateway's settings, by section.
        times: The time limits of deployments that set none.
        left_out: The fields that were left out, and why.
    """

    settings: Mapping[str, Mapping[str, Any]]
    times: TimeLimits = field(default_factory=TimeLimits)
    left_out: tuple[tuple[str, str], ...] = ()


def read_general(value: Mapping[str, Any], environment: Mapping[str, str]) -> GeneralSettings:
    """Read all but `model_list`; `router_settings` take precedence over `litellm_settings`.

    Raises:
        ConfigError: Some values are invalid; the message lists them all.
    """
    parts = [ConfigFields(value.get(part), part, environment) for part in _PARTS]
    router, module, server = parts
    values: dict[str, Any] = {}
    wrong: list[str] = []
    places = {
        name: [(router, name), (module, "request_timeout" if name == "timeout" else name)]
        for name in (*_WHOLE, *_TIMES)
    }
    reads: list[tuple[str, Callable[[], float | None]]] = [
        *((name, partial(at.whole, own, least=0)) for name in _WHOLE for at, own in places[name]),
        *((name, partial(at.number, own)) for name in _TIMES for at, own in places[name]),
        ("requests", partial(server.whole, "global_max_parallel_requests")),
    ]
    for name, read in reads:
        try:
            number = read()
        except ConfigError as error:
            wrong.append(str(error))
        else:
            if number is not None:
                values.setdefault(name, number)
    if wrong:
        raise ConfigError("; ".join(wrong))
    return GeneralSettings(
        settings=_settings(values),
        times=TimeLimits(answer=values.get("timeout"), first_token=values.get("stream_timeout")),
        left_out=(
            *(
                (f"{part}.{name}", _WHY.get(name, _NO_COUNTERPART))
                for part, fields in zip(_PARTS, parts, strict=True)
                for name in fields.unread
            ),
            *(
                (str(name), _WHY.get(str(name), _NO_COUNTERPART))
                for name in value
                if name not in ("model_list", *_PARTS)
            ),
        ),
    )


def _settings(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The gateway's settings, each limited to its range.

    Some counts are one higher than LiteLLM's: it counts allowed failures and fallbacks, the gateway
    the failure that opens a breaker and all targets that are tried.
    """
    parts: dict[str, tuple[type[SettingsSection], dict[str, tuple[str, int]]]] = {
        "failures": (
            FailureSettings,
            {
                "retries": ("num_retries", 0),
                "targets": ("max_fallbacks", 1),
                "breaker_failures": ("allowed_fails", 1),
                "breaker_seconds": ("cooldown_time", 0),
            },
        ),
        "limits": (LimitSettings, {"requests": ("requests", 0)}),
    }
    sections = {
        part: {
            own: min(values[theirs] + more, read_bounds(section.model_fields[own].metadata)["le"])
            for own, (theirs, more) in settings.items()
            if theirs in values
        }
        for part, (section, settings) in parts.items()
    }
    return {part: settings for part, settings in sections.items() if settings}


@final
@dataclass(frozen=True, kw_only=True)
class OmittedSetting:
    """A part of the file that was left out.

    Attributes:
        what: Its field in the file, without the value.
        why: The reason, in a few words.
        models: The models that have it; empty for the whole file.
    """

    what: str
    why: str
    models: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class ImportedConfig:
    """LiteLLM's configuration, converted.

    Attributes:
        pool: The targets and their providers.
        settings: The gateway's settings, as in its file; empty if none has a counterpart.
        left_out: The parts without a counterpart.
        notes: By target, what was assumed and what is missing in the file.
        listed: The targets whose prices or abilities are from the list of models.
        list_source: Where that list is from, in words.
    """

    pool: Pool
    settings: Mapping[str, Mapping[str, Any]]
    left_out: tuple[OmittedSetting, ...]
    notes: Mapping[str, tuple[str, ...]]
    listed: tuple[str, ...]
    list_source: str


def import_config(
    path: Path,
    *,
    environment: Mapping[str, str] | None = None,
    models: ModelList | None = None,
    proxy: LitellmProxy | None = None,
) -> ImportedConfig:
    """Read LiteLLM's `config.yaml`.

    Several deployments of one `model_name` become the endpoints of one target. Deployments that
    can't be called are left out.

    Args:
        path: The file.
        environment: The variables for `os.environ/NAME`; by default this process's. Keys are
            never looked up: the pool gets the names of their variables.
        models: Has the prices and abilities that the file lacks; by default `read_model_list`.
        proxy: LiteLLM's own endpoint, for providers with other protocols; None for none.

    Raises:
        ConfigError: It isn't such a file, contains a key or an invalid value, or no deployment can
            be called; the message lists every problem.
    """
    variables = os.environ if environment is None else environment
    try:
        value = read_yaml(path)
        if not isinstance(value, dict) or not isinstance(value.get("model_list"), list):
            raise ConfigError("not LiteLLM's configuration: it has no model_list")
        listed = read_model_list() if models is None else models
        return _convert(value, variables, listed, proxy)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _convert(
    value: dict[str, Any],
    environment: Mapping[str, str],
    models: ModelList,
    proxy: LitellmProxy | None,
) -> ImportedConfig:
    wrong: list[str] = []
    try:
        general = read_general(value, environment)
    except ConfigError as error:
        general, wrong = GeneralSettings(settings={}), [str(error)]
    groups = _ModelGroups(general, environment, wrong, models, proxy)
    for place, row in enumerate(value["model_list"]):
        groups.add(place, row)
    pool = groups.pool()
    left = [OmittedSetting(what=what, why=why) for what, why in general.left_out]
    return ImportedConfig(
        pool=pool,
        settings=general.settings,
        left_out=(*left, *groups.left_out()),
        notes={name: notes for name, notes in groups.notes.items() if notes},
        listed=tuple(groups.listed),
        list_source=models.source,
    )


class _ModelGroups:
    """Deployments by the model name that clients use."""

    def __init__(
        self,
        general: GeneralSettings,
        environment: Mapping[str, str],
        wrong: list[str],
        models: ModelList,
        proxy: LitellmProxy | None,
    ) -> None:
        self._times = general.times
        self._environment = environment
        self._models, self._proxy = models, proxy
        self.listed: dict[str, None] = {}
        self._deployments: dict[str, list[Deployment]] = {}
        self._failed: dict[str, list[str]] = {}
        self._wrong = wrong
        self._left: dict[tuple[str, str], list[str]] = {}
        self.notes: dict[str, tuple[str, ...]] = {}

    def add(self, place: int, row: Any) -> None:
        """Read one entry."""
        name = row.get("model_name") if isinstance(row, dict) else None
        if not isinstance(name, str) or not name.strip():
            self._wrong.append(f"model_list[{place}] has no model_name")
            return
        if "*" in name:
            self._leave_out(name, "model_list", "stands for many models; name each one to import")
            return
        listed = find_listed(row, self._models)
        info = row.get("model_info") or {}
        if isinstance(info, dict):
            row = {**row, "model_info": {**listed, **_without_none(info)}}
        mode = row["model_info"].get("mode") if isinstance(info, dict) else None
        if mode is not None and mode not in MODES:
            self._leave_out(name, "model_list", "its mode isn't routed")
            return
        try:
            # A key in the file is refused even where its deployment isn't taken.
            ConfigFields(row.get("litellm_params"), f"model {name!r}", {}).key_variable("api_key")
        except ConfigError as error:
            self._wrong.append(str(error))
            self._failed.setdefault(name, []).append(str(error))
            return
        try:
            deployment = read_deployment(
                name, row, times=self._times, environment=self._environment, proxy=self._proxy
            )
        except UnreachableError as error:
            self._failed.setdefault(name, []).append(str(error))
            return
        except ConfigError as error:
            self._wrong.append(str(error))
            return
        self._deployments.setdefault(name, []).append(deployment)
        if listed.keys() - {"mode"}:
            self.listed[name] = None
        self.notes[name] = tuple(dict.fromkeys((*self.notes.get(name, ()), *deployment.notes)))
        for what in deployment.unread:
            self._leave_out(name, what, _WHY.get(what, _NO_COUNTERPART))

    def _leave_out(self, name: str, what: str, why: str) -> None:
        names = self._left.setdefault((what, why), [])
        if name not in names:
            names.append(name)

    def left_out(self) -> list[OmittedSetting]:
        """What was left out, with equal entries of several models merged."""
        spare = [
            OmittedSetting(what="model_list", why=why, models=(name,))
            for name, reasons in self._failed.items()
            for why in reasons
        ]
        left = [
            OmittedSetting(what=what, why=why, models=tuple(names))
            for (what, why), names in self._left.items()
        ]
        return [*left, *spare]

    def pool(self) -> Pool:
        """The pool.

        Raises:
            ConfigError: Some entries have invalid values, or none can be called.
        """
        reasons = [why for whys in self._failed.values() for why in whys]
        wrong = list(dict.fromkeys(self._wrong))
        if not self._deployments:
            wrong += dict.fromkeys(reasons)
        if wrong:
            raise ConfigError("; ".join(wrong))
        if not self._deployments:
            raise ConfigError("no entry of model_list can become a target")
        return _pool(self._deployments.values())


def _without_none(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if value is not None}


def _pool(groups: Iterable[list[Deployment]]) -> Pool:
    """Targets with the same endpoint, key and limits share their provider."""
    providers: dict[str, Provider] = {}
    shared: dict[Provider, str] = {}
    targets: list[Target] = []
    for group in groups:
        names = []
        for deployment in group:
            name = shared.get(deployment.provider) if deployment.shared else None
            if name is None:
                name = _find_free_name(deployment.provider.name, providers)
                providers[name] = replace(deployment.provider, name=name)
                if deployment.shared:
                    shared[deployment.provider] = name
            names.append(name)
        targets.append(_target(group, names))
    return Pool(tuple(targets), None, tuple(providers.values()))


def _find_free_name(own: str, names: Container[str]) -> str:
    candidates = chain([own], (f"{own}-{number}" for number in count(2)))
    return next(name for name in candidates if name not in names)


def _target(group: list[Deployment], providers: list[str]) -> Target:
    """The target of these deployments, which can do what all of them can.

    Those of which nothing is known are taken to do what the others can, since LiteLLM calls any.
    """
    targets = [deployment.target for deployment in group]
    first = targets[0]
    if len(group) == 1:
        return replace(first, provider=providers[0])
    endpoints: dict[str, TargetEndpoint] = {}
    for deployment, target, provider in zip(group, targets, providers, strict=True):
        name = _find_free_name(_ODD.sub("-", provider), endpoints)
        prices = {price: getattr(target, price) for price in PRICES}
        same = all(getattr(first, price) == value for price, value in prices.items())
        endpoints[name] = TargetEndpoint(
            name=name,
            provider=provider,
            model=target.model or target.name,
            weight=deployment.weight,
            priority=deployment.order,
            **({} if same else prices),
        )
    able = [deployment.target for deployment in group if deployment.has_abilities] or targets
    windows = [t.context_tokens for t in targets if t.context_tokens is not None]
    serves = [t.serves for t in targets if t.serves is not None]
    return replace(
        first,
        provider=None,
        model=None,
        endpoints=tuple(endpoints.values()),
        accepts=tuple(a for a in able[0].accepts if all(a in t.accepts for t in able)),
        context_tokens=min(windows, default=None),
        serves=tuple(e for e in serves[0] if all(e in s for s in serves)) if serves else None,
    )
