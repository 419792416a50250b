"""RouterArena predictions: JSON lists of one answer per entry.

`prediction` names the target, `global index` the query; `accuracy` is the label and null where the
answer wasn't scored. The benchmark is the index without its number: `AIME_112` is from `AIME`. The
cost of a failed call is unknown if it is given as zero.

Its questions are JSON lists too, `router_data.json` and `router_robustness.json`, of entries with
`global index` and `prompt_formatted` or `prompt`.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefill_router.data import MOST_COST, Query
from prefill_router.errors import DataError, FormatError
from prefill_router.importers import sources, values
from prefill_router.importers.builder import DatasetBuilder, Place, TargetOutcome
from prefill_router.importers.columns import Columns

_NUMBERED = re.compile(r"(.+)_\d+", re.DOTALL)


def read(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read files of predictions.

    Raises:
        FormatError: A source doesn't exist.
    """
    del columns
    failed = 0
    for path in sources.expand(paths, (".json",)):
        with into.file(path):
            for document in sources.documents(path):
                for number, item in enumerate(sources.parse_list(document), 1):
                    failed += _read_item(item, Place(document.name, number), into)
    if failed:
        into.note(f"{failed} calls failed; their labels are as scored, their costs unknown")


def _read_item(item: Any, place: Place, into: DatasetBuilder) -> bool:
    """Add one entry; returns whether its call failed."""
    failed = False
    with into.row(place):
        if not isinstance(item, dict):
            raise DataError(f"is a {type(item).__name__}; an entry must be an object")
        result = item.get("generated_result") or {}
        usage = result.get("token_usage") if isinstance(result, dict) else None
        if not isinstance(result, dict) or not isinstance(usage or {}, dict):
            raise DataError("generated_result and token_usage must be objects or null")
        failed = result.get("success") is False
        target = values.filled_text(item.get("prediction"), "prediction")
        into.add(place, _query(item), {target: _outcome(item, usage or {}, failed=failed)})
    return failed


def _query(item: dict[str, Any]) -> Query:
    index = values.identifier(item.get("global index"), "global index")
    match = _NUMBERED.fullmatch(index)
    return Query(
        index,
        values.filled_text(item.get("prompt"), "prompt"),
        benchmark="" if match is None else match[1],
    )


def _outcome(item: dict[str, Any], usage: dict[str, Any], *, failed: bool) -> TargetOutcome:
    cost = values.cell_amount(item.get("cost"), "cost", most=MOST_COST)
    return TargetOutcome(
        values.label(item.get("accuracy"), "accuracy"),
        values.cell_amount(usage.get("input_tokens"), "input_tokens"),
        values.cell_amount(usage.get("output_tokens"), "output_tokens"),
        None if failed and not cost else cost,
    )


def read_questions(path: Path) -> list[Query]:
    """Read questions without answers.

    Raises:
        FormatError: The file isn't such a list.
    """
    found: dict[str, Query] = {}
    for document in sources.documents(path):
        for number, item in enumerate(sources.parse_list(document), 1):
            try:
                if not isinstance(item, dict):
                    raise DataError(f"is a {type(item).__name__}; an entry must be an object")
                prompt = item.get("prompt_formatted") or item.get("prompt")
                query = _query({**item, "prompt": prompt})
                if query.id in found:
                    raise DataError(f"global index {query.id!r} was there before")
            except DataError as error:
                raise FormatError(f"entry {number}: {error}", file=path) from None
            found[query.id] = query
    if not found:
        raise FormatError("holds no question", file=path)
    return list(found.values())
