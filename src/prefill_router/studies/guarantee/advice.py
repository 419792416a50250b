"""Advice where no lam can be guaranteed: more queries, more labels, or a weaker guarantee."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import final

import numpy as np

from prefill_router.betting import enough
from prefill_router.studies.guarantee.losses import Losses, MissingLabels

_NAMED = 5
"""How many of the cells with missing labels are named."""


@final
@dataclass(frozen=True)
class Advice:
    """What would suffice to guarantee lam = 1 with a probability of about 50 %.

    Attributes:
        queries: About how many queries suffice, all labelled and like the measured ones; None where
            the router falls short on these, so that more won't help.
        labels: About how many of the missing labels suffice, if they are like the measured ones;
            None where labels aren't the problem, or wouldn't suffice without more queries.
        words: The reason why no lam can be guaranteed, and the advice.
    """

    queries: int | None
    labels: int | None
    words: str

    @classmethod
    def of(cls, losses: Losses, missing: MissingLabels, *, bounded: bool, level: float) -> "Advice":
        """Work out the advice.

        Args:
            losses: The losses at lam = 1.
            missing: The labels missing there.
            bounded: Whether missing labels count at their worst.
            level: Significance level of the test.
        """
        queries = enough(losses.scaled[losses.measured], losses.threshold, level=level)
        wanting = bounded and missing.queries and queries is not None
        labels = (_labels(losses, level=level) or None) if wanting else None
        if queries is not None and labels is None:
            queries = max(queries, len(losses) + 1)  # the test has failed on this many
        return cls(queries, labels, _words(losses, missing, queries, labels))


NONE_NEEDED = Advice(None, None, "")


def places(missing: MissingLabels) -> str:
    """The targets and domains with missing labels, in words."""
    told = [
        f"{cell.target} on {cell.missing:,} of {cell.needed:,}"
        + (f" in {cell.domain}" if cell.domain else "")
        for cell in missing.where[:_NAMED]
    ]
    others = sum(cell.missing for cell in missing.where[_NAMED:])
    return ", ".join(told) + (f", and {others:,} elsewhere" if others else "")


def _labels(losses: Losses, *, level: float) -> int | None:
    """How many of the missing labels would suffice, if the most costly ones are filled in first."""
    measured = losses.scaled[losses.measured]
    worst = np.sort(losses.scaled[~losses.measured])[::-1]

    def suffices(labels: int) -> bool:
        shares = (np.arange(labels) + 0.5) / max(labels, 1)
        learned = np.quantile(measured, shares, method="inverted_cdf")
        mixed = np.concatenate([measured, learned, worst[labels:]])
        wanted = enough(mixed, losses.threshold, level=level)
        return wanted is not None and wanted <= len(losses)

    found = bisect_left(range(len(worst) + 1), True, key=suffices)
    return found if found <= len(worst) else None


def _words(losses: Losses, missing: MissingLabels, queries: int | None, labels: int | None) -> str:
    if queries is None:
        return (
            f"at lam = 1 the router keeps {100 * losses.kept:.1f} % of the best single target's "
            "accuracy where both are measured, so more queries won't help: require less, or fit a "
            "better router"
        )
    if labels:
        return (
            f"at lam = 1, {missing.queries:,} of {len(losses):,} queries lack a label that the "
            f"guarantee needs; at worst, the router keeps {100 * losses.least:.1f} % of the best "
            f"single target's accuracy: label these queries. About {labels:,} labels would suffice "
            "with a probability of 50 %, if they are like the others; or fit a router without the "
            "targets that lack labels, or require less"
        )
    return (
        f"{int(losses.measured.sum()):,} labelled queries are too few for this guarantee: about "
        f"{queries:,} would suffice with a probability of 50 %, if they are like these; or require "
        "less, or a lower confidence"
    )
