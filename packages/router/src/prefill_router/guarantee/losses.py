"""The loss of each query against the promised share, and the missing labels.

    r = keep * y_best - y_router          in [-1, keep]

The loss is `keep` times the best target's label, minus the router's. The promise is kept where the
mean of r over all queries is not above zero. A label that wasn't measured could be anything in [0,
1], so r has a largest possible value, for any reason why the label is missing. It is the value with
the router's label 0 and the best target's 1. Where the router chose the best target, both share one
label.

Where chance selected the labels, or they err, unbiased estimates stand for them
(`evaluation.ChanceLabels`). The loss is linear in the labels, so the mean of its estimates is the
mean loss. Since each lies within bounds that are known before the draw, betting on them is as
valid (Waudby-Smith, Wu, Ramdas, Karampatziakis and Mineiro 2022, arXiv:2210.10768). The wider the
bounds, that is the lower the propensities, the more queries it takes.

Labels missing at random are spread evenly over the domains, over the targets that the router
chooses, and over easy and hard queries. Each of these is tested exactly by a permutation test of
the chi-square statistic. A small p-value shows that labels aren't missing at random; a large one
doesn't show that they are.
"""

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import NDArray

from prefill_router.evaluation import ChanceLabels, Trial

PerQuery = Float[NDArray[np.float64], " query"]


@final
@dataclass(frozen=True, eq=False)
class Losses:
    """The labels of the router and of the best single target, on all queries.

    Attributes:
        keep: The share that is promised.
        router: Labels of the chosen targets; NaN where not measured.
        best: Labels of the best single target; NaN where not measured.
        same: Where the router chose the best single target.
        span: The least and the largest loss that any label, or estimate of one, could make.
    """

    keep: float
    router: PerQuery
    best: PerQuery
    same: Bool[NDArray[np.bool_], " query"]
    span: tuple[float, float]

    @classmethod
    def of(
        cls, trial: Trial, choice: Int[NDArray[np.int64], " query"], best: int, keep: float
    ) -> "Losses":
        """The losses of some choices.

        Args:
            trial: The system with its labels.
            choice: The chosen target of each query.
            best: Column of the best single target.
            keep: The share that is promised.
        """
        router, same = trial.of_choice(trial.correct, choice), choice == best
        span = -1.0, keep
        if trial.chance is not None:
            span = _find_span(trial, trial.chance, choice, best, keep)
        return cls(keep, router, trial.correct[:, best], same, span)

    def __len__(self) -> int:
        return len(self.router)

    @property
    def measured(self) -> Bool[NDArray[np.bool_], " query"]:
        """Whether both labels are known."""
        return ~(np.isnan(self.router) | np.isnan(self.best))

    @property
    def largest(self) -> PerQuery:
        """The largest losses that the missing labels allow; the losses r where none is missing."""
        apart = self.keep * np.nan_to_num(self.best, nan=1) - np.nan_to_num(self.router)
        return np.where(self.same & ~self.measured, max(0.0, self.keep - 1), apart)

    @property
    def scaled(self) -> PerQuery:
        """The largest losses on [0, 1], as the tests by betting need them."""
        low, high = self.span
        return np.clip((self.largest - low) / (high - low), 0, 1)

    @property
    def threshold(self) -> float:
        """The value of a zero loss on the scale of `scaled`."""
        low, high = self.span
        return -low / (high - low)

    @property
    def kept_share(self) -> float:
        """The router's accuracy as a share of the best target's, where both are measured.

        NaN where the best target's accuracy is 0.
        """
        right, best = (float(label[self.measured].sum()) for label in (self.router, self.best))
        return right / best if best else float("nan")

    @property
    def least(self) -> float:
        """The smallest such share on all queries that labels allow; NaN as in `kept_share`."""
        is_shared = self.same & ~self.measured
        right = float(np.nansum(self.router[~is_shared]))
        best = float(np.nan_to_num(self.best[~is_shared], nan=1).sum())
        ends = (0, int(is_shared.sum()))  # of the shared labels' sum; the share is monotone in it
        shares = [(right + end) / (best + end) for end in ends if best + end]
        return min(shares, default=float("nan"))


def _find_span(
    trial: Trial,
    labels: ChanceLabels,
    choice: Int[NDArray[np.int64], " query"],
    best: int,
    keep: float,
) -> tuple[float, float]:
    """The least and the largest loss, over all queries, that the draw of labels could make."""
    low, high = labels.bounds
    least = keep * low[:, best] - trial.of_choice(high, choice)
    largest = keep * high[:, best] - trial.of_choice(low, choice)
    ends = np.sort(np.stack([low[:, best], high[:, best]]) * (keep - 1), axis=0)
    shared = choice == best
    return (
        min(-1.0, float(np.where(shared, ends[0], least).min())),
        max(keep, float(np.where(shared, ends[1], largest).max())),
    )


def order_ids(ids: tuple[str, ...]) -> Int[NDArray[np.int64], " query"]:
    """A pseudo-random order of the queries that depends on their ids alone, not on rows or labels.

    Files are often sorted by subject or difficulty, and the betting test has little power on sorted
    data.
    """
    keys = [
        hashlib.sha256(f"order {name}".encode("utf-8", "surrogatepass")).digest() for name in ids
    ]
    return np.array(sorted(range(len(ids)), key=keys.__getitem__), dtype=np.int64)


DOUBT = 0.01
"""The p-value up to which labels count as not missing at random."""
_DRAWS = 1999
_GRADES = 4
"""Number of difficulty levels, by the share of the other targets that are right."""
Choice = Int[NDArray[np.int64], " query"]


@final
@dataclass(frozen=True)
class LackingLabels:
    """The missing labels of one target in one domain, of those that the promise needs.

    Attributes:
        target: The chosen target, or the best single target.
        domain: The domain, after the benchmark where there are several; empty where unknown.
        missing: On how many queries its label is needed and missing.
        needed: On how many queries its label is needed.
    """

    target: str
    domain: str
    missing: int
    needed: int


@final
@dataclass(frozen=True)
class MissingLabels:
    """The missing labels at one lam.

    Attributes:
        queries: How many queries lack the label of the chosen or of the best single target.
        by_domain: The p-value of the hypothesis that missingness doesn't depend on the domain.
        by_choice: The same for the chosen target.
        by_difficulty: The same for the share of right answers among the targets measured on all
            queries; 1 where there is no such target.
        where: The missing labels by target and domain, the most first.
    """

    queries: int
    by_domain: float
    by_choice: float
    by_difficulty: float
    where: tuple[LackingLabels, ...]

    @classmethod
    def of(
        cls, trial: Trial, choice: Choice, best: int, domains: tuple[str, ...], *, seed: int
    ) -> "MissingLabels":
        """The missing labels for some choices.

        Args:
            trial: The system with its labels.
            choice: The chosen target of each query.
            best: Column of the best single target.
            domains: The domain of each query.
            seed: Random seed of the permutation tests.
        """
        unknown = np.isnan(trial.correct)
        is_missing = unknown[np.arange(len(trial)), choice] | unknown[:, best]
        return cls(
            int(is_missing.sum()),
            unevenness(is_missing, np.array(domains), seed=seed),
            unevenness(is_missing, choice, seed=seed),
            unevenness(is_missing, _grade_difficulty(trial), seed=seed),
            _count_missing(trial, choice, best, domains),
        )

    @property
    def signs(self) -> dict[str, float]:
        """The p-values that reject labels missing at random, by the tested property."""
        p_values = {
            "domain": self.by_domain,
            "the router's choice": self.by_choice,
            "difficulty": self.by_difficulty,
        }
        return {name: value for name, value in p_values.items() if value <= DOUBT}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "where": [asdict(cell) for cell in self.where]}


def unevenness(
    is_missing: Bool[NDArray[np.bool_], " query"],
    groups: Shaped[NDArray[Any], " query"],
    *,
    seed: int,
) -> float:
    """The probability that as many random queries are spread over the groups as unevenly as these.

    Args:
        is_missing: Which queries lack a label.
        groups: A name or number for each query.
        seed: Random seed of the draws.

    Returns:
        A p-value, valid for any number of queries; 1 where none or all are lost.
    """
    group = np.unique(groups, return_inverse=True)[1]
    sizes, lost_counts = (
        np.bincount(group),
        np.bincount(group[is_missing], minlength=group.max() + 1),
    )
    even = sizes * lost_counts.sum() / len(is_missing)
    draws = np.random.default_rng(seed).multivariate_hypergeometric(
        sizes, int(lost_counts.sum()), size=_DRAWS, method="marginals"
    )
    spread, observed = (((c - even) ** 2 / sizes).sum(axis=-1) for c in (draws, lost_counts))
    return float((1 + (spread >= observed - 1e-9).sum()) / (1 + _DRAWS))


def _grade_difficulty(trial: Trial) -> Choice:
    complete = trial.correct[:, ~np.isnan(trial.correct).any(axis=0)]
    share = complete.mean(axis=1) if complete.size else np.zeros(len(trial))
    grade: Choice = np.minimum(share * _GRADES, _GRADES - 1).astype(np.int64)
    return grade


def _count_missing(
    trial: Trial, choice: Choice, best: int, domains: tuple[str, ...]
) -> tuple[LackingLabels, ...]:
    unknown = np.isnan(trial.correct)
    cells = [
        (row, target)
        for row, chosen in enumerate(choice.tolist())
        for target in dict.fromkeys((chosen, best))
    ]
    every = Counter((trial.targets[t], domains[row]) for row, t in cells)
    missing = Counter((trial.targets[t], domains[row]) for row, t in cells if unknown[row, t])
    ordered = sorted(missing.items(), key=lambda item: (-item[1], item[0]))
    return tuple(LackingLabels(*cell, count, every[cell]) for cell, count in ordered)
