"""How long targets took in a run, for the dataset that was graded from it."""

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
    """From each request to the end of its answer, as collected; NaN where there is none.

    Args:
        folder: A run.
        dataset: Whose queries and targets; those that the run lacks stay unknown.

    Raises:
        FormatError: It is no run.
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
    """How long each answer takes, by speeds or as measured in a run, and where that comes from."""
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
