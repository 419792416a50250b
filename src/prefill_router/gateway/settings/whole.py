"""All settings, from a file and from the environment."""

from pathlib import Path
from typing import Any, final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from prefill_router.errors import ConfigError
from prefill_router.gateway.settings.parts import (
    Budget,
    Failures,
    Limits,
    Listen,
    Logs,
    Receipts,
    Routing,
    Sessions,
    Streams,
    Traffic,
)
from prefill_router.yaml_files import read_yaml

_PREFIX = "PREFILL_ROUTER_"


@final
class Settings(BaseSettings):
    """All that can be set; every part has defaults.

    Attributes:
        keys: The file of clients' keys, see `prefill-router key`; None asks for none.
        forward_headers: Further request headers that targets get.
        traces: The OTLP endpoint of traces; None for none.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )
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

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment comes before the file; nothing else is read."""
        return env_settings, init_settings


def read_settings(path: Path | None = None) -> Settings:
    """The settings of a YAML file, with the environment's over them.

    Raises:
        ConfigError: Some can't be used; the message names every one.
    """
    value: Any = {}
    if path is not None:
        try:
            value = read_yaml(path)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        value = {} if value is None else value
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: not settings; they are names with values, see the guide")
    known = {name: part for name, part in value.items() if name in Settings.model_fields}
    told = [f"{name}: no such setting" for name in value if name not in known]
    if told:
        told[-1] += f"; there are {', '.join(Settings.model_fields)}"
    try:
        settings = Settings(**known)
    except ValidationError as error:
        told += wrong_settings(error)
    except SettingsError as error:  # a variable that isn't JSON where a list or a mapping is due
        told.append(" ".join(str(error).split()))
    if told:
        source = "the settings" if path is None else str(path)
        raise ConfigError(f"{source}: {'; '.join(told)}") from None
    return settings


def wrong_settings(error: ValidationError, part: str | None = None) -> list[str]:
    """What is wrong with each of the settings that can't be used, by its name in the file.

    Args:
        error: What was found.
        part: The part that was read, such as `routing`; None where it was all of them.
    """
    told = []
    for found in error.errors():
        loc = found["loc"] if part is None else (part, *found["loc"])
        words = found["msg"].removeprefix("Value error, ")
        if found["type"] == "extra_forbidden":
            words = f"no such setting; there are {', '.join(_model(loc[:-1]).model_fields)}"
        told.append(f"{'.'.join(map(str, loc)) or 'all'}: {words}")
    return told


def _model(loc: tuple[int | str, ...]) -> type[BaseModel]:
    model: type[BaseModel] = Settings
    for name in loc:
        if isinstance(name, str):
            kind = model.model_fields[name].annotation
            model = next(each for each in (kind, *get_args(kind)) if hasattr(each, "model_fields"))
    return model
