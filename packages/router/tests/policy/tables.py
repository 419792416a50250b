"""Made-up predictions for policies, and plain readings of what each policy says."""

from collections.abc import Callable

import numpy as np

from prefill_router.policy import (
    Argmax,
    Cascade,
    Lambda,
    Policy,
    Threshold,
    Tiered,
    Tolerance,
    score,
)

Table = np.ndarray
NAMES = ("a", "b", "c", "d", "e", "f")
TIERS = (("b", "a"), ("c",), ("f", "d"))


def random_tables(
    queries: int = 150, targets: int = 6, seed: int = 0, *, coarse: bool = False
) -> tuple[Table, Table]:
    """Probabilities and costs; coarse ones have many ties."""
    random = np.random.default_rng(seed)
    correctness, cost = random.random((queries, targets)), random.random((queries, targets)) ** 3
    if coarse:
        correctness, cost = np.round(correctness * 4) / 4, np.round(cost * 4) / 4
    return correctness, cost


def plain_lambda(p: Table, c: Table, at: float) -> int:
    return _best(score(p[None], c[None], at)[0], -c, p)


def plain_argmax(p: Table, c: Table, _: float) -> int:
    return _best(p, -c)


def plain_tolerance(p: Table, c: Table, at: float) -> int:
    good = p.max() - p <= 1 - at
    return _best(good, -c, p)


def plain_threshold(p: Table, _: Table, at: float) -> int:
    wins = (1 + p[4] - p[1]) / 2
    return 4 if at > 0 and wins >= 1 - at else 1


def plain_weak(p: Table, _: Table, at: float) -> int:
    return 4 if at > 0 and 1 - p[1] >= 1 - at else 1


def plain_odds(p: Table, _: Table, at: float) -> int:
    only = p[4] * (1 - p[1]), p[1] * (1 - p[4])
    wins = only[0] / sum(only) if sum(only) else 0.5
    return 4 if at > 0 and wins >= 1 - at else 1


def plain_tiers(p: Table, c: Table, at: float) -> int:
    tiers = [sorted(NAMES.index(name) for name in tier) for tier in TIERS]
    return _through(tiers, p, c, at)


def plain_quantiles(p: Table, c: Table, at: float) -> int:
    place = [sum(c < c[k]) * 3 // len(c) for k in range(len(c))]
    return _through([[k for k in range(len(c)) if place[k] == t] for t in range(3)], p, c, at)


def plain_cascade(p: Table, c: Table, at: float) -> int:
    turns = sorted(range(len(c)), key=lambda k: (c[k], k))
    return next((k for k in turns[:-1] if p[k] >= at), turns[-1])


def plain_named_cascade(p: Table, _: Table, at: float) -> int:
    turns = [NAMES.index(name) for name in ("d", "a", "f")]
    return next((k for k in turns[:-1] if p[k] >= at), turns[-1])


KNOTS = ((0.0, 0.0, 0.0), (0.25, 0.5, 0.0), (0.5, 0.5, 0.25), (1.0, 0.875, 0.75))


def plain_stages(p: Table, _: Table, at: float) -> int:
    knots = np.array(KNOTS)
    for name, column in (("e", 1), ("b", 2)):
        if p[NAMES.index(name)] >= np.interp(at, knots[:, 0], knots[:, column]):
            return NAMES.index(name)
    return NAMES.index("c")


def _through(tiers: list[list[int]], p: Table, c: Table, at: float) -> int:
    for tier in tiers:
        if tier and p[tier].max() >= at:
            return tier[_best(p[tier], -c[tier])]
    everyone = [k for tier in tiers for k in tier]
    first = next(tier for tier in tiers if tier and p[tier].max() == p[everyone].max())
    return first[_best(p[first], -c[first])]


def _best(*keys: Table) -> int:
    """The column with the largest first key, then the second, ..., then the first column."""
    return int(np.lexsort([-np.asarray(key, dtype=float) for key in reversed(keys)])[0])


Plain = Callable[[Table, Table, float], int]
POLICIES: dict[str, tuple[Policy, Plain]] = {
    "lambda": (Lambda(), plain_lambda),
    "argmax": (Argmax(), plain_argmax),
    "tolerance": (Tolerance(), plain_tolerance),
    "threshold": (Threshold(strong="e", weak="b"), plain_threshold),
    "threshold weak": (Threshold(strong="e", weak="b", score="weak"), plain_weak),
    "threshold odds": (Threshold(strong="e", weak="b", score="odds"), plain_odds),
    "tiers": (Tiered(tiers=TIERS), plain_tiers),
    "quantile tiers": (Tiered(count=3), plain_quantiles),
    "cascade": (Cascade(), plain_cascade),
    "stages": (Cascade(targets=("e", "b", "c"), knots=KNOTS), plain_stages),
    "named cascade": (Cascade(targets=("d", "a", "f")), plain_named_cascade),
}
