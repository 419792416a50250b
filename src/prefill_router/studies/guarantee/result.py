"""What a guarantee says."""

from dataclasses import asdict, dataclass
from typing import Any, final

from prefill_router.evaluation import Estimate
from prefill_router.evaluation.bootstrap import plain
from prefill_router.studies.guarantee.missing import Missing


@final
@dataclass(frozen=True)
class Tested:
    """One hypothesis of the sequence: that routing at this lam falls short of the promise.

    Attributes:
        lam: Where.
        p_value: Small values speak against it.
        queries: On how many queries it was tested.
        missing: How many lack the label of the chosen or of the best target.
        bounded: Whether these were tested too, each label at its worst; else they were left out.
        kept: Accuracy there as a share of the best single target's, where both are measured; NaN
            where that is 0.
    """

    lam: float
    p_value: float
    queries: int
    missing: int
    bounded: bool
    kept: float


@final
@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The cheapest lam that keeps the promise, with what it was tested on.

    Where no lam can be guaranteed, the numbers are those at lam = 1.

    Attributes:
        lam: It; None where no lam can be guaranteed.
        keep: The share of the best single target's accuracy that is promised.
        confidence: The chance, at least, that the promise is kept at `lam`.
        best: The best single target of the train part.
        assume: What was to be assumed of missing labels: `nothing`, or `missing-at-random`.
        bounded: Whether each missing label counted at its worst; else the queries that lack one
            were left out, as assumed.
        queries: On how many queries it was tested.
        missing: Which labels are missing.
        kept: Accuracy as a share of the best single target's, on the queries with both labels.
        least: The smallest such share on all queries that the missing labels allow; NaN where the
            best single target is never right.
        accuracy: The accuracy on the queries with both labels.
        best_accuracy: The best single target's accuracy on the same queries.
        savings: 1 - mean cost / mean cost of the best single target, where both are known.
        sequence: What was tested, from lam = 1 down; all but the last were rejected, the last too
            if the sequence came to its end.
        needed: Where there is no lam: about how many queries, all labelled, would do for lam = 1;
            None where more queries of this kind won't help, or a lam was found.
        labels: Where there is no lam: about how many of the missing labels would do; None where
            that isn't known to be enough, or a lam was found.
        advice: What to do next, in words.
    """

    lam: float | None
    keep: float
    confidence: float
    best: str
    assume: str
    bounded: bool
    queries: int
    missing: Missing
    kept: Estimate
    least: float
    accuracy: Estimate
    best_accuracy: Estimate
    savings: Estimate
    sequence: tuple[Tested, ...]
    needed: int | None
    labels: int | None
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        numbers = ("kept", "accuracy", "best_accuracy", "savings")
        rows = [asdict(tested) | {"kept": plain(tested.kept)} for tested in self.sequence]
        return {
            **vars(self),
            **{name: getattr(self, name).to_dict() for name in numbers},
            "least": plain(self.least),
            "missing": self.missing.to_dict(),
            "sequence": rows,
        }
