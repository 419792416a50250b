"""All settings, from a file and from the environment."""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

from pydantic import ValidationError, field_validator

from prefill_router.errors import ConfigError
from prefill_router.gateway.settings.environment import (
    PREFIX,
    Variable,
    merged,
    over,
    variables_of,
)
from prefill_router.gateway.settings.parts import (
    Budget,
    Failures,
    Limits,
    Listen,
    Logs,
    Part,
    Receipts,
    Routing,
    Sessions,
    Streams,
    Traffic,
)
from prefill_router.gateway.settings.wrong import Sources, wrong_settings
from prefill_router.yaml_files import read_yaml


@final
class Settings(Part):
    """All that can be set; every part has defaults.

    Attributes:
        keys: The file of clients' keys, see `prefill-router key`; None asks for none.
        forward_headers: Further request headers that targets get.
        traces: The OTLP endpoint of traces; None for none.
    """

    listen: Listen = Listen()
    routing: Routing = Routing()
    sessions: Sessions = Sessions()
    failures: Failures = Failures()
    budgets: tuple[Budget, ...] = ()
    traffic: Traffic = Traffic()
    receipts: Receipts = Receipts()
    limits: Limits = Limits()
    logs: Logs = Logs()
    streams: Streams = Streams()
    keys: Path | None = None
    forward_headers: tuple[str, ...] = ()
    traces: str | None = None

    @field_validator("traces")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "")
        if url is not None and not (parts.scheme in ("http", "https") and parts.netloc):
            raise ValueError("must be an OTLP endpoint, such as http://127.0.0.1:4318")
        return url


def read_settings(
    path: Path | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of a YAML file, with the environment's over them, and options over both.

    Args:
        path: The file; None for none.
        options: Settings as in a file.
        environment: The variables; the process's if not given.

    Raises:
        ConfigError: Some can't be used; it tells every one, and where it is set.
    """
    variables = _variables(environment)
    value = {} if path is None else _of_file(path)
    told = [f"{variable.name}: {variable.wrong}" for variable in variables if variable.wrong]
    sources = Sources(path, value, variables, options or {})
    try:
        settings = Settings.model_validate(over(merged(value, variables), sources.options))
    except ValidationError as error:
        told += wrong_settings(error, Settings, sources)
    if told:
        raise ConfigError(*told)
    return settings


def stray_variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that begin as settings do, and set nothing: other programs may have set them.

    Args:
        environment: The variables; the process's if not given.

    Returns:
        For each, the end of a sentence that says which setting may be meant; empty for none.
    """
    known = os.environ if environment is None else environment
    found = variables_of(known, Settings)
    return {variable.name: _meant(variable) for variable in found if _is_stray(variable)}


def _meant(variable: Variable) -> str:
    name = str(variable.path[0])
    for part, field in Settings.model_fields.items():
        if name in getattr(field.annotation, "model_fields", ()):
            return f"; did you mean {PREFIX}{part.upper()}__{name.upper()}?"
    near = get_close_matches(name, Settings.model_fields, n=1)
    return f"; did you mean {PREFIX}{near[0].upper()}?" if near else ""


def _variables(environment: Mapping[str, str] | None) -> tuple[Variable, ...]:
    known = os.environ if environment is None else environment
    found = variables_of(known, Settings)
    return tuple(variable for variable in found if not _is_stray(variable))


def _is_stray(variable: Variable) -> bool:
    """Whether it is no setting at all; one with two parts is meant for one, and then a mistake."""
    return len(variable.path) == 1 and variable.path[0] not in Settings.model_fields


def _of_file(path: Path) -> dict[str, Any]:
    try:
        value = read_yaml(path)
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {one}" for one in error.told)) from None
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{path}: not settings; they are names with values, see the guide")
    return value or {}
