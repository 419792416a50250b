"""The shuffled control: the same choices, dealt out to other queries.

It asks the same targets equally often and knows nothing of the queries, so whatever accuracy the
router has beyond it comes from sending each query to the right place. What it spends differs from
what the router spends only where the router keeps long queries from dear targets.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.evaluation.wording import worded
from prefill_router.studies.doctor.finding import Finding, Sign, percent
from prefill_router.studies.doctor.subject import Subject

SURE = 0.05
_TITLE = "Against the same choices, shuffled"
Groups = Int[NDArray[np.int64], " query"]
Rows = Int[NDArray[np.int64], " query"]


@final
@dataclass(frozen=True, eq=False)
class Shuffled:
    """The control's accuracy over many shuffles.

    Both are measured on the queries where every target that the router uses has a known label, so
    that a choice can be dealt out to any of them.

    Attributes:
        queries: How many these are.
        accuracy: The router's.
        router_cost: The router's mean cost there, US dollars; NaN if unknown.
        anywhere: The control's, choices dealt out to any query.
        within: The same, each choice to a query of the same benchmark and domain.
        cost: The control's mean cost, US dollars, over the first kind of shuffle; NaN if unknown.
    """

    queries: int
    accuracy: float
    router_cost: float
    anywhere: Float[NDArray[np.float64], " shuffle"]
    within: Float[NDArray[np.float64], " shuffle"]
    cost: float

    @property
    def p_value(self) -> float:
        """How often the control is as good as the router, by the permutation test."""
        return _p_value(self.accuracy, self.anywhere)

    @property
    def p_within(self) -> float:
        """The same within benchmarks and domains."""
        return _p_value(self.accuracy, self.within)

    @property
    def gain(self) -> float:
        """The router's accuracy beyond the control's mean."""
        return self.accuracy - float(self.anywhere.mean())

    @property
    def gain_within(self) -> float:
        """The same within benchmarks and domains."""
        return self.accuracy - float(self.within.mean())


def shuffle(subject: Subject, *, count: int = 1000, seed: int = 0) -> Shuffled | None:
    """Deal the router's choices out to other queries, many times.

    Returns:
        None if on no query all the targets that the router uses are measured.
    """
    random = np.random.default_rng(seed)
    rows = subject.shared
    if not len(rows):
        return None
    together, apart = np.zeros(len(rows), dtype=np.int64), strata(subject)[rows]
    anywhere, costs = _deal(subject, rows, together, count, random)
    within, _ = _deal(subject, rows, apart, count, random)
    accuracy, cost = _mean(subject.label[rows]), _mean(subject.cost[rows])
    return Shuffled(len(rows), accuracy, cost, anywhere, within, float(np.mean(costs)))


def strata(subject: Subject) -> Groups:
    """A number for each benchmark and domain."""
    names = [(query.benchmark, query.domain) for query in subject.queries]
    numbers = {name: i for i, name in enumerate(sorted(set(names)))}
    return np.array([numbers[name] for name in names], dtype=np.int64)


def finding(found: Shuffled | None) -> Finding:
    """What the control says."""
    if found is None:
        why = (
            "on no query are all the targets that the router uses measured, so its choices can't "
            "be dealt out to others; score the answers of these targets on the same queries"
        )
        return Finding("shuffled", _TITLE, "unclear", why, {"queries": 0})
    sure = found.p_value <= SURE and found.gain > 0
    sign: Sign = "good" if sure else "unclear"
    beyond = f"{100 * found.gain:+.1f} pp (p = {found.p_value:.3g})"
    inside = f"{100 * found.gain_within:+.1f} pp (p = {found.p_within:.3g})"
    said = (
        f"the same choices dealt out at random answer {percent(float(found.anywhere.mean()))} "
        f"correctly, the router {percent(found.accuracy)}: {beyond}; within benchmarks and domains "
        f"{inside}"
    )
    if np.isfinite(found.router_cost) and np.isfinite(found.cost):
        spent = (worded(cost, "usd") for cost in (found.cost, found.router_cost))
        said += "; they spend {} and {} per 1,000 queries".format(*spent)
    numbers = {
        "queries": found.queries,
        "accuracy": found.accuracy,
        "shuffles": len(found.anywhere),
        "shuffled_accuracy": float(found.anywhere.mean()),
        "gain": found.gain,
        "p_value": found.p_value,
        "gain_within_domains": found.gain_within,
        "p_value_within_domains": found.p_within,
        "router_cost": _known(found.router_cost),
        "shuffled_cost": _known(found.cost),
    }
    return Finding("shuffled", _TITLE, sign, said, numbers)


def _deal(
    subject: Subject, rows: Rows, groups: Groups, count: int, random: np.random.Generator
) -> tuple[Float[NDArray[np.float64], " shuffle"], Float[NDArray[np.float64], " shuffle"]]:
    place, choice = np.argsort(groups, kind="stable"), subject.choice[rows]
    dealt = np.empty(len(rows), dtype=np.int64)
    accuracy, cost = np.empty((2, count))
    for i in range(count):
        dealt[place] = choice[np.lexsort((random.random(len(groups)), groups))]
        accuracy[i] = _mean(subject.trial.correct[rows, dealt])
        cost[i] = _mean(subject.trial.paid[rows, dealt])
    return accuracy, cost


def _mean(values: Float[NDArray[np.float64], " query"]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _p_value(accuracy: float, shuffled: Float[NDArray[np.float64], " shuffle"]) -> float:
    as_good = int((shuffled >= accuracy - 1e-12).sum())
    return (1 + as_good) / (1 + len(shuffled))


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
