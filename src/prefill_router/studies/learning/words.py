"""What learning curves advise, in sentences."""

import math

from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.evaluation.catalogue import HEADLINE
from prefill_router.evaluation.wording import dollars, worded
from prefill_router.studies.learning.numbers import Number
from prefill_router.studies.learning.result import Curve, Learning

_FAR = 10.0
"""A law that is asked for more than so many times the labels is only guessing."""
POINTS: tuple[Number, ...] = ("argmax_accuracy", "auc_mean")
"""The numbers of which a point more is priced."""
_EVEN = 0.002


def said(found: Learning) -> list[str]:
    """What was found, for somebody who hasn't read the paper."""
    start = (
        f"Each router was fitted on shares of {found.queries:,} labelled queries with "
        f"{found.labels:,} measured outcomes, and again on all queries with fewer targets measured "
        f"each; all were judged on the same {found.tested:,} other queries."
    )
    return [*(" ".join(of_curve(curve, found)) for curve in found.curves.values()), start]


def of_curve(curve: Curve, found: Learning) -> list[str]:
    """What one router's curve says."""
    lines = [f"{curve.name}: {curve.verdict}: {curve.because}."]
    if curve.verdict != "more labels won't help":
        lines += [_point(curve, number, found) for number in POINTS]
    nothing = not curve.full.numbers["auc_mean"].lower > 0.5
    return lines if nothing else [*lines, _spread(curve)]


def _point(curve: Curve, number: Number, found: Learning) -> str:
    trend = curve.trends[number]
    step = (
        "One more point of accuracy at lam 1"
        if number == "argmax_accuracy"
        else "0.01 more mean AUC"
    )
    asked = trend.labels_for_step
    if trend.why_poor:
        return f"{step}: how many labels it takes can't be said, since {trend.why_poor}."
    if math.isinf(asked.value):
        text = f"{step}: by the power law no number of labels gives it"
        few = math.isfinite(asked.lower) and asked.lower <= _FAR * found.labels
        return f"{text}, though {_more(asked.lower, found)} may do." if few else f"{text}."
    text = f"{step} takes about {_more(asked.value, found)}{_range(asked, found)}"
    if asked.value > _FAR * found.labels:
        return f"{text}. That is so far beyond what was measured that it is a guess."
    return f"{text}{_price(asked.value, found)}."


def _spread(curve: Curve) -> str:
    one = curve.spread["auc_mean"]
    if math.isnan(one.value):
        return "More queries or more targets per query: it can't be said from these sizes."
    change = f"{one.value:+.4f} mean AUC ({one.lower:+.4f} to {one.upper:+.4f})"
    if one.lower > 0:
        return (
            "For the same number of labels it pays to ask fewer targets about more queries: "
            f"{change}."
        )
    if one.upper < 0:
        return (
            "For the same number of labels it pays to ask every target about fewer queries: "
            f"{change} for spreading them."
        )
    even = max(abs(one.lower), abs(one.upper)) < _EVEN
    how = "makes no difference" if even else "makes no sure difference"
    return (
        f"Whether the same labels are few targets of many queries or all targets of few {how}: "
        f"{change} for spreading them; take whichever is cheaper to get."
    )


def _more(labels: float, found: Learning) -> str:
    """So many more labels, as queries with all targets too."""
    extra = max(0.0, labels - found.labels)
    queries = extra * found.queries / found.labels
    return f"{rounded(extra)} more labels ({rounded(queries)} queries with every target)"


def _range(asked: Estimate, found: Learning) -> str:
    if math.isnan(asked.lower):
        return ""
    ends = [
        "never" if math.isinf(end) else rounded(max(0.0, end - found.labels))
        for end in (asked.lower, asked.upper)
    ]
    return f"; with 95 % confidence between {ends[0]} and {ends[1]}"


def _price(labels: float, found: Learning) -> str:
    cost = (labels - found.labels) * found.label_cost
    return (
        f"; at the observed {dollars(found.label_cost)} each that is {dollars(cost)}"
        if (math.isfinite(cost) and cost > 0)
        else ""
    )


def rounded(value: float) -> str:
    """A number to two digits, since no more are known."""
    if value < 1:
        return "0"
    digits = 1 - math.floor(math.log10(value))
    return f"{round(value, digits):,.0f}"


def shown(number: Number, estimate: Estimate) -> str:
    """A number with its unit."""
    return worded(estimate.value, HEADLINE[number].unit)
