"""Is the router surer of itself than it should be, far from what it was trained on?"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.errors import DataError
from prefill_router.evaluation import Estimate
from prefill_router.evaluation.weighted import PerResample, Weights, known_mean, mean_over, ones
from prefill_router.studies.doctor.finding import Finding, Sign, percent, points
from prefill_router.studies.doctor.subject import Subject

NEIGHBOURS = 10
BINS = 5
TOLERATED = 0.05
_MOST = 4000
_ROWS = 256
Features = Float[NDArray[np.floating[Any]], "_row feature"]
PerQuery = Float[NDArray[np.float64], " query"]


@final
@dataclass(frozen=True)
class Region:
    """The queries at some distance from the train part.

    Attributes:
        name: Which.
        queries: How many.
        confidence: Mean probability of the chosen target.
        accuracy: Its mean label.
        gap: Confidence minus accuracy.
    """

    name: str
    queries: int
    confidence: float
    accuracy: float
    gap: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {k: v if np.isfinite(v) else None for k, v in vars(self).items() if k in _NUMBERS}
        return {"name": self.name, "queries": self.queries, **plain, "gap": self.gap.to_dict()}


_NUMBERS = ("confidence", "accuracy")


def distances(train: Features, examined: Features, *, seed: int = 0) -> PerQuery:
    """The mean distance of each row to its nearest train rows, each feature in standard deviations.

    Args:
        train: Features of the train part; a sample of them is taken where they are many.
        examined: Features of other queries.
        seed: Of that sample.

    Raises:
        DataError: There is no train row.
    """
    if not len(train):
        raise DataError("there are no train rows to measure the distance to")
    if len(train) > _MOST:
        kept = np.random.default_rng(seed).choice(len(train), _MOST, replace=False)
        train = train[np.sort(kept)]
    spread = train.std(axis=0, dtype=np.float64)
    scale = 1 / np.where(spread > 0, spread, 1)
    near, far = (part.astype(np.float64) * scale for part in (train, examined))
    count = min(NEIGHBOURS, len(near))
    length = (near**2).sum(axis=1)
    result = np.empty(len(far))
    for begin in range(0, len(far), _ROWS):
        rows = far[begin : begin + _ROWS]
        squares = (rows**2).sum(axis=1)[:, None] + length - 2 * rows @ near.T
        nearest = np.partition(squares, count - 1, axis=1)[:, :count]
        result[begin : begin + _ROWS] = np.sqrt(np.maximum(nearest, 0)).mean(axis=1)
    return result


def regions(
    subject: Subject, distance: PerQuery, *, resamples: int, seed: int
) -> tuple[Region, ...]:
    """Confidence and accuracy by distance from the train part, nearest first.

    Args:
        subject: Who is examined.
        distance: Of each of its queries.
        resamples: For the intervals.
        seed: Of the resamples.
    """
    count = min(BINS, len(subject))
    order = np.argsort(np.argsort(distance, kind="stable"), kind="stable")
    place = order * count // len(subject)
    names = ["nearest", *(f"{i + 1} of {count}" for i in range(1, count - 1)), "farthest"]
    found = [
        _region(subject, name, place == i, resamples, seed)
        for i, name in enumerate(names[-count:] if count > 1 else ["all"])
    ]
    known = {(query.benchmark, query.domain) for query in subject.train.queries}
    new = np.array([(q.benchmark, q.domain) not in known for q in subject.queries])
    if new.any():
        found.append(
            _region(subject, "benchmarks and domains not trained on", new, resamples, seed)
        )
    return tuple(found)


def finding(found: tuple[Region, ...]) -> Finding:
    """Whether confidence outruns accuracy far away."""
    far = [one for one in found if one.name not in ("nearest",) and " of " not in one.name]
    signs: list[Sign] = [_sign(one.gap) for one in far]
    sign: Sign = "bad" if "bad" in signs else "unclear" if "unclear" in signs else "good"
    told = [
        f"{one.name}: predicted {percent(one.confidence)}, right {percent(one.accuracy)}, "
        f"{points(one.gap)}"
        for one in dict.fromkeys((found[0], *far))
    ]
    numbers = {"regions": [one.to_dict() for one in found], "tolerated": TOLERATED}
    title = "Overconfidence far from the training queries"
    return Finding("distance", title, sign, "; ".join(told), numbers)


def _sign(gap: Estimate) -> Sign:
    if gap.lower > TOLERATED:
        return "bad"
    return "good" if gap.upper <= TOLERATED else "unclear"


def _region(
    subject: Subject, name: str, member: NDArray[np.bool_], resamples: int, seed: int
) -> Region:
    table = np.stack([subject.confidence, subject.label], axis=1)
    inside = np.where(member[:, None] & ~np.isnan(table).any(axis=1, keepdims=True), table, np.nan)

    def gap(weights: Weights) -> PerResample:
        return mean_over(weights, inside[:, 0] - inside[:, 1])

    confidence, accuracy = known_mean(ones(len(subject)), inside)[0].tolist()
    estimate = subject.estimate(gap, resamples=resamples, seed=seed)
    return Region(name, int(member.sum()), confidence, accuracy, estimate)
