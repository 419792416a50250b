"""What a selection comes to: a site and a dimension for every target, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.activations import Site
from prefill_router.brief import brief
from prefill_router.errors import FitError

Method = Literal["fisher", "grid", "pinned"]
Scope = Literal["target", "pool"]
Pinned = Site | Mapping[str, Site]
"""One site for all targets, or one for each by its name."""
LEAST = 10
"""A target with fewer labels of either class than this isn't asked for a choice of its own."""


@final
@dataclass(frozen=True)
class Choice:
    """Where one target's features are read.

    Attributes:
        site: The layer and pooling.
        dim: Components to keep.
        score: The criterion's value there; None where the choice was pinned, or can't be judged.
        note: Why it isn't the target's own choice; empty where it is.
    """

    site: Site
    dim: int
    score: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "site": self.site.name,
            "dim": self.dim,
            "score": None if self.score is None or np.isinf(self.score) else self.score,
            "note": self.note,
        }


@brief
@final
@dataclass(frozen=True)
class Selection:
    """The choices of a pool's targets within one encoder.

    Attributes:
        method: `fisher`: greatest J; `grid`: greatest five-fold probe AUC; `pinned`: given.
        scope: Whether each `target` chose for itself, or the `pool` for all.
        targets: The targets' names.
        choices: One per target.
        pool: The choice of the pool as a whole, by the mean over targets.
    """

    method: Method
    scope: Scope
    targets: tuple[str, ...]
    choices: tuple[Choice, ...]
    pool: Choice

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        choices = zip(self.targets, self.choices, strict=True)
        return {
            "method": self.method,
            "scope": self.scope,
            "pool": self.pool.to_dict(),
            "targets": {name: choice.to_dict() for name, choice in choices},
        }


def choose(
    candidates: tuple[Choice, ...],
    scores: Float64[NDArray[np.float64], "candidate target"],
    *,
    judged: NDArray[np.bool_],
    method: Method,
    scope: Scope,
    targets: tuple[str, ...],
) -> Selection:
    """Take the best candidate for each target or for the pool.

    Among equals the first candidate wins, so order them with the one to prefer first.

    Args:
        candidates: Sites and dimensions.
        scores: The criterion, NaN where it isn't defined.
        judged: Which targets have labels enough for a choice of their own.
        method: What the scores are.
        scope: Whose choice it is.
        targets: The targets' names.

    Raises:
        FitError: No target can be judged at all.
    """
    usable = scores[:, judged] if judged.any() else scores
    usable = usable[:, ~np.isnan(usable).any(axis=0)]
    if not usable.shape[1]:
        raise FitError(
            "no target has right and wrong answers enough to judge a layer by; add labelled "
            "queries, or pin the site"
        )
    pool = _best(candidates, usable.mean(axis=1))
    note = "the pool's choice" if scope == "pool" else "too few labels: the pool's choice"
    shared = Choice(pool.site, pool.dim, pool.score, note)
    alone = judged & ~np.isnan(scores).any(axis=0) & (scope == "target")
    choices = tuple(
        _best(candidates, scores[:, k]) if alone[k] else shared for k in range(len(targets))
    )
    return Selection(method, scope, targets, choices, pool)


def _best(candidates: tuple[Choice, ...], scores: NDArray[np.float64]) -> Choice:
    best = int(np.argmax(scores))
    return Choice(candidates[best].site, candidates[best].dim, float(scores[best]))
