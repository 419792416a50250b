"""What came back of an assignment's batches, compared with its forecast.

Results are joined with the forecast by id. Costs are those of the reported tokens at the prices of
the forecast. Right answers are counted where labels are given; an answer without a label is
missing, not wrong. Whatever is compared is compared on the same prompts: predicted and observed
accuracy on those with a label, expected and observed cost on those whose tokens are known.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from prefill_router.assignment.folder import SavedAssignment
from prefill_router.assignment.prompt_file import own_id
from prefill_router.data import read_dataset
from prefill_router.endpoints import cost_of, read_usage
from prefill_router.errors import DataError, FormatError
from prefill_router.evaluation import NORMAL, Estimate, plain
from prefill_router.importers import (
    DatasetBuilder,
    columns_of,
    identifier,
    label,
    read_batch_results,
    records,
)

PerPrompt = Float[NDArray[np.float64], " prompt"]


@final
@dataclass(frozen=True)
class ResultFigures:
    """Forecast and results of one target, or of all.

    Attributes:
        prompts: How many it was assigned.
        answered: How many were answered.
        failed: How many failed, expired or were cancelled; the others have no result yet.
        costed: How many answers have a known cost.
        expected_cost: The estimated cost of these, US dollars.
        observed_cost: Their observed cost.
        labelled: How many answers have a label.
        predicted: The mean predicted probability of these; None without any.
        observed: The share of them that was right; None without any.
        difference: Observed minus predicted, with its 95 % interval.
    """

    prompts: int
    answered: int
    failed: int
    costed: int
    expected_cost: float
    observed_cost: float
    labelled: int
    predicted: float | None
    observed: float | None
    difference: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "difference": self.difference.to_dict()}


@final
@dataclass(frozen=True)
class CheckedResults:
    """An assignment's results.

    Attributes:
        total: Of all targets together.
        targets: Of each target.
        unknown: Results whose id isn't in the assignment.
    """

    total: ResultFigures
    targets: Mapping[str, ResultFigures]
    unknown: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        each = {name: figures.to_dict() for name, figures in self.targets.items()}
        return {"total": self.total.to_dict(), "targets": each, "unknown": self.unknown}


def read_labels(place: Path, saved: SavedAssignment) -> dict[str, float]:
    """Labels of an assignment's prompts by id, of a table or a dataset's folder.

    A table has the columns `id` (or `query_id`, `custom_id`) and `correct`. Of a dataset the label
    of each prompt's own target is taken.

    Raises:
        FormatError: It is neither, or a label is malformed.
    """
    if place.is_dir():
        dataset = read_dataset(place)
        column = {name: k for k, name in enumerate(dataset.pool.names)}
        target = dict(zip(saved.table["id"], saved.table["target"], strict=True))
        cells = (
            (name, dataset.correct[row, column[target[name]]])
            for row, name in enumerate(dataset.query_ids)
            if target.get(name) in column
        )
        return {name: float(value) for name, value in cells if not np.isnan(value)}
    if not place.is_file():
        raise FormatError("no such file; give a table with id and correct", file=place)
    strict, labels = DatasetBuilder(strict=True), dict[str, float]()
    for where, record in records(place, strict, needs=("correct",), wants=columns_of(place)):
        with strict.row(where):
            name, value = identifier(own_id(record), "id"), label(record.get("correct"), "correct")
            if value is not None and labels.setdefault(name, value) != value:
                raise DataError(f"{name!r} has two different labels; keep one of them")
    return labels


def check_results(
    saved: SavedAssignment, paths: Sequence[Path], *, labels: Mapping[str, float] | None = None
) -> CheckedResults:
    """Compare an assignment's forecast with the results of its batches.

    Args:
        saved: The assignment.
        paths: OpenAI's and Anthropic's results, or folders of them. Of several results of one
            prompt the first answer counts.
        labels: Whether each answer was right, from 0 to 1, by id.

    Raises:
        FormatError: A source doesn't exist, or a line is malformed.
        DataError: No result is of the assignment.
    """
    table = _ResultTable(saved, labels or {})
    for result in read_batch_results(paths):
        table.add(result.custom_id, result.answer)
    if not table.answered.any() and not table.failed.any():
        raise DataError(
            f"none of the {table.unknown:,} results is of {saved.folder}; their custom_id must be "
            "the ids of its prompts"
        )
    all_rows = np.ones(len(saved.table), dtype=np.bool_)
    targets = {name: (saved.table["target"] == name).to_numpy() for name in saved.pool.names}
    return CheckedResults(
        table.figures(all_rows),
        {name: table.figures(rows) for name, rows in targets.items()},
        table.unknown,
    )


@final
class _ResultTable:
    """The results of an assignment's prompts, in its order."""

    def __init__(self, saved: SavedAssignment, labels: Mapping[str, float]) -> None:
        table = saved.table
        self._row = {name: row for row, name in enumerate(table["id"])}
        self._targets = [saved.pool[name] for name in table["target"]]
        self._predicted = table["correctness"].to_numpy()
        self._expected = table["expected_cost"].to_numpy()
        self._labels = np.array([labels.get(name, np.nan) for name in table["id"]])
        self._cost = np.full(len(table), np.nan)
        self.answered = np.zeros(len(table), dtype=np.bool_)
        self.failed = np.zeros(len(table), dtype=np.bool_)
        self.unknown = 0

    def add(self, name: str, answer: Mapping[str, Any] | None) -> None:
        """Add a result."""
        row = self._row.get(name)
        if row is None:
            self.unknown += 1
        elif answer is None:
            self.failed[row] = not self.answered[row]
        elif not self.answered[row]:
            self.answered[row], self.failed[row] = True, False
            usage = answer.get("usage")
            cost = (
                cost_of(read_usage(usage), self._targets[row]) if isinstance(usage, dict) else None
            )
            self._cost[row] = np.nan if cost is None else cost

    def figures(self, rows: Bool[NDArray[np.bool_], " prompt"]) -> ResultFigures:
        """The figures of some prompts."""
        costed = rows & ~np.isnan(self._cost)
        labelled = rows & self.answered & ~np.isnan(self._labels)
        predicted, observed = self._predicted[labelled], self._labels[labelled]
        return ResultFigures(
            prompts=int(rows.sum()),
            answered=int((rows & self.answered).sum()),
            failed=int((rows & self.failed).sum()),
            costed=int(costed.sum()),
            expected_cost=float(self._expected[costed].sum()),
            observed_cost=float(self._cost[costed].sum()),
            labelled=len(observed),
            predicted=plain(predicted.mean()) if len(observed) else None,
            observed=plain(observed.mean()) if len(observed) else None,
            difference=_mean_difference(observed - predicted),
        )


def _mean_difference(differences: PerPrompt) -> Estimate:
    """The mean with its normal 95 % interval."""
    count = len(differences)
    if count < 2:
        return Estimate(math.nan, math.nan, math.nan, reason="fewer than two answers have a label")
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(count)
    return Estimate(mean, mean - NORMAL * error, mean + NORMAL * error)
