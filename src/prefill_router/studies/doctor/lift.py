"""Where the router is better than the best single target: by consensus regime and by domain."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import norm

from prefill_router.data import Regime, regimes
from prefill_router.evaluation import Estimate
from prefill_router.evaluation.bootstrap import chunks
from prefill_router.evaluation.weighted import known_mean, ones
from prefill_router.studies.doctor.finding import Finding, Sign, percent, points
from prefill_router.studies.doctor.subject import Subject

LEAST = 30
"""Domains with fewer queries are pooled."""
Group = Literal["all", "regime", "benchmark", "domain"]


@final
@dataclass(frozen=True)
class Lift:
    """The router's accuracy minus the best single target's, on some queries.

    Attributes:
        group: What divides the queries.
        name: Of these.
        queries: How many they are.
        lift: The paired difference, with its own 95 % interval.
        sure: Which way it differs from 0 with 95 % for all parts of the group together
            (Bonferroni): 1, -1, or 0 if it may be none.
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
        "regime": [str(r) for r in regimes(subject.trial.correct)],
        "benchmark": _pooled([q.benchmark for q in subject.queries]),
        "domain": _pooled([q.domain for q in subject.queries]),
    }
    found: list[Lift] = []
    for group, names in groups.items():
        if group in ("all", "regime") or len(set(names)) > 1:
            found += _of_group(subject, group, names, resamples, seed)
    return tuple(found)


def finding(found: tuple[Lift, ...], subject: Subject) -> Finding:
    """What the lifts say."""
    best, whole = subject.trial.targets[subject.best], found[0].lift
    parts = [one for one in found if one.group in ("benchmark", "domain")]
    ratio = _cost_ratio(subject)
    sign: Sign = "good" if whole.lower > 0 else "note"
    if whole.upper < 0 and not ratio < 1:
        sign = "bad"
    said = f"{points(whole)} against {best} alone"
    if np.isfinite(ratio):
        said += f", at {percent(ratio)} of its cost"
    if parts:
        better, worse = ([p.name for p in parts if p.sure == way] for way in (1, -1))
        said += f"; of {len(parts)} benchmarks and domains {_listed('better in', better)}, "
        said += _listed("worse in", worse)
    numbers = {
        "best_single": best,
        "cost_ratio": ratio if np.isfinite(ratio) else None,
        "groups": [one.to_dict() for one in found],
    }
    return Finding("lift", "Against the best single target", sign, said, numbers)


def _cost_ratio(subject: Subject) -> float:
    """The router's cost over the best single target's, where both are known."""
    alone = subject.trial.observed_cost[:, subject.best]
    known = ~(np.isnan(alone) | np.isnan(subject.cost))
    total = float(alone[known].sum())
    return float(subject.cost[known].sum()) / total if total > 0 else float("nan")


def _of_group(
    subject: Subject, group: Group, names: list[str], resamples: int, seed: int
) -> list[Lift]:
    sizes = Counter(name for name in names if name != str(Regime.UNMEASURED))
    gained = subject.label - subject.trial.correct[:, subject.best]
    member = np.array([[name == one for one in sizes] for name in names])
    table = np.where(member, gained[:, None], np.nan)
    drawn = [
        known_mean(w, table)
        for w in chunks(len(subject), count=resamples, seed=seed, width=table.size)
    ]
    together = np.concatenate([np.zeros((0, len(sizes))), *drawn])
    values = known_mean(ones(len(subject)), table)[0]
    quantile = float(norm.ppf(1 - 0.025 / len(sizes)))
    rows = zip(sizes.items(), values.tolist(), together.T, strict=True)
    found = [
        Lift(group, name, size, _estimate(value, column), _sure(value, column, quantile))
        for (name, size), value, column in rows
    ]
    return sorted(found, key=lambda one: (-np.nan_to_num(one.lift.value), one.name))


def _estimate(value: float, drawn: Float[NDArray[np.float64], " resample"]) -> Estimate:
    return Estimate.of(value, drawn, reason="no query here has both labels")


def _sure(value: float, drawn: Float[NDArray[np.float64], " resample"], quantile: float) -> int:
    """The resamples' spread with a normal quantile: percentiles so far out need too many."""
    known = drawn[~np.isnan(drawn)]
    if len(known) < 2 or np.isnan(value):
        return 0
    spread = float(known.std(ddof=1))
    return int(np.sign(value)) if abs(value) > quantile * spread > 0 else 0


def _pooled(names: list[str]) -> list[str]:
    sizes = Counter(names)
    small = [name for name, size in sizes.items() if size < LEAST]
    if len(small) < 2:
        return [name or "(none)" for name in names]
    pool = f"{len(small)} small ones"
    return [pool if name in small else name or "(none)" for name in names]


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return f"surely {what} none"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"surely {what} {len(names)} ({', '.join(names[:4])}{more})"
