"""A pool: the targets of a router, in their order, who serves them, and its file.

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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from datetime import date as day
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, final, get_args, get_type_hints

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from prefill_router import files
from prefill_router.errors import ConfigError, FormatError, nearest
from prefill_router.short_repr import short_repr
from prefill_router.targets.provider import TRAITS, Endpoint, Provider, public_address
from prefill_router.targets.target import RequestOptions, Target, TargetEndpoint
from prefill_router.yaml_files import DistinctLoader, NotYamlError, Number, WholeNumber, parse_yaml

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


@short_repr
@final
@dataclass(frozen=True)
class Pool:
    """The targets of a router, in their order.

    Attributes:
        targets: At least one target, with distinct names.
        prices_date: The day of the prices, as ISO 8601; None where unknown.
        providers: The providers that targets name.
    """

    targets: tuple[Target, ...]
    prices_date: str | None = None
    providers: tuple[Provider, ...] = ()

    def __post_init__(self) -> None:
        if not self.targets:
            raise ConfigError("the pool has no targets; name at least one")
        repeated = sorted(n for n, times in Counter(self.names).items() if times > 1)
        if repeated:
            raise ConfigError(f"the pool names {repeated} more than once; keep one of each")
        both = sorted(set(self.names) & set(sum(self.several.values(), ())))
        if both:
            raise ConfigError(f"{both} are targets and also endpoints of one; rename the targets")
        known = Counter(provider.name for provider in self.providers)
        twice = sorted(name for name, times in known.items() if times > 1)
        if twice:
            raise ConfigError(f"the pool has the providers {twice} twice; keep one of each")
        unknown = sorted(_providers_of(self.targets) - set(known))
        if unknown:
            raise ConfigError(f"unknown providers {unknown}; the pool has {list(known)}")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The targets' names, in order."""
        return tuple(target.name for target in self.targets)

    def __len__(self) -> int:
        return len(self.targets)

    def __iter__(self) -> Iterator[Target]:
        return iter(self.targets)

    def __getitem__(self, name: str) -> Target:
        return self.targets[self.indices([name])[0]]

    def indices(self, names: Iterable[str]) -> list[int]:
        """Positions of these targets.

        Raises:
            ConfigError: The pool has no such target.
        """
        place = {name: i for i, name in enumerate(self.names)}
        wanted = list(names)
        unknown = sorted(set(wanted) - set(place))
        if unknown:
            raise ConfigError(
                f"unknown targets {unknown}{nearest(unknown[0], place)}; the pool has "
                f"{sorted(place)}"
            )
        return [place[name] for name in wanted]

    def select(self, names: Iterable[str]) -> "Pool":
        """The pool of these targets alone, in this order."""
        chosen = tuple(self.targets[i] for i in self.indices(names))
        serving = _providers_of(chosen)
        return Pool(chosen, self.prices_date, tuple(p for p in self.providers if p.name in serving))

    @cached_property
    def deployed(self) -> "Pool":
        """The pool with each endpoint of a target as a target of its own, such as `large@east`."""
        if not any(target.endpoints for target in self.targets):
            return self
        return replace(self, targets=tuple(d for t in self.targets for d in t.deployments))

    def at_first(self) -> "Pool":
        """The pool with each target at its first endpoint alone, with its prices there."""
        return replace(self, targets=tuple(target.at_first() for target in self.targets))

    @cached_property
    def several(self) -> Mapping[str, tuple[str, ...]]:
        """The deployments of each target that has several endpoints."""
        return {t.name: tuple(d.name for d in t.deployments) for t in self.targets if t.endpoints}

    @cached_property
    def target_of(self) -> Mapping[str, str]:
        """The target of each deployment, by name."""
        return {d.name: t.name for t in self.targets for d in t.deployments}

    def provider_of(self, name: str) -> Provider:
        """The provider of a target: the one it names, or one made from its own endpoint.

        Of a target with several endpoints, it is that of the first.

        Raises:
            ConfigError: The pool has no such target, or the target has no endpoint.
        """
        target = self[name]
        if target.provider is not None:
            return next(p for p in self.providers if p.name == target.provider)
        if target.base_url is None:
            raise ConfigError(
                f"target {name!r} has no endpoint; give it a base_url or a provider in the pool "
                "file"
            )
        return Provider(
            name=public_address(target.base_url),
            base_url=target.base_url,
            api_key_env=target.api_key_env,
        )

    def serves(self, name: str) -> tuple[Endpoint, ...]:
        """The API endpoints that a target serves: its own list, or that of its provider's dialect.

        A target with several endpoints serves what all of them do.

        Raises:
            ConfigError: The pool has no such target, or the target has no endpoint.
        """
        named = self[name].serves
        if named is not None:
            return named
        places = (self.deployed.provider_of(d.name) for d in self[name].deployments)
        each = [TRAITS[place.dialect].serves for place in places]
        return tuple(call for call in each[0] if all(call in serves for serves in each))

    def with_prices(
        self, prices: Mapping[str, tuple[float, float]], *, date: str | None = None
    ) -> "Pool":
        """The same targets with other prices, (input, output) in US dollars per million tokens.

        Raises:
            ConfigError: The pool has no such target, or `date` isn't a date.
        """
        self.indices(prices)
        targets = tuple(
            replace(t, input_price=prices[t.name][0], output_price=prices[t.name][1])
            if t.name in prices
            else t
            for t in self.targets
        )
        return replace(self, targets=targets, prices_date=None if date is None else day_of(date))

    def public(self) -> "Pool":
        """The same pool, safe to show and save: its URLs are without what may be a key."""
        return replace(
            self,
            targets=tuple(map(_public, self.targets)),
            providers=tuple(map(_public, self.providers)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without what isn't known."""
        date = {} if self.prices_date is None else {"prices_date": self.prices_date}
        served = {"providers": [_known(p) for p in self.providers]} if self.providers else {}
        return {**date, **served, "targets": [target.to_dict() for target in self.targets]}


def day_of(text: str) -> str:
    """A date in ISO 8601.

    Raises:
        ConfigError: The text isn't a date.
    """
    try:
        return day.fromisoformat(text).isoformat()
    except ValueError:
        raise ConfigError(
            f"the date of the prices is {text!r}, which isn't a date; write it as 2026-11-20"
        ) from None


def _providers_of(targets: Iterable[Target]) -> set[str]:
    return {d.provider for t in targets for d in t.deployments if d.provider is not None}


_Served = TypeVar("_Served", Target, Provider, TargetEndpoint)


def _public(served: _Served) -> _Served:
    address = served.base_url
    if isinstance(served, Target) and served.endpoints:
        hidden = tuple(map(_public, served.endpoints))
        return replace(served, endpoints=hidden, base_url=hidden[0].base_url)
    return served if address is None else replace(served, base_url=public_address(address))


def _known(provider: Provider) -> dict[str, Any]:
    return {name: value for name, value in vars(provider).items() if value is not None}


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
