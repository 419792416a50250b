"""LiteLLM's `config.yaml` as a pool and settings of the gateway.

Followed are https://docs.litellm.ai/docs/proxy/configs and .../proxy/config_settings.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from prefill_router.errors import ConfigError
from prefill_router.gateway.litellm.deployments import (
    MODES,
    ConfigFields,
    Deployment,
    TimeLimits,
    read_deployment,
)
from prefill_router.targets import Pool, Provider, Target
from prefill_router.yaml_files import read_yaml

_NOTHING_ALIKE = "has no counterpart"
_ROUTES = "the router chooses, and its order says who is next"
_WHY_GENERAL = {
    "routing_strategy": _ROUTES,
    "routing_strategy_args": _ROUTES,
    "fallbacks": _ROUTES,
    "default_fallbacks": _ROUTES,
    "content_policy_fallbacks": _ROUTES,
    "context_window_fallbacks": "who can't hold a request isn't asked, see context_tokens",
    "enable_pre_call_checks": "always so: who can't hold a request isn't asked",
    "model_group_alias": "a target has one name; routing.names are names that route",
    "master_key": "clients' keys are made by prefill-router key, and kept as hashes",
    "database_url": "receipts go to receipts.url",
    "forward_client_headers_to_llm_api": "see forward_headers",
    "drop_params": "what clients send goes on as it is",
    "cache": "answers aren't kept",
    "environment_variables": "set them where the gateway runs",
    "include": "other files aren't read; import each",
}
_PARTS = ("router_settings", "litellm_settings", "general_settings")
_MOST_RETRIES, _MOST_TARGETS, _MOST_SECONDS, _MOST_COUNT = 10, 100, 86_400.0, 10_000_000


@final
@dataclass(frozen=True, kw_only=True)
class GeneralSettings:
    """What the file says of all its models.

    Attributes:
        settings: The gateway's, by part.
        answer: Seconds for a whole answer, where a deployment doesn't say; None where nothing is.
        first_token: Seconds until the first piece of a stream; None likewise.
        left_out: Places in the file without a counterpart, and why.
    """

    settings: Mapping[str, Mapping[str, Any]]
    answer: float | None = None
    first_token: float | None = None
    left_out: tuple[tuple[str, str], ...] = ()


def read_general(value: Mapping[str, Any], environment: Mapping[str, str]) -> GeneralSettings:
    """Read all but `model_list`; what `router_settings` say comes before `litellm_settings`.

    Raises:
        ConfigError: Values can't be used; the message names every one.
    """
    parts = [ConfigFields(value.get(part), part, environment) for part in _PARTS]
    router, module, server = parts
    wrong: list[str] = []

    def either(name: str, *, whole: bool, older: str | None = None) -> Any:
        found = None
        for fields, field in ((router, name), (module, older or name)):
            try:
                own = fields.whole(field, least=0) if whole else fields.number(field)
            except ConfigError as error:
                wrong.append(str(error))
            else:
                found = own if found is None else found
        return found

    failures = _failures(
        retries=either("num_retries", whole=True),
        fallbacks=either("max_fallbacks", whole=True),
        fails=either("allowed_fails", whole=True),
        cooldown=either("cooldown_time", whole=False),
    )
    answer = either("timeout", whole=False, older="request_timeout")
    first_token = either("stream_timeout", whole=False)
    try:
        most = server.whole("global_max_parallel_requests")
    except ConfigError as error:
        wrong.append(str(error))
        most = None
    if wrong:
        raise ConfigError("; ".join(wrong))
    limits = {} if most is None else {"requests": min(most, _MOST_COUNT)}
    found = {"failures": failures, "limits": limits}
    return GeneralSettings(
        settings={part: values for part, values in found.items() if values},
        answer=answer,
        first_token=first_token,
        left_out=(*_unread(parts), *_others(value)),
    )


def _failures(
    *, retries: int | None, fallbacks: int | None, fails: int | None, cooldown: float | None
) -> dict[str, Any]:
    """LiteLLM counts what is allowed, the gateway what is too much; each in its own range."""
    found = {
        "retries": None if retries is None else min(retries, _MOST_RETRIES),
        "targets": None if fallbacks is None else min(fallbacks + 1, _MOST_TARGETS),
        "breaker_failures": None if fails is None else min(fails + 1, _MOST_COUNT),
        "breaker_seconds": None if cooldown is None else min(cooldown, _MOST_SECONDS),
    }
    return {name: value for name, value in found.items() if value is not None}


def _unread(parts: list[ConfigFields]) -> list[tuple[str, str]]:
    return [
        (f"{name}.{field}", _WHY_GENERAL.get(field, _NOTHING_ALIKE))
        for name, part in zip(_PARTS, parts, strict=True)
        for field in part.unread
    ]


def _others(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    known = ("model_list", *_PARTS)
    return [
        (str(name), _WHY_GENERAL.get(str(name), _NOTHING_ALIKE))
        for name in value
        if name not in known
    ]


_NO_COUNTERPART = "has no counterpart"
_WHY = {
    "litellm_params.weight": "the router chooses",
    "litellm_params.order": "the router chooses",
    "litellm_params.num_retries": "num_retries of router_settings holds for all",
    "litellm_params.max_retries": "num_retries of router_settings holds for all",
}


@final
@dataclass(frozen=True, kw_only=True)
class OmittedSetting:
    """Something of the file that was left out.

    Attributes:
        what: Its place in the file; never its value.
        why: Why, in a few words.
        models: Whose; empty where it is of the whole file.
    """

    what: str
    why: str
    models: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class ImportedConfig:
    """What LiteLLM's file says, in this project's words.

    Attributes:
        pool: The targets and who serves them.
        settings: The gateway's, as they stand in its file; empty where nothing has a counterpart.
        left_out: What has none.
        notes: What was assumed, and what the file doesn't say, by target.
    """

    pool: Pool
    settings: Mapping[str, Mapping[str, Any]]
    left_out: tuple[OmittedSetting, ...]
    notes: Mapping[str, tuple[str, ...]]


def import_config(path: Path, *, environment: Mapping[str, str] | None = None) -> ImportedConfig:
    """Read LiteLLM's `config.yaml`.

    Of several deployments of one `model_name` the first that can be used becomes the target.

    Args:
        path: The file.
        environment: What `os.environ/NAME` stands for; this process's if not given. Keys are never
            looked up: their variables' names go into the pool.

    Raises:
        ConfigError: It isn't such a file, holds a key, or names endpoints that aren't known; the
            message names everything that is wrong.
    """
    known = os.environ if environment is None else environment
    try:
        value = read_yaml(path)
        if not isinstance(value, dict) or not isinstance(value.get("model_list"), list):
            raise ConfigError("not LiteLLM's configuration: it has no model_list")
        return _imported(value, known)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _imported(value: dict[str, Any], environment: Mapping[str, str]) -> ImportedConfig:
    wrong: list[str] = []
    try:
        general = read_general(value, environment)
    except ConfigError as error:
        general, wrong = GeneralSettings(settings={}), [str(error)]
    groups = _ModelGroups(general, environment, wrong)
    for place, row in enumerate(value["model_list"]):
        groups.add(place, row)
    pool = groups.pool()
    left = [OmittedSetting(what=what, why=why) for what, why in general.left_out]
    return ImportedConfig(
        pool=pool,
        settings=general.settings,
        left_out=(*left, *groups.left_out()),
        notes={name: notes for name, notes in groups.notes.items() if notes},
    )


class _ModelGroups:
    """Deployments by the name that clients call them by; the first that can be used is taken."""

    def __init__(
        self, general: GeneralSettings, environment: Mapping[str, str], wrong: list[str]
    ) -> None:
        self._times = TimeLimits(answer=general.answer, first_token=general.first_token)
        self._environment = environment
        self._taken: dict[str, Deployment] = {}
        self._failed: dict[str, list[str]] = {}
        self._wrong = wrong
        self._left: dict[tuple[str, str], list[str]] = {}
        self.notes: dict[str, tuple[str, ...]] = {}

    def add(self, place: int, row: Any) -> None:
        """Read one more entry."""
        name = row.get("model_name") if isinstance(row, dict) else None
        if not isinstance(name, str) or not name.strip():
            self._wrong.append(f"model_list[{place}] has no model_name")
            return
        if "*" in name:
            self._leave(name, "model_list", "stands for many models; name each that is wanted")
            return
        info = row.get("model_info")
        mode = info.get("mode") if isinstance(info, dict) else None
        if mode is not None and mode not in MODES:
            self._leave(name, "model_list", "answers no call that is routed")
            return
        try:
            self._check_key(name, row)
            read = read_deployment(name, row, times=self._times, environment=self._environment)
        except ConfigError as error:
            self._failed.setdefault(name, []).append(str(error))
            return
        if name in self._taken:
            self._leave(name, "model_list", "a target has one deployment, the first that is usable")
            return
        self._taken[name] = read
        self.notes[name] = read.notes
        for what in read.unread:
            self._leave(name, what, _WHY.get(what, _NO_COUNTERPART))

    def _check_key(self, name: str, row: dict[str, Any]) -> None:
        """A key in the file is refused even where its deployment isn't taken."""
        try:
            ConfigFields(row.get("litellm_params"), f"model {name!r}", {}).key_variable("api_key")
        except ConfigError as error:
            self._wrong.append(str(error))
            raise

    def _leave(self, name: str, what: str, why: str) -> None:
        names = self._left.setdefault((what, why), [])
        if name not in names:
            names.append(name)

    def left_out(self) -> list[OmittedSetting]:
        """What has no counterpart, the same of several models together."""
        spare = [
            OmittedSetting(what="model_list", why=why, models=(name,))
            for name, reasons in self._failed.items()
            if name in self._taken
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
            ConfigError: An entry can't be used and no other of its name can, or there is none.
        """
        lost = [
            why for n, reasons in self._failed.items() if n not in self._taken for why in reasons
        ]
        wrong = list(dict.fromkeys((*self._wrong, *lost)))
        if wrong:
            raise ConfigError("; ".join(wrong))
        if not self._taken:
            raise ConfigError("no entry of model_list can become a target")
        return _pool(list(self._taken.values()))


def _pool(deployments: list[Deployment]) -> Pool:
    """Targets with the same endpoint, key and limits share their provider."""
    providers: dict[str, Provider] = {}
    shared: dict[Provider, str] = {}
    targets: list[Target] = []
    for deployment in deployments:
        name = shared.get(deployment.provider) if deployment.shared else None
        if name is None:
            name = _free(deployment.provider.name, providers)
            providers[name] = replace(deployment.provider, name=name)
            if deployment.shared:
                shared[deployment.provider] = name
        targets.append(replace(deployment.target, provider=name))
    return Pool(tuple(targets), None, tuple(providers.values()))


def _free(name: str, taken: Mapping[str, object]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free
