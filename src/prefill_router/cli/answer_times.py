"""The time of each answer in a dataset, as measured in its run or computed from speeds."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.cli.application import err
from prefill_router.errors import DataError

if TYPE_CHECKING:
    from prefill_router.data import RoutingDataset


AnswerSeconds = Float[NDArray[np.float64], "query target"]


def measured_seconds(folder: Path, dataset: "RoutingDataset") -> AnswerSeconds:
    """Seconds from each request to the end of its answer in a run; NaN where there is none.

    Args:
        folder: The run's folder.
        dataset: The queries and targets; those that the run lacks stay NaN.

    Raises:
        FormatError: The folder isn't a run.
        DataError: It has no answer to any of these queries.
    """
    from prefill_router.harness import Run

    row = {name: i for i, name in enumerate(dataset.query_ids)}
    column = {name: k for k, name in enumerate(dataset.pool.names)}
    seconds = np.full((len(row), len(column)), np.nan)
    with Run.open(folder) as run:
        shared = column.keys() & set(run.pool.names)
        for answer in run.answers(targets=shared):
            if answer.reply is not None and answer.query_id in row:
                seconds[row[answer.query_id], column[answer.target]] = answer.reply.seconds
    if np.isnan(seconds).all():
        raise DataError(
            f"{folder} has no answer to any of the queries that are judged; name the run that the "
            "dataset was graded from"
        )
    return seconds


def answers_seconds(
    judged: "RoutingDataset", speeds: Path | None, run: Path | None
) -> tuple[AnswerSeconds, str]:
    """Seconds of each answer, from speeds or as measured in a run, and a note on the source."""
    from prefill_router.studies.end_to_end import answer_seconds, read_speeds

    seconds = np.full(judged.correct.shape, np.nan)
    sources = []
    if speeds is not None:
        given = read_speeds(speeds)
        if run is None and (lacking := sorted(set(judged.pool.names) - set(given))):
            raise DataError(f"{speeds} lacks the targets {lacking}; name the speed of each")
        seconds = answer_seconds(judged, given)
        sources.append(f"TTFT and output tokens at the speeds in {speeds.name}")
    if run is not None:
        timed = measured_seconds(run, judged)
        seconds = np.where(np.isnan(timed), seconds, timed)
        share = float(np.mean(~np.isnan(timed)))
        sources.insert(0, f"measured in {run} ({100 * share:.0f} % of the answers)")
    if not sources:
        err.print("note: no --speeds and no --run, so the time of the answers is unknown")
    return seconds, "; else ".join(sources)
