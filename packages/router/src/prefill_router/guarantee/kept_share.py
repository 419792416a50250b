"""Find the cheapest lam whose accuracy is guaranteed, or say what is missing for one.

The hypothesis at one lam is that routing there falls short of the promised share; `Hypotheses`
tests it. Where no lam can be guaranteed, the advice is more queries, more labels, or a weaker
guarantee.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from prefill_router.data import Query, RoutingDataset
from prefill_router.errors import ConfigError, DataError, OverlapError
from prefill_router.evaluation import (
    ChanceLabels,
    Estimate,
    Trial,
    Weights,
    chunks,
    divide,
    ones,
    plain,
    weighted_means,
)
from prefill_router.guarantee.losses import Choice, Losses, MissingLabels, order_ids
from prefill_router.short_repr import short_repr
from prefill_router.statistics import enough, p_value

_NAMED = 5
"""How many of the cells with missing labels are named."""


@final
@dataclass(frozen=True)
class Advice:
    """What would suffice to guarantee lam = 1 with a probability of about 50 %.

    Attributes:
        queries: About how many queries suffice, all labelled and like the measured ones. None where
            the router falls short on these, so that more won't help.
        labels: About how many of the missing labels suffice, if they are like the measured ones.
            None where labels aren't the problem, or wouldn't suffice without more queries.
        words: The reason why no lam can be guaranteed, and the advice.
    """

    queries: int | None
    labels: int | None
    words: str

    @classmethod
    def of(cls, losses: Losses, missing: MissingLabels, *, bounded: bool, level: float) -> "Advice":
        """Work out the advice.

        Args:
            losses: The losses at lam = 1.
            missing: The labels missing there.
            bounded: Whether missing labels count at their worst.
            level: Significance level of the test.
        """
        queries = enough(losses.scaled[losses.measured], losses.threshold, level=level)
        wanting = bounded and missing.queries and queries is not None
        labels = (_count_labels(losses, level=level) or None) if wanting else None
        if queries is not None and labels is None:
            queries = max(queries, len(losses) + 1)  # the test has failed on this many
        return cls(queries, labels, _word_advice(losses, missing, queries, labels))


NONE_NEEDED = Advice(None, None, "")


def word_places(missing: MissingLabels) -> str:
    """The targets and domains with missing labels, in words."""
    cells = [
        f"{cell.target} on {cell.missing:,} of {cell.needed:,}"
        + (f" in {cell.domain}" if cell.domain else "")
        for cell in missing.where[:_NAMED]
    ]
    others = sum(cell.missing for cell in missing.where[_NAMED:])
    return ", ".join(cells) + (f", and {others:,} elsewhere" if others else "")


def _count_labels(losses: Losses, *, level: float) -> int | None:
    """How many of the missing labels would suffice, if the most costly ones are filled in first."""
    measured_losses = losses.scaled[losses.measured]
    worst = np.sort(losses.scaled[~losses.measured])[::-1]

    def suffices(labels: int) -> bool:
        shares = (np.arange(labels) + 0.5) / max(labels, 1)
        filled = np.quantile(measured_losses, shares, method="inverted_cdf")
        mixed = np.concatenate([measured_losses, filled, worst[labels:]])
        needed = enough(mixed, losses.threshold, level=level)
        return needed is not None and needed <= len(losses)

    count = bisect_left(range(len(worst) + 1), True, key=suffices)
    return count if count <= len(worst) else None


def _word_advice(
    losses: Losses, missing: MissingLabels, queries: int | None, labels: int | None
) -> str:
    if queries is None:
        return (
            f"at lam = 1 the router keeps {100 * losses.kept_share:.1f} % of the best single "
            "target's accuracy where both are measured, so more queries won't help: require less, "
            "or fit a better router"
        )
    if labels:
        return (
            f"at lam = 1, {missing.queries:,} of {len(losses):,} queries lack a label that the "
            f"guarantee needs; at worst, the router keeps {100 * losses.least:.1f} % of the best "
            f"single target's accuracy: label these queries. About {labels:,} labels would suffice "
            "with a probability of 50 %, if they are like the others; or fit a router without the "
            "targets that lack labels, or require less"
        )
    return (
        f"{int(losses.measured.sum()):,} labelled queries are too few for this guarantee: about "
        f"{queries:,} would suffice with a probability of 50 %, if they are like these; or require "
        "less, or a lower confidence"
    )


@final
@dataclass(frozen=True)
class LamTest:
    """The test of one lam, with the hypothesis that routing there falls short of the promise.

    Attributes:
        lam: The tested lam.
        p_value: Small values are evidence against the hypothesis.
        queries: Number of queries it was tested on.
        missing: How many queries lack the label of the chosen or of the best target.
        bounded: Whether these were tested too, each label at its worst; else they were left out.
        kept_share: Accuracy there as a share of the best single target's, where both are measured;
            NaN where the latter is 0.
    """

    lam: float
    p_value: float
    queries: int
    missing: int
    bounded: bool
    kept_share: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = asdict(self)
        return values | {"kept": plain(values.pop("kept_share"))}


@final
@short_repr
@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The cheapest lam that keeps the promised share, and the data that it was tested on.

    Where no lam can be guaranteed, the numbers are those at lam = 1.

    Attributes:
        lam: The guaranteed lam; None where no lam can be guaranteed.
        keep: The share of the best single target's accuracy that is promised.
        confidence: The minimum probability that the promise is kept at `lam`.
        best: The best single target of the train part.
        assume: The assumption about missing labels: `nothing`, or `missing-at-random`.
        bounded: Whether each missing label counted at its worst; else the queries that lack one
            were left out, as assumed.
        queries: Number of queries it was tested on.
        missing: Which labels are missing.
        kept_share: Accuracy as a share of the best single target's, on the queries with both
            labels.
        least: The smallest such share on all queries that the missing labels allow; NaN where the
            best single target is never right.
        accuracy: The accuracy on the queries with both labels.
        best_accuracy: The best single target's accuracy on the same queries.
        savings: 1 - mean cost / mean cost of the best single target, where both are known.
        sequence: The tests, from lam = 1 down; all but the last were rejected, the last too if the
            sequence was completed.
        needed: Where there is no lam: about how many queries, all labelled, would suffice for
            lam = 1; None where more queries of this kind won't help, or a lam was found.
        labels: Where there is no lam: about how many of the missing labels would suffice; None
            where that isn't known to be enough, or a lam was found.
        advice: What to do next, in words.
    """

    lam: float | None
    keep: float
    confidence: float
    best: str
    assume: str
    bounded: bool
    queries: int
    missing: MissingLabels
    kept_share: Estimate
    least: float
    accuracy: Estimate
    best_accuracy: Estimate
    savings: Estimate
    sequence: tuple[LamTest, ...]
    needed: int | None
    labels: int | None
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        numbers = ("accuracy", "best_accuracy", "savings")
        values = {name: value for name, value in vars(self).items() if name != "kept_share"}
        return {
            **values,
            "kept": self.kept_share.to_dict(),
            **{name: getattr(self, name).to_dict() for name in numbers},
            "least": plain(self.least),
            "missing": self.missing.to_dict(),
            "sequence": [tested.to_dict() for tested in self.sequence],
        }


Assumption = Literal["nothing", "missing-at-random"]
"""The assumption about missing labels."""
ASSUMPTIONS: tuple[Assumption, ...] = get_args(Assumption)


@final
@dataclass(frozen=True, eq=False)
class Hypotheses:
    """The hypotheses, one per lam, that routing at that lam falls short of the promise.

    Attributes:
        trial: A system on queries that it was not fitted on.
        best: Column of the best single target.
        keep: The share that is promised.
        level: Significance level of the tests.
        assume: The assumption about missing labels.
        queries: The trial's queries, looked up by id, for their benchmarks and domains.
        seed: Random seed of the tests of whether labels are missing at random.
    """

    trial: Trial
    best: int
    keep: float
    level: float
    assume: Assumption
    queries: Sequence[Query]
    seed: int

    def losses(self, lam: float) -> Losses:
        """The loss of each query."""
        return Losses.of(self.trial, self.trial.path.at(lam), self.best, self.keep)

    def missing(self, lam: float) -> MissingLabels:
        """The missing labels at this lam."""
        choice = self.trial.path.at(lam)
        return MissingLabels.of(self.trial, choice, self.best, self._domains, seed=self.seed)

    def sequence(self, lams: Sequence[float]) -> tuple[LamTest, ...]:
        """The tests of one lam after another, up to the first that isn't a rejection."""
        tests = []
        for lam in lams:
            tests.append(self.test(lam))
            if tests[-1].p_value > self.level:
                break
        return tuple(tests)

    def test(self, lam: float) -> LamTest:
        """The p-value, with missing labels at their worst unless they may be left out."""
        losses = self.losses(lam)
        measured = losses.measured
        ordered, is_measured = losses.scaled[self._order], measured[self._order]
        p = p_value(ordered, losses.threshold, level=self.level)
        bounded = True
        if self.assume == "missing-at-random" and not measured.all():
            p_measured = p_value(ordered[is_measured], losses.threshold, level=self.level)
            bounded = bool(self.missing(lam).signs)
            # The greater of the two, so that choosing after looking can't make it too small.
            p = max(p, p_measured) if bounded else p_measured
        count = len(losses) if bounded else int(measured.sum())
        missing = int((~measured).sum())
        return LamTest(float(lam), p, count, missing, bounded, losses.kept_share)

    @cached_property
    def _order(self) -> Choice:
        return order_ids(self.trial.query_ids)

    @cached_property
    def _domains(self) -> tuple[str, ...]:
        several = len({query.benchmark for query in self.queries}) > 1
        names = {
            query.id: " / ".join(filter(None, (query.benchmark * several, query.domain)))
            for query in self.queries
        }
        return tuple(names.get(i, "") for i in self.trial.query_ids)


KEEP = 0.98
CONFIDENCE = 0.95
_ODDS = np.geomspace(1e4, 1e-4, 401)
LAMS: tuple[float, ...] = (1.0, *np.round(_ODDS / (1 + _ODDS), 6).tolist(), 0.0)
"""The tested values of lam, falling: fixed beforehand, dense near both ends, and few enough to be
printed in full."""


def best_single(train: RoutingDataset) -> str:
    """The target that no other beats on the train part, on the queries that both answered.

    Where no label is missing, this is the target of highest accuracy, of several the first. A
    missing label is never an advantage. A target that lacks labels on another's queries must be
    better by the margin of uncertainty that its labels leave. So a few lucky labels don't suffice.
    Where chance selected the labels, they are weighted by inverse propensity.

    Raises:
        DataError: Nothing was measured.
    """
    chance = ChanceLabels.of(train, np.zeros(train.correct.shape))
    if chance is not None and chance.selected:
        return _choose_by_propensity(train, chance)
    measured = np.flatnonzero(~np.isnan(train.correct).all(axis=0))
    if not len(measured):
        raise DataError("no train row has a label, so no target is known to be the best")
    labels = train.correct[:, measured]
    is_known = (~np.isnan(labels)).astype(np.float64)
    common = np.maximum(
        is_known.T @ is_known, 0.5
    )  # no common query: wide, but not infinite, margin
    right = np.nan_to_num(labels).T @ is_known
    open_to = np.sqrt(1 / common - 1 / is_known.sum(axis=0))
    margin = (right - right.T) / common - open_to + open_to.T
    return train.pool.names[int(measured[margin.min(axis=1).argmax()])]


def _choose_by_propensity(train: RoutingDataset, chance: ChanceLabels) -> str:
    accuracy = weighted_means(chance.weight, chance.corrected, train.observed_cost)[1]
    if np.isnan(accuracy).all():
        raise DataError(
            "no target has enough labels, selected by chance, for its accuracy to be known; "
            "collect more labels"
        )
    return train.pool.names[int(np.nanargmax(accuracy))]


def guarantee(
    trial: Trial,
    *,
    best: str,
    keep: float = KEEP,
    confidence: float = CONFIDENCE,
    lams: Sequence[float] = LAMS,
    assume: Assumption = "nothing",
    queries: Sequence[Query] = (),
    resamples: int = 1000,
    seed: int = 0,
) -> Guarantee:
    """Find the cheapest lam that keeps a share of the best single target's accuracy.

    With a probability of at least `confidence` over the sampling of the queries, the accuracy at
    the returned lam is at least `keep` times that of `best` on the population of queries. This
    holds for any number of queries, if they are independent draws that nothing was fitted or chosen
    on. A missing label counts at its worst, so it holds for any reason why labels are missing.

    Args:
        trial: A system on queries that it was not fitted on.
        best: The best single target, chosen on other queries: on the train part.
        keep: The promised share; above 1 demands more than the best single target.
        confidence: The confidence of the guarantee.
        lams: The tested values, falling; must be fixed before the labels are seen.
        assume: `missing-at-random` leaves out queries with missing labels, at every lam where tests
            don't reject that they are missing at random over domains, choices and difficulty. Use
            it only if whether an answer was measured depends on neither the query nor the answer.
        queries: The trial's queries, looked up by id, for their benchmarks and domains.
        resamples: Bootstrap resamples for the intervals of the expected numbers, which play no part
            in the guarantee.
        seed: Random seed of the resamples and of the tests of missing at random.

    Raises:
        ConfigError: An option makes no sense, or the trial has no such target.
        DataError: On no query are both labels measured.
        OverlapError: Chance selected the labels, and far fewer were observed than their
            propensities let expect, so nothing can be promised.
    """
    _check_options(trial, best, keep, confidence, lams)
    column, level = trial.targets.index(best), 1 - confidence
    _check_propensities(trial, column)
    tests = Hypotheses(trial, column, keep, level, assume, queries, seed)
    sequence = tests.sequence(lams)
    rejections = [tested for tested in sequence if tested.p_value <= level]
    reported_test = rejections[-1] if rejections else sequence[0]
    losses, missing = tests.losses(reported_test.lam), tests.missing(reported_test.lam)
    if not losses.measured.any():
        raise DataError(
            f"no query has a label both of the chosen target and of {best!r}; score more answers"
        )
    advice = (
        NONE_NEEDED
        if rejections
        else Advice.of(losses, missing, bounded=reported_test.bounded, level=level)
    )
    return Guarantee(
        lam=reported_test.lam if rejections else None,
        keep=keep,
        confidence=confidence,
        best=best,
        assume=assume,
        bounded=reported_test.bounded,
        queries=reported_test.queries,
        missing=missing,
        least=losses.least,
        sequence=sequence,
        needed=advice.queries,
        labels=advice.labels,
        advice=advice.words,
        **_estimate_numbers(trial, trial.path.at(reported_test.lam), column, resamples, seed),
    )


def _estimate_numbers(
    trial: Trial, choice: Choice, best: int, resamples: int, seed: int
) -> dict[str, Estimate]:
    """The expected accuracy and savings with bootstrap intervals, on the same queries."""
    tables = [trial.of_choice(table, choice) for table in (trial.correct, trial.paid)]
    best_values = [table[:, best] for table in (trial.correct, trial.observed_cost)]
    is_known = [~(np.isnan(a) | np.isnan(b)) for a, b in zip(tables, best_values, strict=True)]
    columns = [
        np.where(k, np.nan_to_num(c), 0)
        for k, c in zip(is_known * 2, tables + best_values, strict=True)
    ]
    values = np.stack([*columns, is_known[0].astype(np.float64)], axis=1)

    def read(weights: Weights) -> dict[str, NDArray[np.float64]]:
        right, cost, best_right, best_cost, count = (weights @ values).T
        return {
            "kept_share": divide(right, best_right),
            "accuracy": divide(right, count),
            "best_accuracy": divide(best_right, count),
            "savings": 1 - divide(cost, best_cost),
        }

    point = read(ones(len(trial)))
    size = len(trial)
    each = chunks(size, count=resamples, seed=seed, width=size, groups=trial.conversations)
    resampled = [read(weights) for weights in each]
    reasons = {
        "kept_share": "the best single target answers none of these queries correctly",
        "savings": "no cost is known, or the best single target is free",
    }
    return {
        name: Estimate.of(
            float(value[0]),
            np.concatenate([np.zeros(0), *(chunk[name] for chunk in resampled)]),
            reason=reasons.get(name, ""),
        )
        for name, value in point.items()
    }


def _check_propensities(trial: Trial, best: int) -> None:
    overlap = trial.overlap_of([trial.path.at(1), np.full(len(trial), best)])
    if overlap is not None and overlap.short:
        raise OverlapError(
            f"{', '.join(overlap.short)}: far fewer labels were observed than the propensities "
            "predict, so nothing can be guaranteed. If a label was requested and lost, set "
            "its propensity to NaN; it then counts as the worst possible"
        )


def _check_options(
    trial: Trial, best: str, keep: float, confidence: float, lams: Sequence[float]
) -> None:
    if best not in trial.targets:
        raise ConfigError(f"there is no target {best!r}; the targets are {list(trial.targets)}")
    if not (math.isfinite(keep) and 0 < keep <= 2):
        raise ConfigError(f"keep is {keep}; it must be above 0 and at most 2, for example 0.98")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence is {confidence}; it must be between 0 and 1, like 0.95")
    falling = all(a > b for a, b in pairwise(lams))
    if not lams or not falling or not (lams[-1] >= 0 and lams[0] <= 1):
        raise ConfigError(
            f"lams are {list(lams)}; give at least one value in [0, 1], in falling order"
        )
