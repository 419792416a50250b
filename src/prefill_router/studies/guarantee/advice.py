"""What would do where no lam can be guaranteed: more queries, more labels, or another promise."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import final

import numpy as np

from prefill_router.studies.guarantee.betting import enough
from prefill_router.studies.guarantee.losses import Losses, MissingLabels

_NAMED = 5
"""Of the places where labels are missing, so many are told."""


@final
@dataclass(frozen=True)
class Advice:
    """What would do for lam = 1, with an even chance.

    Attributes:
        queries: About how many queries, all labelled and like the measured ones; None where the
            router falls short on these, so that more won't help.
        labels: About how many of the missing labels, if they turn out like the measured ones; None
            where they aren't what is wanting, or wouldn't do without more queries.
        words: The reason why there is no lam, and all this.
    """

    queries: int | None
    labels: int | None
    words: str

    @classmethod
    def of(cls, losses: Losses, missing: MissingLabels, *, bounded: bool, level: float) -> "Advice":
        """What would do.

        Args:
            losses: At lam = 1.
            missing: What is missing there.
            bounded: Whether missing labels count at their worst.
            level: At which the hypothesis stands.
        """
        queries = enough(losses.scaled[losses.measured], losses.threshold, level=level)
        wanting = bounded and missing.queries and queries is not None
        labels = (_labels(losses, level=level) or None) if wanting else None
        if queries is not None and labels is None:
            queries = max(queries, len(losses) + 1)  # the even chance of these is gone
        return cls(queries, labels, _words(losses, missing, queries, labels))


NONE_NEEDED = Advice(None, None, "")


def places(missing: MissingLabels) -> str:
    """Whose labels are missing where, in words."""
    told = [
        f"{cell.target} on {cell.missing:,} of {cell.needed:,}"
        + (f" in {cell.domain}" if cell.domain else "")
        for cell in missing.where[:_NAMED]
    ]
    others = sum(cell.missing for cell in missing.where[_NAMED:])
    return ", ".join(told) + (f", and {others:,} elsewhere" if others else "")


def _labels(losses: Losses, *, level: float) -> int | None:
    """How many of the missing labels would do, those that cost the promise most being first."""
    measured = losses.scaled[losses.measured]
    worst = np.sort(losses.scaled[~losses.measured])[::-1]

    def would_do(labels: int) -> bool:
        shares = (np.arange(labels) + 0.5) / max(labels, 1)
        learned = np.quantile(measured, shares, method="inverted_cdf")
        mixed = np.concatenate([measured, learned, worst[labels:]])
        wanted = enough(mixed, losses.threshold, level=level)
        return wanted is not None and wanted <= len(losses)

    found = bisect_left(range(len(worst) + 1), True, key=would_do)
    return found if found <= len(worst) else None


def _words(losses: Losses, missing: MissingLabels, queries: int | None, labels: int | None) -> str:
    if queries is None:
        return (
            f"at lam = 1 the router keeps {100 * losses.kept:.1f} % of the best single target's "
            "accuracy where both are measured, so more queries won't help: promise less, or fit a "
            "better router"
        )
    if labels:
        return (
            f"at lam = 1, {missing.queries:,} of {len(losses):,} queries lack a label that the "
            f"promise needs, and at worst {100 * losses.least:.1f} % of that accuracy is kept on "
            f"these queries: label them. About {labels:,} would do with an even chance, if they "
            "turn out like the others; or fit a router without the targets that lack labels, or "
            "promise less"
        )
    return (
        f"{int(losses.measured.sum()):,} labelled queries are too few for this promise: about "
        f"{queries:,} would do with an even chance, if they are like these; or promise less, or "
        "with less confidence"
    )
