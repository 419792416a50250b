"""An importer of tallies: in how many of several runs each target was right, and the cost of a run.

[{"question": "What is 2 + 2?", "runs": 5,
  "right": {"small": 3, "large": 5}, "usd": {"small": 0.001, "large": 0.004}}]
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefill_router.data import Query
from prefill_router.errors import DataError
from prefill_router.importers import (
    Columns,
    DatasetBuilder,
    Format,
    Place,
    TargetOutcome,
    cell_amount,
    documents,
    parse_list,
    require_text,
)


def read_tally(paths: Sequence[Path], builder: DatasetBuilder, columns: Columns) -> None:
    """Read the records of each file; a malformed record is reported and left out."""
    del columns  # the format has none that a user could name
    for path in paths:
        with builder.file(path):
            for document in documents(path):
                for number, record in enumerate(parse_list(document), 1):
                    place = Place(document.name, number)
                    with builder.row(place):
                        query, outcomes = _read_record(record)
                        builder.add(place, query, outcomes)


def _read_record(record: Any) -> tuple[Query, dict[str, TargetOutcome]]:
    if not isinstance(record, dict):
        raise DataError("a record must be an object with question, runs, right and usd")
    text = require_text(record.get("question"), "question")
    runs = cell_amount(record.get("runs"), "runs")
    counts, costs = _read_amounts(record, "right"), _read_amounts(record, "usd")
    if not runs or any(count is not None and count > runs for count in counts.values()):
        raise DataError("runs must be a positive number, and no target's count above it")
    outcomes = {
        name: TargetOutcome(None if count is None else count / runs, cost=costs.get(name))
        for name, count in counts.items()
    }
    return Query(text, text), outcomes


def _read_amounts(record: dict[str, Any], name: str) -> dict[str, float | None]:
    amounts = record.get(name)
    if not isinstance(amounts, dict):
        raise DataError(f"{name} must be an object with a number for each target")
    return {target: cell_amount(amount, name) for target, amount in amounts.items()}


FORMAT = Format(
    summary="Tallies: JSON of questions, runs, and right answers by target",
    reader=read_tally,
    signatures=(frozenset({"question", "runs", "right", "usd"}),),
)
