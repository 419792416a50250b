"""Targets, the language models that are routed to, and pools of them.

On disk a pool is `pool.yaml`::

    prices_date: 2026-03-19
    targets:
      - name: gpt-oss-20b
        input_price: 0.03        # US dollars per million tokens
        output_price: 0.14
        base_url: http://127.0.0.1:8000/v1    # optional
        api_key_env: LOCAL_KEY                # optional: the name of an environment variable
        model: openai/gpt-oss-20b             # optional: the endpoint's own name for it

or, where only prices are known, `prices.csv` with the columns `target`,
`usd_per_million_input_tokens`, `usd_per_million_output_tokens`.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prefill_router import files
from prefill_router.errors import ConfigError, FormatError

_PRICE_COLUMNS = ("target", "usd_per_million_input_tokens", "usd_per_million_output_tokens")


@final
@dataclass(frozen=True, kw_only=True)
class Target:
    """One language model that requests can be routed to.

    Attributes:
        name: Its name, unique in the pool.
        input_price: US dollars per million input tokens; None where unknown.
        output_price: US dollars per million output tokens; None where unknown.
        base_url: Its OpenAI-compatible endpoint.
        api_key_env: The environment variable that holds the endpoint's key; never the key.
        model: The endpoint's own name for it, where that differs from `name`.
    """

    name: str
    input_price: float | None = None
    output_price: float | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("a target has an empty name; give it one")
        for price in (self.input_price, self.output_price):
            if price is not None and not (math.isfinite(price) and price >= 0):
                raise ConfigError(
                    f"target {self.name!r} has the price {price}; prices are US dollars per "
                    "million tokens, finite and not negative"
                )
        if (self.input_price is None) != (self.output_price is None):
            raise ConfigError(
                f"target {self.name!r} has one price of two; give both the input and the output "
                "price, or neither"
            )

    @property
    def has_price(self) -> bool:
        """Whether its prices are known."""
        return self.input_price is not None


@final
@dataclass(frozen=True)
class Pool:
    """The targets of a router, in their order.

    Attributes:
        targets: At least one target, with distinct names.
        prices_date: The day of the prices, as ISO 8601; None where unknown.
    """

    targets: tuple[Target, ...]
    prices_date: str | None = None

    def __post_init__(self) -> None:
        if not self.targets:
            raise ConfigError("the pool has no targets; name at least one")
        repeated = sorted({n for n in self.names if self.names.count(n) > 1})
        if repeated:
            raise ConfigError(f"the pool names {repeated} more than once; keep one of each")

    @property
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
            raise ConfigError(f"unknown targets {unknown}; the pool has {sorted(place)}")
        return [place[name] for name in wanted]

    def select(self, names: Iterable[str]) -> "Pool":
        """The pool of these targets alone, in this order."""
        return Pool(tuple(self.targets[i] for i in self.indices(names)), self.prices_date)

    def with_prices(
        self, prices: Mapping[str, tuple[float, float]], *, date: str | None = None
    ) -> "Pool":
        """The same targets at other prices, (input, output) in dollars per million tokens."""
        self.indices(prices)
        targets = tuple(
            replace(t, input_price=prices[t.name][0], output_price=prices[t.name][1])
            if t.name in prices
            else t
            for t in self.targets
        )
        return Pool(targets, date)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain values, without what isn't known."""
        rows = [{k: v for k, v in vars(t).items() if v is not None} for t in self.targets]
        date = {} if self.prices_date is None else {"prices_date": self.prices_date}
        return {**date, "targets": rows}


class _TargetModel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    input_price: float | None = None
    output_price: float | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    model: str | None = None


class _PoolModel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    prices_date: str | None = None
    targets: list[_TargetModel] = Field(min_length=1)


def pool_from_dict(value: object, *, source: Path | str) -> Pool:
    """A pool from plain values, as `Pool.to_dict` gives them.

    Raises:
        FormatError: A field is missing, unknown, or of the wrong type.
    """
    try:
        model = _PoolModel.model_validate(value)
        targets = tuple(Target(**row.model_dump()) for row in model.targets)
        return Pool(targets, model.prices_date)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise FormatError(f"{place}: {first['msg']}", file=source) from None
    except ConfigError as error:
        raise FormatError(str(error), file=source) from None


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
        value = yaml.load(text, Loader=_StringDates)
    except RecursionError:
        raise FormatError("not a pool: its YAML is nested too deeply", file=path) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or "malformed"  # without the text around it
        raise FormatError(f"not YAML: {problem}", file=path, line=line) from None
    except (ValueError, AttributeError) as error:  # such as 0b_, a number by its pattern alone
        raise FormatError(f"not a pool, a value is malformed: {error}", file=path) from None
    return pool_from_dict(value, source=path)


def write_pool(pool: Pool, path: Path) -> None:
    """Write `pool.yaml`, whole or not at all."""
    value = pool.to_dict()
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    if yaml.load(text, Loader=_StringDates) != value:  # odd ends of line in a name, such as \x85
        text = yaml.safe_dump(value, sort_keys=False)
    files.write_text(path, text)


class _StringDates(yaml.SafeLoader):
    """The safe loader, with dates left as the text they were written as."""


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
