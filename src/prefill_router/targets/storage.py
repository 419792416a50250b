"""Pools on disk.

`pool.yaml`::

    prices_date: 2026-03-19
    providers:                   # optional; the endpoints that serve targets, and their limits
      - name: local
        base_url: http://127.0.0.1:8000/v1
        dialect: vllm            # openai, anthropic, vllm, sglang, openrouter, deepseek, ...
        api_key_env: LOCAL_KEY   # optional: the name of an environment variable
        concurrency: 64
    targets:
      - name: gpt-oss-20b
        input_price: 0.03        # US dollars per million tokens
        output_price: 0.14
        provider: local          # or, without providers: base_url and api_key_env
        model: openai/gpt-oss-20b             # optional: the endpoint's own name for it
        accepts: [tools, images]              # optional: what it supports besides plain text
        context_tokens: 131072                # optional: its context window, prompt plus answer
        serves: [chat, responses]             # optional: its endpoints; default: the dialect's
        request:                              # optional: request parameters
          reasoning_effort: high
      - name: large              # a target that is served at several addresses
        input_price: 2
        output_price: 8
        endpoints:
          - {name: east, provider: azure-east, weight: 3}
          - {name: west, provider: azure-west, model: large-2026, priority: 1}

or, where only prices are known, `prices.csv` with the columns `target`,
`usd_per_million_input_tokens`, `usd_per_million_output_tokens`. The fields are those of `Target`,
`TargetEndpoint`, `Provider` and `RequestOptions`.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from prefill_router import files
from prefill_router.errors import ConfigError, FormatError
from prefill_router.targets.pool import Pool
from prefill_router.targets.provider import Provider
from prefill_router.targets.target import RequestOptions, Target, TargetEndpoint
from prefill_router.yaml_files import DistinctLoader, NotYamlError, Number, WholeNumber, parse_yaml

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


_Row = TypeVar("_Row")
_Made = TypeVar("_Made")

_PRICE_COLUMNS = ("target", "usd_per_million_input_tokens", "usd_per_million_output_tokens")


class _PoolFileModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


_STRICT: dict[Any, Any] = {
    int: WholeNumber,
    float: Number,
    Mapping[str, Any]: dict[str, Any],
}


def _model_of(made: type, **own: Any) -> Any:
    """A pydantic model for a dataclass in a file, where a boolean isn't accepted as a number.

    Fields with a default may be left out, or be null.
    """
    rows: dict[str, Any] = {}
    hints = get_type_hints(made)
    for field in fields(made):
        plain = [kind for kind in get_args(hints[field.name]) if kind is not NoneType]
        kind = plain[0] if NoneType in get_args(hints[field.name]) else hints[field.name]
        kind = own.get(field.name, _STRICT.get(kind, kind))
        is_needed = field.default is MISSING and field.default_factory is MISSING
        rows[field.name] = (kind, ...) if is_needed else (kind | None, None)
    return create_model(made.__name__, __base__=_PoolFileModel, **rows)


_RequestModel = _model_of(RequestOptions)
_EndpointModel = _model_of(TargetEndpoint)
_TargetModel = _model_of(
    Target,
    request=_RequestModel,
    endpoints=Annotated[list[_EndpointModel], Field(min_length=1)],  # type: ignore[valid-type]
)
_ProviderModel = _model_of(Provider)
_PoolModel = create_model(
    "Pool",
    __base__=_PoolFileModel,
    prices_date=(str | None, None),
    providers=(list[_ProviderModel], Field(default_factory=list)),  # type: ignore[valid-type]
    targets=(list[_TargetModel], Field(min_length=1)),  # type: ignore[valid-type]
)


def _target(row: Any) -> Target:
    asked = {} if row.request is None else row.request.model_dump(exclude_none=True)
    known = row.model_dump(exclude={"request", "endpoints"}, exclude_none=True)
    served = (TargetEndpoint(**e.model_dump(exclude_none=True)) for e in row.endpoints or ())
    return Target(**known, request=RequestOptions(**asked), endpoints=tuple(served))


def pool_from_dict(value: object, *, source: Path | str) -> Pool:
    """A pool from plain values, as `Pool.to_dict` gives them.

    Raises:
        FormatError: Fields are missing, unknown or invalid; there is a message for each.
    """
    try:
        model: Any = _PoolModel.model_validate(value)
    except ValidationError as error:
        messages = (f"{'.'.join(map(str, e['loc']))}: {_field_message(e)}" for e in error.errors())
        raise FormatError(*messages, file=source) from None
    wrong: list[str] = []
    providers = tuple(_each(_provider, model.providers, wrong))
    targets = tuple(_each(_target, model.targets, wrong))
    try:
        if not wrong:
            return Pool(targets, model.prices_date, providers)
    except ConfigError as error:
        wrong += error.told
    raise FormatError(*wrong, file=source)


def _provider(row: Any) -> Provider:
    return Provider(**row.model_dump(exclude_none=True))


def _each(make: Callable[[_Row], _Made], rows: Iterable[_Row], wrong: list[str]) -> Iterator[_Made]:
    for row in rows:
        try:
            yield make(row)
        except ConfigError as error:
            wrong += error.told


def _field_message(error: "ErrorDetails") -> str:
    """What is wrong with a field and what is accepted, without its value, which may be a key."""
    if error["type"] != "extra_forbidden":
        return error["msg"]
    if error["loc"][-1] in ("api_key", "key"):
        return "keys don't belong in files; name the variable that holds it as api_key_env"
    places: dict[str, type[BaseModel]] = {"targets": _TargetModel, "providers": _ProviderModel}
    model = places.get(str(error["loc"][0]), _PoolModel)
    if "request" in error["loc"][:-1]:
        model = _RequestModel
    elif "endpoints" in error["loc"][:-1]:
        model = _EndpointModel
    return f"no such field; the fields are {', '.join(model.model_fields)}"


def read_pool(path: Path) -> Pool:
    """Read a pool from `pool.yaml` or `prices.csv`.

    Raises:
        FormatError: The file is missing, malformed, or names a target twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FormatError(
            "no such file; a pool is a pool.yaml or a prices.csv", file=path
        ) from None
    except UnicodeDecodeError:
        raise FormatError("not a text file; a pool is YAML or CSV", file=path) from None
    if path.suffix.lower() == ".csv":
        try:
            return _pool_from_csv(text, path)
        except csv.Error as error:
            raise FormatError(f"not CSV: {error}", file=path) from None
    try:
        value = parse_yaml(text, _StringDates)
    except NotYamlError as error:
        raise FormatError(f"not YAML: {error.why}", file=path, line=error.line) from None
    except ConfigError as error:
        raise FormatError(*error.told, file=path) from None
    return pool_from_dict(value, source=path)


def write_pool(pool: Pool, path: Path) -> None:
    """Write `pool.yaml`, whole or not at all; a dataset that contains it stays valid."""
    value = pool.to_dict()
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    if yaml.load(text, Loader=_StringDates) != value:  # unusual line ends in a name, such as \x85
        text = yaml.safe_dump(value, sort_keys=False)
    files.write_text(path, text)
    files.refresh_checksum(path)


class _StringDates(DistinctLoader):
    """The safe loader, except that dates stay text."""


_StringDates.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _pool_from_csv(text: str, path: Path) -> Pool:
    reader = csv.DictReader(text.splitlines())
    if not set(_PRICE_COLUMNS) <= set(reader.fieldnames or ()):
        raise FormatError(
            f"has the columns {reader.fieldnames}; needs {list(_PRICE_COLUMNS)}", file=path, line=1
        )
    targets = []
    for row in reader:
        try:
            name, low, high = (row[column] for column in _PRICE_COLUMNS)
            targets.append(Target(name=name, input_price=float(low), output_price=float(high)))
        except (ValueError, TypeError, AttributeError, ConfigError) as error:
            raise FormatError(
                f"not a price row: {error}", file=path, line=reader.line_num
            ) from None
    try:
        return Pool(tuple(targets))
    except ConfigError as error:
        raise FormatError(str(error), file=path) from None
