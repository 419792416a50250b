"""The paper's own numbers, as they stand in its tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, final

import yaml

from prefill_router.brief import brief

Value = str | float | Mapping[str, float]


@final
@dataclass(frozen=True)
class Number:
    """One number of the paper.

    Attributes:
        value: It.
        lower: The lower end of its 95 % interval, where the paper gives one.
        upper: The upper end.
        sd: Its standard deviation over training seeds, where the paper gives one.
        count: How many queries it stands for, where the paper says it.
    """

    value: float
    lower: float | None = None
    upper: float | None = None
    sd: float | None = None
    count: int | None = None

    def to_dict(self) -> dict[str, float | int]:
        """Plain values for JSON; what the paper doesn't give is left out."""
        return {name: value for name, value in vars(self).items() if value is not None}


@brief
@final
@dataclass(frozen=True)
class Published:
    """One table of the paper.

    Attributes:
        number: Of the table, in the order of the paper.
        label: Its label in the paper's source.
        where: The section that it stands in.
        title: What it shows.
        keys: The columns that name a row.
        rows: Its rows by column, as they were printed; shares are of 1.
    """

    number: int
    label: str
    where: str
    title: str
    keys: tuple[str, ...]
    rows: tuple[Mapping[str, Value], ...]

    def of_pool(self, pool: str) -> list[Mapping[str, Value]]:
        """The rows of one pool; all rows of a table that has but one."""
        return [row for row in self.rows if row.get("pool", pool) == pool]

    def find(self, pool: str, name: str) -> Mapping[str, Value]:
        """The row of a pool with this name in its last key; empty if there is none."""
        found = [row for row in self.of_pool(pool) if row[self.keys[-1]] == name]
        return found[0] if found else {}

    def number_of(self, pool: str, name: str, column: str) -> Number | None:
        """One cell; None where the paper has none."""
        return number(self.find(pool, name), column)


def number(row: Mapping[str, Value], column: str) -> Number | None:
    """A cell of a row; None where the paper has none."""
    value = row.get(column)
    if value is None or isinstance(value, str):
        return None
    if not isinstance(value, Mapping):
        return Number(float(value))
    known = {name: value[name] for name in ("value", "lower", "upper", "sd") if name in value}
    return Number(**known, count=int(value["count"]) if "count" in value else None)


@cache
def published() -> Mapping[str, Published]:
    """All tables of the paper by label, in its order."""
    folder = files("prefill_router.reports.reproduce") / "paper"
    texts = [entry.read_text(encoding="utf-8") for entry in folder.iterdir() if _counts(entry.name)]
    found = sorted((_table(yaml.safe_load(text)) for text in texts), key=lambda one: one.number)
    return {one.label: one for one in found}


def _counts(name: str) -> bool:
    return name.endswith(".yaml")


def _table(value: Mapping[str, Any]) -> Published:
    return Published(
        number=value["table"],
        label=value["label"],
        where=value["where"],
        title=value["title"],
        keys=tuple(value["keys"]),
        rows=tuple(value["rows"]),
    )
