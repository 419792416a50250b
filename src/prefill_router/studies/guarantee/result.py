"""What a guarantee says."""

from dataclasses import asdict, dataclass
from typing import Any, final

from prefill_router.evaluation import Estimate
from prefill_router.evaluation.bootstrap import plain


@final
@dataclass(frozen=True)
class Tested:
    """One hypothesis of the sequence: that routing at this lam falls short of the promise.

    Attributes:
        lam: Where.
        p_value: Small values speak against it.
        queries: On how many queries it was tested.
        kept: Accuracy there as a share of the best single target's; NaN where that is 0.
    """

    lam: float
    p_value: float
    queries: int
    kept: float


@final
@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The cheapest lam that keeps the promise, with what it was tested on.

    Attributes:
        lam: It; None where no lam can be guaranteed.
        keep: The share of the best single target's accuracy that is promised.
        confidence: The chance, at least, that the promise is kept at `lam`.
        best: The best single target of the train part.
        queries: On how many queries `lam` was tested, or lam = 1 where none can be guaranteed.
        left_out: Queries without the label of the chosen or of the best target.
        kept: Accuracy at `lam` (else at lam = 1) as a share of the best single target's, there.
        accuracy: The accuracy there.
        best_accuracy: The best single target's accuracy on the same queries.
        savings: 1 - mean cost / mean cost of the best single target, where both are known.
        sequence: What was tested, from lam = 1 down; all but the last were rejected, the last too
            if the sequence came to its end.
        needed: Where there is no lam: about how many queries would do for lam = 1; None where more
            queries of this kind won't help, or a lam was found.
        advice: What to do next, in words.
    """

    lam: float | None
    keep: float
    confidence: float
    best: str
    queries: int
    left_out: int
    kept: Estimate
    accuracy: Estimate
    best_accuracy: Estimate
    savings: Estimate
    sequence: tuple[Tested, ...]
    needed: int | None
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        numbers = ("kept", "accuracy", "best_accuracy", "savings")
        rows = [asdict(tested) | {"kept": plain(tested.kept)} for tested in self.sequence]
        special = {name: getattr(self, name).to_dict() for name in numbers} | {"sequence": rows}
        return {**vars(self), **special}
