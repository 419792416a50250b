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
          temperature: 0.7
      - name: gpt-oss-120b       # three targets: gpt-oss-120b:low, and so on
        efforts: [low, medium, high]          # a number is a budget of thinking tokens
        input_price: 0.1
        output_price: 0.5
        provider: local
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
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from datetime import date as day
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, final, get_args, get_type_hints

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from prefill_router import files
from prefill_router.errors import ConfigError, FormatError, nearest
from prefill_router.short_repr import short_repr
from prefill_router.targets.effort import is_budget
from prefill_router.targets.provider import TRAITS, Endpoint, Provider, public_address
from prefill_router.targets.target import PRICES, RequestOptions, Target, TargetEndpoint
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
        shared = sorted(set(self.names) & set(sum(self.several.values(), ())))
        if shared:
            raise ConfigError(f"{shared} are targets and also endpoints of one; rename the targets")
        self._check_efforts()
        counts = Counter(provider.name for provider in self.providers)
        repeated = sorted(name for name, times in counts.items() if times > 1)
        if repeated:
            raise ConfigError(
                f"the pool names the providers {repeated} more than once; keep one of each"
            )
        unknown = sorted(_providers_of(self.targets) - set(counts))
        if unknown:
            raise ConfigError(f"unknown providers {unknown}; the pool has {list(counts)}")

    def _check_efforts(self) -> None:
        """Check that all efforts of a model have one model and its prices."""
        for names in self.efforts_of.values():
            self._check_switches(names)
            models = {self[name].model for name in names}
            if len(models) > 1:
                raise ConfigError(
                    f"{list(names)} are named as efforts of one model, but have the models "
                    f"{sorted(map(str, models))}; rename those of another model"
                )
            prices = {tuple(getattr(self[name], price) for price in PRICES) for name in names}
            if len(prices) > 1:
                raise ConfigError(
                    f"{list(names)} have different prices; give all efforts of a model the "
                    "same prices"
                )

    def _check_switches(self, names: Sequence[str]) -> None:
        """Check that no two efforts are the same for a provider that only switches thinking."""
        levels = [n for n in names if (e := self[n].effort) and e != "none" and not is_budget(e)]
        for name in levels[1:]:
            if self[name].provider is None and self[name].base_url is None:
                continue
            dialect = self.provider_of(name).dialect
            if TRAITS[dialect].effort is None and TRAITS[dialect].reasoning is None:
                raise ConfigError(
                    f"{levels} would send the same request, since the dialect {dialect!r} only "
                    "switches thinking on or off; keep one of them, and besides it only none "
                    "and budgets of tokens"
                )

    @cached_property
    def efforts_of(self) -> Mapping[str, tuple[str, ...]]:
        """The targets of each model with efforts, by its name without them."""
        bases = dict.fromkeys(t.base for t in self.targets if t.effort is not None)
        return {
            base: tuple(t.name for t in self.targets if t.effort and t.base == base)
            for base in bases
        }

    def with_efforts(self, names: Iterable[str]) -> list[str]:
        """The names, where a model with efforts stands for all of its targets."""
        return list(chain.from_iterable(self.models.get(name, (name,)) for name in names))

    def at_efforts(self, efforts: Sequence[str]) -> "Pool":
        """The pool with each target at each of these efforts; those that have one stay.

        Raises:
            ConfigError: There is no such effort, or a provider can't tell two of them apart.
        """
        if not efforts:
            return self
        each = ([t.with_effort(e) for e in efforts] if t.effort is None else [t] for t in self)
        return replace(self, targets=tuple(chain.from_iterable(each)))

    @cached_property
    def models(self) -> Mapping[str, tuple[str, ...]]:
        """The targets of each model with efforts whose own name isn't a target's."""
        return {name: own for name, own in self.efforts_of.items() if name not in self.names}

    @cached_property
    def deployment_names(self) -> Mapping[str, str]:
        """What all efforts of a model share: the name of each deployment without its effort."""
        pools = (self, self.deployment_pool)
        return {t.name: t.base for pool in pools for t in pool if t.effort is not None}

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
    def deployment_pool(self) -> "Pool":
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

        A target with several endpoints serves what all of them do. One with an effort serves only
        calls in which its effort can be said.

        Raises:
            ConfigError: The pool has no such target, or the target has no endpoint.
        """
        target = self[name]
        if target.serves is not None and target.effort is None:
            return target.serves
        places = (self.deployment_pool.provider_of(d.name) for d in target.deployments)
        traits = [TRAITS[place.dialect] for place in places]
        each = [target.serves or some.serves for some in traits]
        if target.effort is not None:
            each += [some.efforts_in for some in traits]
        return tuple(call for call in each[0] if all(call in serves for serves in each))

    def with_prices(
        self, prices: Mapping[str, tuple[float, float]], *, date: str | None = None
    ) -> "Pool":
        """The same targets with other prices, (input, output) in US dollars per million tokens.

        A model with efforts may be named without them: its price is that of all its efforts.

        Raises:
            ConfigError: The pool has no such target, or `date` isn't a date.
        """
        self.indices(self.with_efforts(prices))
        each = {
            name: price for model, price in prices.items() for name in self.with_efforts([model])
        }
        targets = tuple(_with_price(target, each.get(target.name)) for target in self.targets)
        return replace(self, targets=targets, prices_date=None if date is None else day_of(date))

    def public(self) -> "Pool":
        """The same pool, safe to show and save: its URLs are without what may be a key."""
        return replace(
            self,
            targets=tuple(map(_hide_address, self.targets)),
            providers=tuple(map(_hide_address, self.providers)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without what isn't known."""
        date = {} if self.prices_date is None else {"prices_date": self.prices_date}
        served = {"providers": [_set_values(p) for p in self.providers]} if self.providers else {}
        return {**date, **served, "targets": list(_target_rows(self.targets))}


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


def _with_price(target: Target, price: tuple[float, float] | None) -> Target:
    """The target at a price of input and output; unchanged for None."""
    if price is None:
        return target
    return replace(target, input_price=price[0], output_price=price[1])


def _target_rows(targets: Iterable[Target]) -> Iterator[dict[str, Any]]:
    """The rows of the file; efforts that differ in nothing else are listed in one."""
    for row, alike in groupby(targets, key=_row_without_effort):
        members = list(alike)
        if members[0].effort is None:
            yield from (member.to_dict() for member in members)
        else:
            yield {**json.loads(row), "efforts": [member.effort for member in members]}


def _row_without_effort(target: Target) -> str:
    """A target's fields as JSON, without its effort."""
    row = target.to_dict() | {"name": target.base}
    row.pop("effort", None)
    if row.get("model") == target.base:
        del row["model"]
    return json.dumps(row)


_Served = TypeVar("_Served", Target, Provider, TargetEndpoint)


def _hide_address(served: _Served) -> _Served:
    address = served.base_url
    if isinstance(served, Target) and served.endpoints:
        hidden = tuple(map(_hide_address, served.endpoints))
        return replace(served, endpoints=hidden, base_url=hidden[0].base_url)
    return served if address is None else replace(served, base_url=public_address(address))


def _set_values(provider: Provider) -> dict[str, Any]:
    return {name: value for name, value in vars(provider).items() if value is not None}


_Row = TypeVar("_Row")
_Item = TypeVar("_Item")

_PRICE_COLUMNS = ("target", "usd_per_million_input_tokens", "usd_per_million_output_tokens")


class _PoolFileModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


_STRICT: dict[Any, Any] = {
    int: WholeNumber,
    float: Number,
    Mapping[str, Any]: dict[str, Any],
}


def _model_of(kind_of_row: type, **own: Any) -> Any:
    """A pydantic model for a dataclass in a file, where a boolean isn't accepted as a number.

    Fields with a default may be left out, or be null.
    """
    rows: dict[str, Any] = {}
    hints = get_type_hints(kind_of_row)
    for field in fields(kind_of_row):
        plain = [kind for kind in get_args(hints[field.name]) if kind is not NoneType]
        kind = plain[0] if NoneType in get_args(hints[field.name]) else hints[field.name]
        kind = own.get(field.name, _STRICT.get(kind, kind))
        is_needed = field.default is MISSING and field.default_factory is MISSING
        rows[field.name] = (kind, ...) if is_needed else (kind | None, None)
    return create_model(kind_of_row.__name__, __base__=_PoolFileModel, **rows)


_RequestModel = _model_of(RequestOptions)
_EndpointModel = _model_of(TargetEndpoint)
_OneTargetModel = _model_of(
    Target,
    request=_RequestModel,
    endpoints=Annotated[list[_EndpointModel], Field(min_length=1)],  # type: ignore[valid-type]
)
_Efforts = Annotated[list[str | WholeNumber], Field(min_length=1)]
_TargetModel = create_model(
    "Target",
    __base__=_OneTargetModel,
    effort=(str | WholeNumber | None, None),
    efforts=(_Efforts | None, None),
)
_ProviderModel = _model_of(Provider)
_PoolModel = create_model(
    "Pool",
    __base__=_PoolFileModel,
    prices_date=(str | None, None),
    providers=(list[_ProviderModel], Field(default_factory=list)),  # type: ignore[valid-type]
    targets=(list[_TargetModel], Field(min_length=1)),  # type: ignore[valid-type]
)


def _targets_of(row: Any) -> list[Target]:
    """The targets of a row: one, or one for each of its efforts."""
    request = {} if row.request is None else row.request.model_dump(exclude_none=True)
    values = row.model_dump(exclude={"request", "endpoints", "efforts"}, exclude_none=True)
    values["request"] = RequestOptions(**request)
    served = (TargetEndpoint(**e.model_dump(exclude_none=True)) for e in row.endpoints or ())
    values["endpoints"] = tuple(served)
    if row.efforts is None:
        effort = {} if row.effort is None else {"effort": str(row.effort)}
        return [Target(**values | effort)]
    if row.effort is not None:
        raise ConfigError(f"target {row.name!r} has an effort and a list of efforts; keep one")
    return [Target(**values).with_effort(effort) for effort in map(str, row.efforts)]


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
    providers = tuple(_make_each(_read_provider, model.providers, wrong))
    targets = tuple(chain.from_iterable(_make_each(_targets_of, model.targets, wrong)))
    try:
        if not wrong:
            return Pool(targets, model.prices_date, providers)
    except ConfigError as error:
        wrong += error.messages
    raise FormatError(*wrong, file=source)


def _read_provider(row: Any) -> Provider:
    return Provider(**row.model_dump(exclude_none=True))


def _make_each(
    make: Callable[[_Row], _Item], rows: Iterable[_Row], wrong: list[str]
) -> Iterator[_Item]:
    for row in rows:
        try:
            yield make(row)
        except ConfigError as error:
            wrong += error.messages


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
        raise FormatError(*error.messages, file=path) from None
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
