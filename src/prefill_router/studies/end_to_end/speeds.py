"""How fast targets answer, as published or measured, and how long their recorded answers took.

`speeds.yaml`::

    targets:
      small: {ttft_seconds: 0.4, tokens_per_second: 180}
      large: {ttft_seconds: 1.1, tokens_per_second: 60}

or a CSV file with the columns `target`, `ttft_seconds` and `tokens_per_second`.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, FormatError
from prefill_router.yaml_files import read_yaml

PerCell = Float[NDArray[np.float64], "query target"]
_COLUMNS = ("ttft_seconds", "tokens_per_second")


@final
@dataclass(frozen=True)
class Speed:
    """How fast a target answers.

    Attributes:
        ttft_seconds: From the request to the first token.
        tokens_per_second: Output tokens from then on, reasoning included.
    """

    ttft_seconds: float
    tokens_per_second: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.ttft_seconds) and self.ttft_seconds >= 0):
            raise ConfigError(f"ttft_seconds is {self.ttft_seconds}; it must be seconds, 0 or more")
        if not (math.isfinite(self.tokens_per_second) and self.tokens_per_second > 0):
            raise ConfigError(
                f"tokens_per_second is {self.tokens_per_second}; it must be a number above 0"
            )


def read_speeds(path: Path) -> dict[str, Speed]:
    """Read the speeds in a YAML or CSV file, by target.

    Raises:
        FormatError: The file is missing, malformed, or says something impossible.
    """
    try:
        rows = _csv(path) if path.suffix.lower() == ".csv" else _yaml(path)
    except FileNotFoundError:
        raise FormatError("no such file", file=path) from None
    except (ValueError, RecursionError, csv.Error, ConfigError) as error:
        told = " ".join(str(error).split())
        raise FormatError(f"isn't a file of speeds: {told}", file=path) from None
    if not rows:
        raise FormatError("it names no target", file=path)
    return {str(name): _speed(str(name), row, path) for name, row in rows.items()}


def answer_seconds(dataset: RoutingDataset, speeds: Mapping[str, Speed]) -> PerCell:
    """How long each recorded answer takes: TTFT and its observed output at the target's speed.

    NaN where the target's speed or the answer's length isn't known.

    Args:
        dataset: Answers with their output tokens.
        speeds: By target.
    """
    known = [speeds.get(name) for name in dataset.pool.names]
    first = np.array([np.nan if one is None else one.ttft_seconds for one in known])
    rate = np.array([np.nan if one is None else one.tokens_per_second for one in known])
    seconds: PerCell = first + dataset.output_tokens / rate
    return seconds


def _speed(name: str, row: Any, path: Path) -> Speed:
    if not isinstance(row, Mapping) or set(row) != set(_COLUMNS):
        raise FormatError(f"target {name!r} must have {' and '.join(_COLUMNS)}", file=path)
    try:
        return Speed(*(float(row[column]) for column in _COLUMNS))
    except (TypeError, ValueError, ConfigError) as error:
        raise FormatError(f"target {name!r}: {error}", file=path) from None


def _yaml(path: Path) -> Mapping[Any, Any]:
    value = read_yaml(path)
    targets = value.get("targets") if isinstance(value, Mapping) else None
    if not isinstance(targets, Mapping):
        raise ValueError("it must hold targets, by name")
    return targets


def _csv(path: Path) -> Mapping[Any, Any]:
    rows: dict[str, Mapping[str, Any]] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        lacking = {"target", *_COLUMNS} - set(reader.fieldnames or ())
        if lacking:
            raise ValueError(f"it lacks the columns {sorted(lacking)}")
        for row in reader:
            if row["target"] in rows:
                raise ValueError(f"target {row['target']!r} stands in it twice")
            rows[row["target"]] = {column: row[column] for column in _COLUMNS}
    return rows
