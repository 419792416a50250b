"""Advice from the points of a learning curve, in numbers and in sentences.

Everything is computed for the points themselves and for each resample of test queries and draws, so
that every statement about a curve has an interval.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.errors import FitError
from prefill_router.evaluation import HEADLINE, LEVEL, Estimate, worded
from prefill_router.money import dollars
from prefill_router_lab.learning_curves.curves import (
    STEP,
    LearningCurve,
    Number,
    PowerLaw,
    SizePoint,
    Trend,
    Verdict,
    direction,
    r_squared,
)

if TYPE_CHECKING:
    from prefill_router_lab.learning_curves.result import LearningStudy

Values = Float[NDArray[np.float64], " size"]
_UPPER = 3
"""The slope is taken over this many of the largest sizes, which best predict further labels."""
FLAT = 0.005
"""An AUC that significantly gains less than this when the labels double counts as flat."""
_TRUSTED = 0.7
_MISS = 0.25


@final
@dataclass(frozen=True, eq=False)
class LabelAxis:
    """One metric along the sizes of an axis.

    Attributes:
        labels: Number of labels of each size, rising.
        value: The mean over the draws at each size.
        resampled: The same in each resample.
    """

    labels: Values
    value: Values
    resampled: Float[NDArray[np.float64], "resample size"]

    def estimate(self, of: Callable[[Values], float], *, reason: str = "") -> Estimate:
        """A statistic of the curve, with its interval."""
        draws = np.array([of(row) for row in self.resampled])
        return Estimate.of(of(self.value), draws, reason=reason)


def trend_of(number: Number, axis: LabelAxis) -> Trend:
    """The trend of a metric along the axis of queries."""
    sign = direction(number)

    def error(values: Values) -> Values:
        return values if sign < 0 else 1 - values

    def fit_law(values: Values) -> PowerLaw | None:
        try:
            return PowerLaw.fit(axis.labels, error(values))
        except FitError:
            return None

    def measure_miss(values: Values) -> float:
        try:
            before = PowerLaw.fit(axis.labels[:-1], error(values)[:-1])
        except FitError:
            return float("nan")
        return float(error(values)[-1] - before.at(axis.labels[-1:])[0])

    laws = [fit_law(row) for row in axis.resampled]
    law = fit_law(axis.value)
    held_out = axis.estimate(measure_miss, reason="too few sizes to leave one out")
    r2 = float("nan") if law is None else r_squared(law, axis.labels, error(axis.value))
    return Trend(
        law=law,
        per_doubling=axis.estimate(
            lambda values: sign * slope(axis.labels, values), reason="fewer than two sizes"
        ),
        next_doubling=_estimate_from_laws(law, laws, lambda law: law.gain(2.0)),
        explained=r2,
        held_out=held_out,
        labels_for_step=_estimate_from_laws(law, laws, lambda law: law.labels_for(STEP)),
        why_poor=_explain_poor_law(law, r2, held_out, error(axis.value)),
    )


def slope(labels: Values, values: Values) -> float:
    """The least-squares slope per doubling of the labels, over the largest sizes."""
    places = np.flatnonzero(np.isfinite(values))[-_UPPER:]
    if len(places) < 2:
        return float("nan")
    x = np.log2(labels[places])
    x = x - x.mean()
    return float(x @ values[places] / (x @ x))


def spread_of(number: Number, queries: LabelAxis, targets: LabelAxis) -> Estimate:
    """The gain from spending labels on few targets of all queries, not all targets of few."""
    sign = direction(number)
    within = (targets.labels >= queries.labels[0]) & (targets.labels < queries.labels[-1])

    def gain(wide: NDArray[np.float64], deep: NDArray[np.float64]) -> float:
        is_known = np.isfinite(deep)
        if not within.any() or is_known.sum() < 2:
            return float("nan")
        labels = np.log(targets.labels[within])
        same = np.interp(labels, np.log(queries.labels[is_known]), deep[is_known])
        gains = sign * (wide[within] - same)
        return float(np.nanmean(gains)) if np.isfinite(gains).any() else float("nan")

    draws = np.array(
        [gain(w, d) for w, d in zip(targets.resampled, queries.resampled, strict=True)]
    )
    return Estimate.of(
        gain(targets.value, queries.value),
        draws,
        reason="no sizes with the same labels are known on both axes",
    )


def verdict_of(trends: Mapping[Number, Trend], full: SizePoint) -> tuple[Verdict, str]:
    """Whether more labels help, judged by AUC, where learning shows first."""
    auc, rise = full.numbers["auc_mean"], trends["auc_mean"].per_doubling
    if math.isnan(auc.lower):
        why = auc.reason or "there is no interval of the mean AUC with all labels"
        return "can't tell", f"it isn't known whether anything was learned: {why}"
    if not auc.lower > 0.5:
        return (
            "more labels won't help",
            "with all labels the mean AUC isn't significantly above 0.5, so nothing was learned: "
            "try other features before more labels",
        )
    if rise.lower > 0:
        return (
            "more labels help",
            f"doubling the labels has raised the mean AUC by {rise.value:.4f} "
            f"({rise.lower:.4f} to {rise.upper:.4f})",
        )
    if rise.upper < FLAT:
        return (
            "more labels won't help",
            f"doubling the labels raises the mean AUC by less than {FLAT:g}, so these features "
            "and this predictor have nearly reached their limit",
        )
    return (
        "can't tell",
        "the curve is too noisy: doubling the labels changes the mean AUC by "
        f"{rise.lower:+.4f} to {rise.upper:+.4f}; draw more often, or judge on more queries",
    )


def _estimate_from_laws(
    law: PowerLaw | None,
    resampled: Sequence[PowerLaw | None],
    of: Callable[[PowerLaw], float],
) -> Estimate:
    """A number computed from the power law with its interval, whose bounds may be infinite."""
    if law is None:
        nan = float("nan")
        return Estimate(nan, nan, nan, reason="too few sizes for a power law")
    values = np.sort([of(each) for each in resampled if each is not None])
    lower = upper = float("nan")
    if len(values):
        tail = (1 - LEVEL) / 2
        lower, upper = (
            float(values[min(len(values) - 1, int(share * len(values)))])
            for share in (tail, 1 - tail)
        )
    return Estimate(of(law), lower, upper)


def _explain_poor_law(law: PowerLaw | None, r2: float, held_out: Estimate, errors: Values) -> str:
    if law is None:
        return "too few sizes are known for a power law"
    if not r2 >= _TRUSTED:
        return "the scatter of the points exceeds their trend"
    finite = errors[np.isfinite(errors)]
    wide = abs(held_out.value) > _MISS * float(np.ptp(finite))
    if wide and (held_out.lower > 0 or held_out.upper < 0):
        return "a power law through the smaller sizes doesn't predict the largest"
    return ""


_FAR = 10.0
"""Beyond this multiple of the labels, the power law's prediction is called a guess."""
POINTS: tuple[Number, ...] = ("argmax_accuracy", "auc_mean")
"""The metrics for which the cost of another point is given."""
_EVEN = 0.002


def summary(study: "LearningStudy") -> list[str]:
    """The result in sentences, for readers who don't know the paper."""
    start = (
        f"Each router was fitted on shares of {study.queries:,} labelled queries with "
        f"{study.labels:,} measured outcomes. Each was also fitted on all queries with fewer "
        f"targets measured per query. All were judged on the same {study.tested:,} other queries."
    )
    return [*(" ".join(of_curve(curve, study)) for curve in study.curves.values()), start]


def of_curve(curve: LearningCurve, study: "LearningStudy") -> list[str]:
    """The statements about one router's curve."""
    lines = [f"{curve.name}: {curve.verdict}: {curve.because}."]
    if curve.verdict != "more labels won't help":
        lines += [_word_point(curve, number, study) for number in POINTS]
    nothing = not curve.full.numbers["auc_mean"].lower > 0.5
    return lines if nothing else [*lines, _word_spread(curve)]


def _word_point(curve: LearningCurve, number: Number, study: "LearningStudy") -> str:
    trend = curve.trends[number]
    step = (
        "One more point of accuracy at lam 1"
        if number == "argmax_accuracy"
        else "0.01 more mean AUC"
    )
    labels = trend.labels_for_step
    if trend.why_poor:
        return f"{step}: the number of labels it takes is unknown, since {trend.why_poor}."
    if math.isinf(labels.value):
        text = f"{step}: by the power law no number of labels reaches it"
        few = math.isfinite(labels.lower) and labels.lower <= _FAR * study.labels
        return f"{text}, though {_word_more(labels.lower, study)} may do." if few else f"{text}."
    text = f"{step} takes about {_word_more(labels.value, study)}{_word_range(labels, study)}"
    if labels.value > _FAR * study.labels:
        return f"{text}. That is far beyond the measured range, so it is a guess."
    return f"{text}{_word_price(labels.value, study)}."


def _word_spread(curve: LearningCurve) -> str:
    spread = curve.spread["auc_mean"]
    if math.isnan(spread.value):
        return "More queries or more targets per query: these sizes can't decide it."
    change = f"{spread.value:+.4f} mean AUC ({spread.lower:+.4f} to {spread.upper:+.4f})"
    if spread.lower > 0:
        return (
            "For the same number of labels it is better to query fewer targets on more queries: "
            f"{change}."
        )
    if spread.upper < 0:
        return (
            "For the same number of labels it is better to query every target on fewer queries: "
            f"{change} for fewer targets on more queries."
        )
    even = max(abs(spread.lower), abs(spread.upper)) < _EVEN
    how = "makes no difference" if even else "makes no significant difference"
    return (
        f"Spending the same labels on few targets of many queries, not all targets of few, {how}: "
        f"{change}; take whichever is cheaper to collect."
    )


def _word_more(labels: float, study: "LearningStudy") -> str:
    """The number of additional labels, also as queries with all targets."""
    extra = max(0.0, labels - study.labels)
    queries = extra * study.queries / study.labels
    return f"{format_count(extra)} more labels ({format_count(queries)} queries with every target)"


def _word_range(total: Estimate, study: "LearningStudy") -> str:
    if math.isnan(total.lower):
        return ""
    ends = [
        "never" if math.isinf(end) else format_count(max(0.0, end - study.labels))
        for end in (total.lower, total.upper)
    ]
    return f"; with 95 % confidence between {ends[0]} and {ends[1]}"


def _word_price(labels: float, study: "LearningStudy") -> str:
    cost = (labels - study.labels) * study.label_cost
    return (
        f"; at the observed {dollars(study.label_cost)} each that is {dollars(cost)}"
        if (math.isfinite(cost) and cost > 0)
        else ""
    )


def format_count(value: float) -> str:
    """A number to two significant digits, since it isn't known more precisely."""
    if value < 1:
        return "0"
    digits = 1 - math.floor(math.log10(value))
    return f"{round(value, digits):,.0f}"


def format_metric(number: Number, estimate: Estimate) -> str:
    """A number with its unit."""
    return worded(estimate.value, HEADLINE[number].unit)
