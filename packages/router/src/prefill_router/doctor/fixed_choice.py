"""Is the router better than a fixed choice? Three controls.

How often the router chooses another target than its most frequent one; the shuffled control; and
where the router is better than the best single target, by consensus regime and by domain.

The shuffled control randomly reassigns the router's choices to other queries. It uses the same
targets equally often but ignores the queries, so any accuracy that the router has beyond it comes
from sending each query to a suitable target. Its cost differs from the router's only where the
router's choices depend on the cost of a query, for example where it keeps long queries from
expensive targets.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.data import Regime, regimes
from prefill_router.doctor.subject import (
    Finding,
    Sign,
    Subject,
    percent,
    points_with_interval,
)
from prefill_router.evaluation import Estimate, chunks, known_mean, ones, worded

NEARLY_CONSTANT = 0.02
"""A router that sends a smaller share of the queries elsewhere counts as nearly constant."""


@final
@dataclass(frozen=True, eq=False)
class SwitchRate:
    """How often the router chooses each target.

    Attributes:
        targets: The targets' names.
        shares: The share of the queries that each target gets.
    """

    targets: tuple[str, ...]
    shares: Float[NDArray[np.float64], " target"]

    @property
    def usual(self) -> str:
        """The target that gets the most queries."""
        return self.targets[int(self.shares.argmax())]

    @property
    def rate(self) -> float:
        """The share of the queries that go to any other target."""
        return 1 - float(self.shares.max())

    @property
    def effective(self) -> float:
        """The effective number of targets: the exponential of the shares' entropy."""
        used = self.shares[self.shares > 0]
        return float(np.exp(-(used * np.log(used)).sum()))


def switching(subject: Subject) -> SwitchRate:
    """Count the choices."""
    counts = np.bincount(subject.choice, minlength=len(subject.trial.targets))
    return SwitchRate(subject.trial.targets, counts / len(subject))


def switching_finding(switches: SwitchRate) -> Finding:
    """The finding about the counts."""
    sign: Sign = "bad" if switches.rate < NEARLY_CONSTANT else "good"
    result = (
        f"{percent(switches.rate)} of the queries go to other targets than {switches.usual}; the "
        f"effective number of targets is {switches.effective:.1f}"
    )
    if sign == "bad":
        result += ": nearly constant"
    numbers = {
        "switch_rate": switches.rate,
        "effective_targets": switches.effective,
        "shares": dict(zip(switches.targets, switches.shares.tolist(), strict=True)),
    }
    return Finding("switching", "Does it choose at all", sign, result, numbers)


SURE = 0.05
_TITLE = "Against the same choices, shuffled"
Groups = Int[NDArray[np.int64], " query"]
Rows = Int[NDArray[np.int64], " query"]


@final
@dataclass(frozen=True, eq=False)
class ShuffledControl:
    """The control's accuracy over many shuffles.

    Router and control are measured on the queries where every target that the router uses has a
    known label, so that a choice can be reassigned to any of them.

    Attributes:
        queries: Number of these queries.
        accuracy: The router's accuracy.
        router_cost: The router's mean cost on them, US dollars; NaN if unknown.
        anywhere: The control's accuracy in each shuffle over all queries.
        within: The same for shuffles within each benchmark and domain.
        cost: The control's mean cost over the shuffles `anywhere`, US dollars; NaN if unknown.
    """

    queries: int
    accuracy: float
    router_cost: float
    anywhere: Float[NDArray[np.float64], " shuffle"]
    within: Float[NDArray[np.float64], " shuffle"]
    cost: float

    @property
    def p_value(self) -> float:
        """The p-value of the permutation test: how often the control is as good as the router."""
        return _compute_p_value(self.accuracy, self.anywhere)

    @property
    def p_within(self) -> float:
        """The same within benchmarks and domains."""
        return _compute_p_value(self.accuracy, self.within)

    @property
    def gain(self) -> float:
        """The router's accuracy beyond the control's mean."""
        return self.accuracy - float(self.anywhere.mean())

    @property
    def gain_within(self) -> float:
        """The same within benchmarks and domains."""
        return self.accuracy - float(self.within.mean())


def shuffle(subject: Subject, *, count: int = 1000, seed: int = 0) -> ShuffledControl | None:
    """Shuffle the router's choices among the queries, many times.

    Returns:
        None if no query has labels of all the targets that the router uses.
    """
    random = np.random.default_rng(seed)
    rows = subject.shared
    if not len(rows):
        return None
    together, apart = np.zeros(len(rows), dtype=np.int64), strata(subject)[rows]
    anywhere, costs = _deal(subject, rows, together, count, random)
    within, _ = _deal(subject, rows, apart, count, random)
    accuracy, cost = _average_known(subject.label[rows]), _average_known(subject.cost[rows])
    return ShuffledControl(len(rows), accuracy, cost, anywhere, within, float(np.mean(costs)))


def strata(subject: Subject) -> Groups:
    """A number for each benchmark and domain."""
    names = [(query.benchmark, query.domain) for query in subject.queries]
    numbers = {name: i for i, name in enumerate(sorted(set(names)))}
    return np.array([numbers[name] for name in names], dtype=np.int64)


def shuffled_finding(control: ShuffledControl | None) -> Finding:
    """The finding of the control."""
    if control is None:
        why = (
            "no query has labels of all the targets that the router uses, so its choices can't be "
            "shuffled; score the answers of these targets on the same queries"
        )
        return Finding("shuffled", _TITLE, "unclear", why, {"queries": 0})
    is_better = control.p_value <= SURE and control.gain > 0
    sign: Sign = "good" if is_better else "unclear"
    beyond = f"{100 * control.gain:+.1f} pp (p = {control.p_value:.3g})"
    inside = f"{100 * control.gain_within:+.1f} pp (p = {control.p_within:.3g})"
    result = (
        f"the same choices, randomly shuffled, answer {percent(float(control.anywhere.mean()))} "
        f"correctly, the router {percent(control.accuracy)}: {beyond}; within benchmarks and "
        f"domains {inside}"
    )
    if np.isfinite(control.router_cost) and np.isfinite(control.cost):
        costs = (worded(cost, "usd") for cost in (control.cost, control.router_cost))
        result += "; they cost {} and {} per 1,000 queries".format(*costs)
    numbers = {
        "queries": control.queries,
        "accuracy": control.accuracy,
        "shuffles": len(control.anywhere),
        "shuffled_accuracy": float(control.anywhere.mean()),
        "gain": control.gain,
        "p_value": control.p_value,
        "gain_within_domains": control.gain_within,
        "p_value_within_domains": control.p_within,
        "router_cost": _finite_or_none(control.router_cost),
        "shuffled_cost": _finite_or_none(control.cost),
    }
    return Finding("shuffled", _TITLE, sign, result, numbers)


def _deal(
    subject: Subject, rows: Rows, groups: Groups, count: int, random: np.random.Generator
) -> tuple[Float[NDArray[np.float64], " shuffle"], Float[NDArray[np.float64], " shuffle"]]:
    place, choice = np.argsort(groups, kind="stable"), subject.choice[rows]
    shuffled = np.empty(len(rows), dtype=np.int64)
    accuracy, cost = np.empty((2, count))
    for i in range(count):
        shuffled[place] = choice[np.lexsort((random.random(len(groups)), groups))]
        accuracy[i] = _average_known(subject.trial.correct[rows, shuffled])
        cost[i] = _average_known(subject.trial.paid[rows, shuffled])
    return accuracy, cost


def _average_known(values: Float[NDArray[np.float64], " query"]) -> float:
    finite = values[~np.isnan(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def _compute_p_value(accuracy: float, shuffled: Float[NDArray[np.float64], " shuffle"]) -> float:
    as_good = int((shuffled >= accuracy - 1e-12).sum())
    return (1 + as_good) / (1 + len(shuffled))


def _finite_or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None


LEAST = 30
"""Domains with fewer queries are pooled."""
_RISK = 0.05
_LEAST_DRAWS, _DRAWN = 999, 200
"""The fewest draws of signs, and the number of draws per batch."""
Group = Literal["all", "regime", "benchmark", "domain"]


@final
@dataclass(frozen=True)
class Lift:
    """The router's accuracy minus the best single target's, on some queries.

    Attributes:
        group: How the queries are divided: `all`, regime, benchmark or domain.
        name: Name of the part.
        queries: Number of its queries.
        lift: The paired difference, with its own 95 % interval.
        sure: Sign of a significant difference: 1 or -1; 0 if it isn't significant. Where there is
            no lift anywhere, at most 5 of 100 samples have any part that counts as significant.
    """

    group: Group
    name: str
    queries: int
    lift: Estimate
    sure: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "lift": self.lift.to_dict()}


def lifts(subject: Subject, *, resamples: int, seed: int) -> tuple[Lift, ...]:
    """The lift overall, by regime, by benchmark and by domain."""
    groups: dict[Group, list[str]] = {
        "all": ["all queries"] * len(subject),
        "regime": [str(r) for r in regimes(subject.trial.joint)],
        "benchmark": _pool_small([q.benchmark for q in subject.queries]),
        "domain": _pool_small([q.domain for q in subject.queries]),
    }
    parts = [
        _QueryPart(group, name, size, np.array([other == name for other in names]))
        for group, names in groups.items()
        if group in ("all", "regime") or len(set(names)) > 1
        for name, size in Counter(names).items()
        if name != str(Regime.UNMEASURED)
    ]
    gain = subject.label - subject.trial.correct[:, subject.best]
    inside = np.stack([part.inside for part in parts], axis=1)
    table = np.where(inside, gain[:, None], np.nan)
    turns = subject.trial.conversations
    each = chunks(len(subject), count=resamples, seed=seed, width=table.size, groups=turns)
    resampled = [known_mean(weights, table) for weights in each]
    means = np.concatenate([np.zeros((0, len(parts))), *resampled])
    values = known_mean(ones(len(subject)), table)[0].tolist()
    whole = np.array([part.group == "all" for part in parts])
    sure = np.zeros(len(parts), dtype=np.int64)
    for family in (whole, ~whole):
        sure[family] = _find_signs(table[:, family], turns, count=resamples, seed=seed)
    results = [
        Lift(part.group, part.name, part.size, _make_estimate(value, column), int(way))
        for part, value, column, way in zip(parts, values, means.T, sure, strict=True)
    ]
    order = {group: place for place, group in enumerate(groups)}
    return tuple(
        sorted(results, key=lambda o: (order[o.group], -np.nan_to_num(o.lift.value), o.name))
    )


@final
@dataclass(frozen=True, eq=False)
class _QueryPart:
    group: Group
    name: str
    size: int
    inside: Bool[NDArray[np.bool_], " query"]


def lift_finding(lifts: tuple[Lift, ...], subject: Subject) -> Finding:
    """The finding about the lifts."""
    best, whole = subject.trial.targets[subject.best], lifts[0].lift
    parts = [lift for lift in lifts if lift.group in ("benchmark", "domain")]
    ratio = _measure_cost_ratio(subject)
    sign: Sign = "good" if whole.lower > 0 else "note"
    if whole.upper < 0 and not ratio < 1:
        sign = "bad"
    result = f"{points_with_interval(whole)} against {best} alone"
    if np.isfinite(ratio):
        result += f", at {percent(ratio)} of its cost"
    if parts:
        better, worse = ([p.name for p in parts if p.sure == way] for way in (1, -1))
        result += f"; of {len(parts)} benchmarks and domains {_list_names('better in', better)}, "
        result += _list_names("worse in", worse)
    numbers = {
        "best_single": best,
        "cost_ratio": ratio if np.isfinite(ratio) else None,
        "groups": [lift.to_dict() for lift in lifts],
    }
    return Finding("lift", "Against the best single target", sign, result, numbers)


def _measure_cost_ratio(subject: Subject) -> float:
    """The router's cost over the best single target's, where both are known."""
    alone = subject.trial.observed_cost[:, subject.best]
    is_known = ~(np.isnan(alone) | np.isnan(subject.cost))
    total = float(alone[is_known].sum())
    return float(subject.cost[is_known].sum()) / total if total > 0 else float("nan")


def _make_estimate(value: float, resampled: Float[NDArray[np.float64], " resample"]) -> Estimate:
    return Estimate.of(value, resampled, reason="no query here has both labels")


def _find_signs(
    gains: Float[NDArray[np.float64], "query part"],
    turns: Sequence[str] | None,
    *,
    count: int,
    seed: int,
) -> Int[NDArray[np.int64], " part"]:
    """The sign of each part's difference where it is significant, by a maximum-statistic test.

    If there is no lift, each query's difference is equally likely to have either sign, and so is
    the sum over the turns of a conversation. So random signs are drawn, one per conversation for
    all its parts, and compared with the largest |sum| / sqrt(sum of squares) over the parts:
    Westfall and Young's maximum statistic. The test is exact even for parts with few queries or few
    differences, where bootstrap intervals are too narrow.
    """
    sums = np.nan_to_num(gains)
    if turns is not None:
        names, place = np.unique(np.array(turns), return_inverse=True)
        each, sums = sums, np.zeros((len(names), sums.shape[1]))
        np.add.at(sums, place, each)
    scale = np.sqrt((sums**2).sum(axis=0))
    parts = sums[:, scale > 0] / scale[scale > 0]
    sure = np.zeros(len(scale), dtype=np.int64)
    if not parts.size:
        return sure
    random = np.random.default_rng(seed)
    draws = max(count, _LEAST_DRAWS)
    largest = np.concatenate(
        [
            np.abs(
                random.choice([-1.0, 1.0], (min(_DRAWN, draws - begin), len(parts))) @ parts
            ).max(axis=1)
            for begin in range(0, draws, _DRAWN)
        ]
    )
    observed = parts.sum(axis=0)
    as_large = (largest[:, None] >= np.abs(observed) - 1e-12).sum(axis=0)
    sure[scale > 0] = np.where((1 + as_large) / (1 + draws) <= _RISK, np.sign(observed), 0)
    return sure


def _pool_small(names: list[str]) -> list[str]:
    sizes = Counter(names)
    small = [name for name, size in sizes.items() if size < LEAST]
    if len(small) < 2:
        return [name or "(none)" for name in names]
    pool = f"{len(small)} small ones"
    return [pool if name in small else name or "(none)" for name in names]


def _list_names(what: str, names: list[str]) -> str:
    if not names:
        return f"significantly {what} none"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"significantly {what} {len(names)} ({', '.join(names[:4])}{more})"
