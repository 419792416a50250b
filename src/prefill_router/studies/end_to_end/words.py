"""The end-to-end study in sentences."""

import math

from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.evaluation.wording import NOTHING, UNKNOWN, dollars, worded
from prefill_router.studies.end_to_end.result import NUMBERS, ROUTER, EndToEnd, Point, alone

_SMALL = 5e-4
"""Areas that differ by less are the same to three digits."""


def said(result: EndToEnd) -> list[str]:
    """What was found, for somebody who hasn't read the paper."""
    sentences = [_overhead(result, point) for point in result.points[:1]]
    sentences += [_saved(result, point) for point in result.points]
    return [*sentences, *_waited(result.points[0], result.best), _area(result), *_order(result)]


def _overhead(result: EndToEnd, point: Point) -> str:
    numbers = point.systems[ROUTER]
    share, time = numbers["encoder_share"], numbers["routing_share"]
    text = (
        f"Before a router chooses, its encoder reads the query ({result.charges[ROUTER]}). "
        if ROUTER in result.charges
        else "Before a router chooses, its encoder reads the query. "
    )
    cost = (
        f"That is {percent(share)} of what a query costs in all"
        if math.isfinite(share.value)
        else "What share of the cost that is can't be said, since the targets' costs are unknown"
    )
    wait = (
        f"the decision is {percent(time)} of the time until the answer is there"
        if math.isfinite(time.value)
        else "what share of the waiting the decision is can't be said"
    )
    return f"{text}{cost}, and {wait} ({point.title}, {result.queries:,} queries)."


def _saved(result: EndToEnd, point: Point) -> str:
    parts = []
    for name, numbers in point.against.items():
        savings, gain = numbers["savings"], numbers["accuracy_gain"]
        if not math.isfinite(savings.value):
            parts.append(f"{name}: {points(gain)} in accuracy, costs unknown")
            continue
        cheaper = "less" if savings.value >= 0 else "more"
        spread = _between(savings, sign=1 if savings.value >= 0 else -1)
        parts.append(
            f"{abs(100 * savings.value):.1f} % {cheaper} than {name}{spread}, "
            f"at {points(gain)} in accuracy"
        )
    total = result.queries * point.systems[ROUTER]["total_cost"].value
    told = f"{dollars(total)} for all {result.queries:,} queries" if math.isfinite(total) else "it"
    start = f"At {point.title} the router costs {told}, its encoder included"
    return f"{start}: {'; '.join(parts)}."


def _waited(point: Point, best: str) -> list[str]:
    own, single = (
        point.systems[ROUTER]["total_seconds"],
        point.systems[alone(best)]["total_seconds"],
    )
    if not (math.isfinite(own.value) and math.isfinite(single.value)):
        return []
    return [
        f"An answer is there after {own.value:.3g} s on average, routing included; from "
        f"{alone(best)} after {single.value:.3g} s."
    ]


def _area(result: EndToEnd) -> str:
    found = result.areas[ROUTER]
    before, charged, moved = (found[n].value for n in ("p_auccc", "charged", "translated"))
    if not math.isfinite(before):
        return f"P-AUCCC isn't defined here: {found['p_auccc'].reason}."
    change = charged - before
    how = (
        "it stays the same to three digits"
        if abs(change) < _SMALL
        else f"it becomes {charged:.4f} ({change:+.4f})"
    )
    return (
        f"P-AUCCC, the area under the normalised accuracy-cost curve, is {before:.4f} with the "
        f"targets' costs alone. With the encoder charged at every setting, and not to single "
        f"targets, {how}; where the whole plane is moved by the encoder's cost, as in the paper, "
        f"it is {moved:.4f} with inverse cost and unchanged with linear cost."
    )


def _order(result: EndToEnd) -> list[str]:
    if not result.area_difference:
        return []
    before, after = (result.area_difference[name].value for name in ("p_auccc", "charged"))
    if not (math.isfinite(before) and math.isfinite(after)):
        return []
    one, other = result.routers[:2]
    kept = (
        "The order of the two routers by P-AUCCC stays"
        if before * after > 0
        else ("Charging the encoders turns the order of the two routers by P-AUCCC round")
    )
    return [f"{kept}: {one} minus {other} is {before:+.4f} before and {after:+.4f} after."]


def number(name: str, estimate: Estimate) -> str:
    """A number of a use, in its unit."""
    if not math.isfinite(estimate.value):
        return UNKNOWN if NUMBERS[name][1] == "usd" else NOTHING
    match NUMBERS[name][1]:
        case "share":
            digits = 1 if name == "accuracy" else 2
            return f"{100 * estimate.value:.{digits}f} %"
        case "usd":
            return f"${estimate.value:.3g}" if estimate.value < 1e-4 else dollars(estimate.value)
        case "seconds":
            return f"{estimate.value:.3g}"


def percent(estimate: Estimate) -> str:
    """A small share, with two digits after the point."""
    return f"{100 * estimate.value:.2f} %"


def points(estimate: Estimate) -> str:
    """A difference of accuracies, with its interval."""
    low, high = estimate.lower, estimate.upper
    text = worded(estimate.value, "points")
    if math.isfinite(low) and math.isfinite(high):
        text += f" ({100 * low:+.1f} to {100 * high:+.1f})"
    return text


def _between(estimate: Estimate, *, sign: int) -> str:
    ends = sorted(100 * sign * end for end in (estimate.lower, estimate.upper))
    return f" ({ends[0]:.1f} to {ends[1]:.1f})" if all(map(math.isfinite, ends)) else ""
