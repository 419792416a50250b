"""The queries that a study may judge on or only choose on, and how long their answers took."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.cli.application import err
from prefill_router.cli.commands import one_of
from prefill_router.errors import ConfigError, DataError

if TYPE_CHECKING:
    from prefill_router.data import Part, RoutingDataset, Split
    from prefill_router.router import Router


PARTS = ("test", "calibration", "unseen")


@final
@dataclass(frozen=True, eq=False)
class UnseenQueries:
    """A dataset at the router's prices and with its targets, in two parts.

    Attributes:
        judged: The queries that the router is judged on.
        train: The queries of the dataset that the router was trained on; None without any.
    """

    judged: "RoutingDataset"
    train: "RoutingDataset | None"

    @classmethod
    def of(cls, router: "Router", whole: "RoutingDataset", part: str) -> "UnseenQueries":
        """Select both parts from a dataset.

        Args:
            router: The router, with the split that it was fitted on.
            whole: Scored answers.
            part: `test` or `calibration` of the router's split, or `unseen`: every query that it
                was neither trained nor calibrated on.

        Raises:
            ConfigError: The part isn't one of these, the split lacks it, or the router was
                calibrated on it.
            DataError: The dataset lacks queries of the part, or has no unseen query.
        """
        lacking = sorted(set(router.pool.names) - set(whole.pool.names))
        if lacking:
            raise DataError(
                f"the dataset lacks the router's targets {lacking}; it has {whole.pool.names}"
            )
        priced = whole.select(targets=router.pool.names).with_pool(router.pool)
        held = set(whole.query_ids)
        trained = [i for i in router.split["train"] if i in held]
        train = priced.select(trained) if trained else None
        if trained and len(trained) < len(router.split["train"]):
            err.print(
                f"note: the dataset has {len(trained):,} of the {len(router.split['train']):,} "
                "queries that the router was trained on"
            )
        if part == "calibration" and router.calibrator is not None:
            raise ConfigError(
                "the router's probabilities were calibrated on its calibration part, so it isn't "
                "unseen; say --part test, or --part unseen with new queries"
            )
        return cls(priced.select(_judged(router.split, priced, train, part)), train)


def _judged(
    drawn: "Split", dataset: "RoutingDataset", train: "RoutingDataset | None", part: str
) -> Sequence[str]:
    named: tuple[Part, ...] = ("test", "calibration")
    for name in named:
        if name == part:
            _check_held(dataset, drawn[name], part)
            return drawn[name]
    one_of("--part", part, PARTS)
    seen = {i for name in ("train", "calibration") for i in drawn.parts.get(name, ())}
    prompts = set() if train is None else set(train.prompt_keys)
    rows = zip(dataset.query_ids, dataset.prompt_keys, strict=True)
    ids = [i for i, prompt in rows if i not in seen and prompt not in prompts]
    if not ids:
        raise DataError("the router was trained on every query of the dataset; give it new ones")
    return ids


def _check_held(dataset: "RoutingDataset", ids: Sequence[str], part: str) -> None:
    lacking = len(set(ids) - set(dataset.query_ids))
    if lacking:
        raise DataError(
            f"the dataset lacks {lacking:,} of the {len(ids):,} queries in the {part} part of the "
            "router's split, so it isn't the one that the router was fitted on, or not the whole "
            "of it; to take every query that the router wasn't trained on, say --part unseen"
        )


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
