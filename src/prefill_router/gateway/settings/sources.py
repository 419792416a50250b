"""Reads all settings: from a file, overridden by the environment, overridden by options.

A variable's name is `PREFILL_ROUTER_` and the path of a setting, joined by two underscores. A
setting with several values is written in JSON: `PREFILL_ROUTER_BUDGETS='[{...}]'`. Errors say
where each invalid setting is set, what its value is, and which values are valid.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError, create_model, field_validator

from prefill_router.errors import ConfigError
from prefill_router.gateway.settings.sections import (
    BudgetSettings,
    FailureSettings,
    LearningSettings,
    LimitSettings,
    ListenSettings,
    LogSettings,
    ReceiptSettings,
    RoutingSettings,
    SavingsSettings,
    SessionSettings,
    SettingsSection,
    SharedSettings,
    StreamSettings,
    TrafficSettings,
)
from prefill_router.yaml_files import line_of, read_yaml

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


PREFIX = "PREFILL_ROUTER_"
_JOINT = "__"
Section = TypeVar("Section", bound=SettingsSection)
Place = tuple[int | str, ...]
"""The path of a setting: names, and positions in lists."""


@final
@dataclass(frozen=True)
class Variable:
    """An environment variable with the prefix of settings.

    Attributes:
        name: Its name.
        path: The path of the setting.
        value: Its value: plain text, or parsed JSON.
        wrong: Why it can't be read; None where it can.
    """

    name: str
    path: tuple[str, ...]
    value: Any = None
    wrong: str | None = None


def _variables(environment: Mapping[str, str] | None, model: type[BaseModel]) -> list[Variable]:
    """The variables with the prefix of settings, those of whole sections first."""
    known = os.environ if environment is None else environment
    names = (name for name in sorted(known) if name.upper().startswith(PREFIX))
    return sorted((_variable(n, known[n], model) for n in names), key=lambda v: len(v.path))


def over(value: Mapping[Any, Any], further: Mapping[Any, Any]) -> dict[Any, Any]:
    """Settings overridden by others: sections are merged, anything else is replaced."""
    joined = dict(value)
    for name, new in further.items():
        old = joined.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            joined[name] = over(old, new)
        else:
            joined[name] = new
    return joined


def model_at(path: Place, model: type[BaseModel]) -> type[BaseModel] | None:
    """The section at a path; None where the path isn't that of a section."""
    found: type[BaseModel] | None = model
    for name in path:
        if isinstance(name, str):
            found = next(iter(_models(_kind(found, name))), None)
    return found


def _variable(name: str, text: str, model: type[BaseModel]) -> Variable:
    path = tuple(name[len(PREFIX) :].lower().split(_JOINT))
    parent = model_at(path[:-1], model)
    kind = _kind(parent, path[-1])
    if get_origin(kind) not in (tuple, dict) and next(_models(kind), None) is None:
        return Variable(name, path, text)
    try:
        return Variable(name, path, json.loads(text))
    except (ValueError, RecursionError):
        shape = "{...}" if get_origin(kind) is None else "[...] or {...}"
        return Variable(name, path, wrong=f"isn't JSON; it has several values: {shape}")


def _kind(model: type[BaseModel] | None, name: str) -> Any:
    """The type of a field; None where there is none."""
    field = None if model is None else model.model_fields.get(name)
    return None if field is None else field.annotation


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            yield each


class GatewaySettings(SettingsSection):
    """All settings; every section has defaults.

    Attributes:
        keys: The file of client keys, see `prefill-router key`; None requires no keys.
        forward_headers: Further request headers that are forwarded to targets.
        traces: The OTLP endpoint of traces; None for none.
    """

    listen: ListenSettings = ListenSettings()
    routing: RoutingSettings = RoutingSettings()
    sessions: SessionSettings = SessionSettings()
    failures: FailureSettings = FailureSettings()
    budgets: tuple[BudgetSettings, ...] = ()
    traffic: TrafficSettings = TrafficSettings()
    receipts: ReceiptSettings = ReceiptSettings()
    savings: SavingsSettings = SavingsSettings()
    learning: LearningSettings = LearningSettings()
    shared: SharedSettings = SharedSettings()
    limits: LimitSettings = LimitSettings()
    logs: LogSettings = LogSettings()
    streams: StreamSettings = StreamSettings()
    keys: Path | None = None
    forward_headers: tuple[str, ...] = ()
    traces: str | None = None

    @field_validator("traces")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "")
        if url is not None and not (parts.scheme in ("http", "https") and parts.netloc):
            raise ValueError("must be an OTLP endpoint, for example http://127.0.0.1:4318")
        return url

    def section(self, kind: type[Section]) -> Section:
        """The section of this class, one of the gateway's own or of `SECTIONS`.

        Raises:
            ConfigError: There is none.
        """
        found = next((value for _, value in self if isinstance(value, kind)), None)
        if found is None:
            raise ConfigError(f"the settings have no section of the class {kind.__name__}")
        return found


SECTIONS: dict[str, type[SettingsSection]] = {}
"""Further sections by name; sections added here are read and checked like the others."""


def _model() -> type[GatewaySettings]:
    further: Any = {name: (kind, kind()) for name, kind in SECTIONS.items()}
    base = GatewaySettings
    return create_model(base.__name__, __base__=base, **further) if further else base


def read_settings(
    path: Path | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> GatewaySettings:
    """Read settings from a YAML file, overridden by the environment, overridden by options.

    Args:
        path: The file; None for none.
        options: Settings, nested as in the file.
        environment: The variables; by default the process's.

    Raises:
        ConfigError: Some are invalid; the message lists them all, and where each is set.
    """
    model = _model()
    variables = [v for v in _variables(environment, model) if not _is_stray(v, model)]
    problems = [f"{variable.name}: {variable.wrong}" for variable in variables if variable.wrong]
    value = {} if path is None else _of_file(path)
    sources = SettingSources(path, value, variables, options or {})
    whole: dict[str, Any] = dict(value)
    for variable in variables:
        if variable.wrong is None:
            nested = variable.value
            for name in reversed(variable.path):
                nested = {name: nested}
            whole = over(whole, nested)
    try:
        settings = model.model_validate(over(whole, sources.options))
    except ValidationError as error:
        problems += setting_errors(error, model, sources)
    if problems:
        raise ConfigError(*problems)
    return settings


def stray_variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables with the prefix of settings that aren't settings; other programs may use them.

    Args:
        environment: The variables; by default the process's.

    Returns:
        By variable, the end of a sentence that suggests a setting; empty for no suggestion.
    """
    model = _model()
    return {v.name: _meant(v, model) for v in _variables(environment, model) if _is_stray(v, model)}


def _meant(variable: Variable, model: type[BaseModel]) -> str:
    name = str(variable.path[0])
    for part, field in model.model_fields.items():
        if name in getattr(field.annotation, "model_fields", ()):
            return f"; did you mean {PREFIX}{part.upper()}__{name.upper()}?"
    near = get_close_matches(name, model.model_fields, n=1)
    return f"; did you mean {PREFIX}{near[0].upper()}?" if near else ""


def _is_stray(variable: Variable, model: type[BaseModel]) -> bool:
    """Whether it isn't meant as a setting; one with a section's name in it is, even if wrong."""
    return len(variable.path) == 1 and variable.path[0] not in model.model_fields


def _of_file(path: Path) -> dict[str, Any]:
    try:
        value = read_yaml(path)
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {one}" for one in error.told)) from None
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{path}: not settings; write names with values, see the guide")
    return value or {}


_SHORT = 32
_QUOTED = (
    *("int_parsing", "float_parsing", "bool_parsing", "literal_error"),
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
)
"""Error types whose values are quoted; other values may be addresses with passwords."""


@final
@dataclass(frozen=True)
class SettingSources:
    """The sources of settings; the last source that sets one counts.

    Attributes:
        path: The file; None for none.
        value: The settings in the file.
        variables: The environment variables.
        options: The options.
    """

    path: Path | None
    value: Mapping[str, Any]
    variables: Sequence[Variable]
    options: Mapping[str, Any]


def setting_errors(
    error: ValidationError, model: type[BaseModel], sources: SettingSources
) -> list[str]:
    """The messages about invalid settings: where each is set and what is wrong.

    Args:
        error: pydantic's error.
        model: The model of the settings.
        sources: The sources of the settings.
    """
    problems = []
    for found in error.errors():
        place = found["loc"]
        sought = place[:-1] if found["type"] == "missing" else place
        is_whole = found["type"] == "value_error" and model_at(place, model) is not None
        where = _where(sources, sought, whole=is_whole)
        name = ".".join(map(str, place))
        of_itself = any(v.name == where and v.path == place for v in sources.variables)
        words = _words(found, model)
        problems.append(f"{where}: {words}" if of_itself else f"{where}: {name}: {words}")
    return problems


def nearest(name: str, known: Sequence[str]) -> str:
    """A suggestion of the known name that was meant, or empty if none is similar."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _words(found: "ErrorDetails", model: type[BaseModel]) -> str:
    if found["type"] == "extra_forbidden":
        part = model_at(found["loc"][:-1], model)
        names = [] if part is None else list(part.model_fields)
        name = str(found["loc"][-1])
        return f"no such setting; the settings are {', '.join(names)}{nearest(name, names)}"
    words, got = found["msg"].removeprefix("Value error, "), found["input"]
    is_word = isinstance(got, str) and found["type"] in _QUOTED and len(got) <= _SHORT
    return f"{words}, not {got!r}" if is_word or isinstance(got, int | float) else words


def _where(sources: SettingSources, place: Place, *, whole: bool) -> str:
    """Where the value at a path is set: the last source, or all sources that set parts of it."""
    setters = ["the options"] if _stands(sources.options, place) else []
    setters += [v.name for v in reversed(sources.variables) if _sets(v, place)]
    if sources.path is not None and _stands(sources.value, place):
        setters.append(f"{sources.path}:{line_of(sources.path, place)}")
    return " and ".join(setters if whole else setters[:1]) or str(sources.path or "the settings")


def _sets(variable: Variable, place: Place) -> bool:
    path = variable.path
    if path[: len(place)] == place:
        return True
    within = place[: len(path)] == path
    return within and _stands(variable.value, place[len(path) :])


def _stands(value: Any, place: Place) -> bool:
    """Whether plain values have something at a path."""
    for name in place:
        named = isinstance(value, Mapping) and name in value
        numbered = isinstance(value, list | tuple) and isinstance(name, int) and name < len(value)
        if not (named or numbered):
            return False
        value = value[name]
    return True
