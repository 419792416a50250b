"""Which of the judged queries are compared, and how they differ from the rest."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool
from numpy.typing import NDArray

from prefill_router.evaluation.bootstrap import plain
from prefill_router.evaluation.chance_labels import Overlap
from prefill_router.evaluation.judged_predictions import Trial

_SHORT = 0.75
"""A domain is named if its compared share is below this fraction of the overall one."""
_NAMED = 4


@final
@dataclass(frozen=True)
class DomainCoverage:
    """How much of a domain is compared.

    Attributes:
        domain: Benchmark and domain, as one name.
        queries: Number of its queries.
        compared: Number of these that are compared.
    """

    domain: str
    queries: int
    compared: int


@final
@dataclass(frozen=True)
class Coverage:
    """The queries on which router, single targets, mixes and oracle are compared with each other.

    Attributes:
        queries: Number of evaluated queries.
        compared: Number of compared queries: those where the outcomes of all sides are known.
        domains: The same numbers by domain, in order of the names.
        left_out: Targets that are measured on too few queries to be compared.
        harder: How much lower the targets' accuracy is on the other queries than on the compared
            ones, each label relative to its target's mean; NaN where either side has no label.
        overlap: Whether the labels could be observed, where chance selected them; else None.
    """

    queries: int
    compared: int
    domains: tuple[DomainCoverage, ...]
    left_out: tuple[str, ...]
    harder: float
    overlap: Overlap | None = None

    @classmethod
    def of(cls, trial: Trial) -> "Coverage":
        """Count the queries of a trial."""
        domains = trial.domains or ("",) * len(trial)
        sizes = Counter(domains)
        kept = Counter(d for d, kept in zip(domains, trial.compared, strict=True) if kept)
        judged = zip(trial.targets, trial.judged, strict=True)
        return cls(
            len(trial),
            int(trial.compared.sum()),
            tuple(DomainCoverage(name, sizes[name], kept[name]) for name in sorted(sizes)),
            tuple(name for name, enough in judged if not enough),
            _harder(trial, trial.compared),
            trial.overlap,
        )

    @property
    def note(self) -> str:
        """How many queries are compared and why not all, in sentences; empty if all are."""
        if self.overlap is not None:
            return self.overlap.note
        if self.compared == self.queries and not self.left_out:
            return ""
        parts = [
            f"{self.compared:,} of {self.queries:,} queries are compared: those on which the "
            "outcomes of all sides are known"
        ]
        short = self._short()
        if short:
            parts.append("of " + ", of ".join(short) + " are")
        if self.compared and abs(self.harder) >= 0.005:
            way = "less" if self.harder > 0 else "more"
            parts.append(
                f"on the others the targets are right {100 * abs(self.harder):.1f} points {way} "
                "often"
            )
        if self.left_out:
            names = ", ".join(self.left_out[:_NAMED])
            more = f" and {len(self.left_out) - _NAMED} more" if len(self.left_out) > _NAMED else ""
            parts.append(f"{names}{more} had too few labels to be compared with")
        if not self.compared:
            parts.append("score the answers of every target on the same queries")
        return "; ".join(parts) + "."

    def _short(self) -> list[str]:
        least = _SHORT * self.compared / self.queries
        rows = [d for d in self.domains if d.compared < least * d.queries and d.domain]
        rows.sort(key=lambda d: d.compared - self.compared / self.queries * d.queries)
        named = [f"{d.domain} {d.compared:,} of {d.queries:,}" for d in rows[:_NAMED]]
        rest = rows[_NAMED:]
        if rest:
            total = sum(d.compared for d in rest), sum(d.queries for d in rest)
            named.append(f"{len(rest)} more {total[0]:,} of {total[1]:,}")
        return named

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found = {**asdict(self), "harder": plain(self.harder), "note": self.note}
        del found["overlap"]
        return found if self.overlap is None else {**found, "overlap": self.overlap.to_dict()}


def _harder(trial: Trial, compared: Bool[NDArray[np.bool_], " query"]) -> float:
    known = ~np.isnan(trial.single_label)
    count = known.sum(axis=0)
    mean = np.where(known, trial.correct, 0).sum(axis=0) / np.maximum(count, 1)
    beyond = np.where(known, trial.correct - mean, np.nan)
    here, there = beyond[compared], beyond[~compared]
    if np.isnan(here).all() or np.isnan(there).all():
        return float("nan")
    return float(np.nanmean(here) - np.nanmean(there))
