"""Which labels a promise lacks, and whether chance alone could have lost them where they are lost.

Labels that are lost at random are spread evenly over the domains, over the targets that the router
chooses, and over easy and hard queries. Each is tested exactly, by drawing as many queries again
and again (a permutation test of the chi-square statistic). A small p-value shows that labels aren't
missing at random; a large one doesn't show that they are.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Int, Shaped
from numpy.typing import NDArray

from prefill_router.evaluation import Trial

DOUBT = 0.01
"""A p-value up to which labels are said not to be missing at random."""
_DRAWS = 1999
_GRADES = 4
"""Of difficulty: quarters of the share of the other targets that are right."""
Choice = Int[NDArray[np.int64], " query"]


@final
@dataclass(frozen=True)
class Lacking:
    """Labels of one target that one domain lacks, where the promise needs them.

    Attributes:
        target: The target that was chosen, or the best single target.
        domain: The domain, after the benchmark where there are several; empty where unknown.
        missing: On how many queries its label is needed and missing.
        needed: On how many it is needed.
    """

    target: str
    domain: str
    missing: int
    needed: int


@final
@dataclass(frozen=True)
class Missing:
    """What is missing at one lam.

    Attributes:
        queries: How many lack the label of the chosen or of the best single target.
        by_domain: The p-value of the hypothesis that the domain has no part in which they are.
        by_choice: That the target chosen has none.
        by_difficulty: That the share of right answers has none, among the targets measured on all
            queries; 1 where there is no such target.
        where: What is missing, the most first.
    """

    queries: int
    by_domain: float
    by_choice: float
    by_difficulty: float
    where: tuple[Lacking, ...]

    @classmethod
    def of(
        cls, trial: Trial, choice: Choice, best: int, domains: tuple[str, ...], *, seed: int
    ) -> "Missing":
        """What is missing for some choices.

        Args:
            trial: What happened.
            choice: The chosen target of each query.
            best: The best single target, a column.
            domains: Of each query.
            seed: Of the draws.
        """
        unknown = np.isnan(trial.correct)
        lost = unknown[np.arange(len(trial)), choice] | unknown[:, best]
        return cls(
            int(lost.sum()),
            unevenness(lost, np.array(domains), seed=seed),
            unevenness(lost, choice, seed=seed),
            unevenness(lost, _difficulty(trial), seed=seed),
            _where(trial, choice, best, domains),
        )

    @property
    def signs(self) -> dict[str, float]:
        """The p-values that speak against labels missing at random, by what they go."""
        found = {
            "domain": self.by_domain,
            "the router's choice": self.by_choice,
            "difficulty": self.by_difficulty,
        }
        return {name: value for name, value in found.items() if value <= DOUBT}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "where": [asdict(cell) for cell in self.where]}


def unevenness(
    lost: Bool[NDArray[np.bool_], " query"], groups: Shaped[NDArray[Any], " query"], *, seed: int
) -> float:
    """The chance that queries lost at random are spread over the groups as unevenly as these.

    Args:
        lost: Which queries.
        groups: A name or number for each.
        seed: Of the draws.

    Returns:
        A p-value, valid for any number of queries; 1 where none or all are lost.
    """
    group = np.unique(groups, return_inverse=True)[1]
    sizes, seen = np.bincount(group), np.bincount(group[lost], minlength=group.max() + 1)
    even = sizes * seen.sum() / len(lost)
    draws = np.random.default_rng(seed).multivariate_hypergeometric(
        sizes, int(seen.sum()), size=_DRAWS, method="marginals"
    )
    spread, observed = (((c - even) ** 2 / sizes).sum(axis=-1) for c in (draws, seen))
    return float((1 + (spread >= observed - 1e-9).sum()) / (1 + _DRAWS))


def _difficulty(trial: Trial) -> Choice:
    complete = trial.correct[:, ~np.isnan(trial.correct).any(axis=0)]
    share = complete.mean(axis=1) if complete.size else np.zeros(len(trial))
    grade: Choice = np.minimum(share * _GRADES, _GRADES - 1).astype(np.int64)
    return grade


def _where(
    trial: Trial, choice: Choice, best: int, domains: tuple[str, ...]
) -> tuple[Lacking, ...]:
    unknown = np.isnan(trial.correct)
    needed = [
        (row, target)
        for row, chosen in enumerate(choice.tolist())
        for target in dict.fromkeys((chosen, best))
    ]
    every = Counter((trial.targets[t], domains[row]) for row, t in needed)
    gone = Counter((trial.targets[t], domains[row]) for row, t in needed if unknown[row, t])
    ordered = sorted(gone.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Lacking(*cell, count, every[cell]) for cell, count in ordered)
