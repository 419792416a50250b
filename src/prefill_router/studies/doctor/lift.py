"""Where the router is better than the best single target: by consensus regime and by domain."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.data import Regime, regimes
from prefill_router.evaluation import Estimate
from prefill_router.evaluation.bootstrap import chunks
from prefill_router.evaluation.weighted import known_mean, ones
from prefill_router.studies.doctor.finding import Finding, Sign, percent, points
from prefill_router.studies.doctor.subject import Subject

LEAST = 30
"""Domains with fewer queries are pooled."""
_RISK = 0.05
_LEAST_DRAWS, _DRAWN = 999, 200
"""Draws of signs at least, and how many at a time."""
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
        sure: Which way it differs from 0: 1, -1, or 0 if it may be none. Where there is no lift
            anywhere, in at most 5 of 100 samples any part of any group is said to have some.
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
    parts = [
        _Part(group, name, size, np.array([one == name for one in names]))
        for group, names in groups.items()
        if group in ("all", "regime") or len(set(names)) > 1
        for name, size in Counter(names).items()
        if name != str(Regime.UNMEASURED)
    ]
    gained = subject.label - subject.trial.correct[:, subject.best]
    inside = np.stack([part.inside for part in parts], axis=1)
    table = np.where(inside, gained[:, None], np.nan)
    drawn = [
        known_mean(w, table)
        for w in chunks(len(subject), count=resamples, seed=seed, width=table.size)
    ]
    together = np.concatenate([np.zeros((0, len(parts))), *drawn])
    values = known_mean(ones(len(subject)), table)[0].tolist()
    whole = np.array([part.group == "all" for part in parts])
    sure = np.zeros(len(parts), dtype=np.int64)
    for family in (whole, ~whole):
        sure[family] = _sure(table[:, family], count=resamples, seed=seed)
    found = [
        Lift(part.group, part.name, part.size, _estimate(value, column), int(way))
        for part, value, column, way in zip(parts, values, together.T, sure, strict=True)
    ]
    order = {group: place for place, group in enumerate(groups)}
    return tuple(
        sorted(found, key=lambda o: (order[o.group], -np.nan_to_num(o.lift.value), o.name))
    )


@final
@dataclass(frozen=True, eq=False)
class _Part:
    group: Group
    name: str
    size: int
    inside: Bool[NDArray[np.bool_], " query"]


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


def _estimate(value: float, drawn: Float[NDArray[np.float64], " resample"]) -> Estimate:
    return Estimate.of(value, drawn, reason="no query here has both labels")


def _sure(
    gained: Float[NDArray[np.float64], "query part"], *, count: int, seed: int
) -> Int[NDArray[np.int64], " part"]:
    """Which way each part surely differs from 0, all of them held against the largest by chance.

    Without any lift a query that is gained might as well have been lost. So the signs are drawn
    anew, one for each query in all its parts, and the largest |sum| / sqrt(sum of squares) over the
    parts is noted: Westfall and Young's maximum statistic. It is exact however few queries a part
    has and however few of them differ, where the spread of resamples is too small.
    """
    known = np.nan_to_num(gained)
    scale = np.sqrt((known**2).sum(axis=0))
    parts = known[:, scale > 0] / scale[scale > 0]
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
    seen = parts.sum(axis=0)
    as_large = (largest[:, None] >= np.abs(seen) - 1e-12).sum(axis=0)
    sure[scale > 0] = np.where((1 + as_large) / (1 + draws) <= _RISK, np.sign(seen), 0)
    return sure


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
