"""LiteLLM's `config.yaml` as a pool and settings of the gateway.

Followed are https://docs.litellm.ai/docs/proxy/configs and .../proxy/config_settings.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from prefill_router.errors import ConfigError
from prefill_router.gateway.litellm.deployment import MODES, Deployment, Times, read_deployment
from prefill_router.gateway.litellm.fields import Fields
from prefill_router.gateway.litellm.general import General, read_general
from prefill_router.targets import Pool, Provider, Target
from prefill_router.yaml_files import read_yaml

_NO_COUNTERPART = "has no counterpart"
_WHY = {
    "litellm_params.weight": "the router chooses",
    "litellm_params.order": "the router chooses",
    "litellm_params.num_retries": "num_retries of router_settings holds for all",
    "litellm_params.max_retries": "num_retries of router_settings holds for all",
}


@final
@dataclass(frozen=True, kw_only=True)
class LeftOut:
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
class Imported:
    """What LiteLLM's file says, in this project's words.

    Attributes:
        pool: The targets and who serves them.
        settings: The gateway's, as they stand in its file; empty where nothing has a counterpart.
        left_out: What has none.
        notes: What was assumed, and what the file doesn't say, by target.
    """

    pool: Pool
    settings: Mapping[str, Mapping[str, Any]]
    left_out: tuple[LeftOut, ...]
    notes: Mapping[str, tuple[str, ...]]


def import_config(path: Path, *, environment: Mapping[str, str] | None = None) -> Imported:
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


def _imported(value: dict[str, Any], environment: Mapping[str, str]) -> Imported:
    wrong: list[str] = []
    try:
        general = read_general(value, environment)
    except ConfigError as error:
        general, wrong = General(settings={}), [str(error)]
    groups = _Groups(general, environment, wrong)
    for place, row in enumerate(value["model_list"]):
        groups.add(place, row)
    pool = groups.pool()
    left = [LeftOut(what=what, why=why) for what, why in general.left_out]
    return Imported(
        pool=pool,
        settings=general.settings,
        left_out=(*left, *groups.left_out()),
        notes={name: notes for name, notes in groups.notes.items() if notes},
    )


class _Groups:
    """Deployments by the name that clients call them by; the first that can be used is taken."""

    def __init__(self, general: General, environment: Mapping[str, str], wrong: list[str]) -> None:
        self._times = Times(answer=general.answer, first_token=general.first_token)
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
            Fields(row.get("litellm_params"), f"model {name!r}", {}).key_variable("api_key")
        except ConfigError as error:
            self._wrong.append(str(error))
            raise

    def _leave(self, name: str, what: str, why: str) -> None:
        names = self._left.setdefault((what, why), [])
        if name not in names:
            names.append(name)

    def left_out(self) -> list[LeftOut]:
        """What has no counterpart, the same of several models together."""
        spare = [
            LeftOut(what="model_list", why=why, models=(name,))
            for name, reasons in self._failed.items()
            if name in self._taken
            for why in reasons
        ]
        left = [
            LeftOut(what=what, why=why, models=tuple(names))
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
