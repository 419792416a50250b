"""The hypothesis at one lam, that routing there falls short of the promise, and its test."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, final, get_args

from prefill_router.data import Query
from prefill_router.evaluation import Trial
from prefill_router.studies.guarantee.betting import p_value
from prefill_router.studies.guarantee.losses import Losses, shuffled
from prefill_router.studies.guarantee.missing import Choice, Missing
from prefill_router.studies.guarantee.result import Tested

Assumption = Literal["nothing", "missing-at-random"]
"""What is assumed of missing labels."""
ASSUMPTIONS: tuple[Assumption, ...] = get_args(Assumption)


@final
@dataclass(frozen=True, eq=False)
class Hypotheses:
    """That routing at a lam falls short of the promise, for every lam.

    Attributes:
        trial: A system on queries that it was not fitted on.
        best: The best single target, a column.
        keep: The share that is promised.
        level: At which the tests will be read.
        assume: What is assumed of missing labels.
        queries: Those of the trial, found by id, for their benchmarks and domains.
        seed: Of the draws that tell how labels are missing.
    """

    trial: Trial
    best: int
    keep: float
    level: float
    assume: Assumption
    queries: Sequence[Query]
    seed: int

    def losses(self, lam: float) -> Losses:
        """What each query loses."""
        return Losses.of(self.trial, self.trial.path.at(lam), self.best, self.keep)

    def missing(self, lam: float) -> Missing:
        """Which labels are missing."""
        choice = self.trial.path.at(lam)
        return Missing.of(self.trial, choice, self.best, self._domains, seed=self.seed)

    def sequence(self, lams: Sequence[float]) -> tuple[Tested, ...]:
        """The tests of one lam after another, up to the first that isn't rejected."""
        tested = []
        for lam in lams:
            tested.append(self.test(lam))
            if tested[-1].p_value > self.level:
                break
        return tuple(tested)

    def test(self, lam: float) -> Tested:
        """The p-value, with missing labels at their worst unless they may be left out."""
        losses = self.losses(lam)
        measured = losses.measured
        ordered, known = losses.scaled[self._order], measured[self._order]
        found = p_value(ordered, losses.threshold, level=self.level)
        bounded = True
        if self.assume == "missing-at-random" and not measured.all():
            left = p_value(ordered[known], losses.threshold, level=self.level)
            bounded = bool(self.missing(lam).signs)
            # The greater of the two, so that looking at what is missing can't help a promise.
            found = max(found, left) if bounded else left
        count = len(losses) if bounded else int(measured.sum())
        lost = int((~measured).sum())
        return Tested(float(lam), found, count, lost, bounded, losses.kept)

    @cached_property
    def _order(self) -> Choice:
        return shuffled(self.trial.query_ids)

    @cached_property
    def _domains(self) -> tuple[str, ...]:
        several = len({query.benchmark for query in self.queries}) > 1
        names = {
            query.id: " / ".join(filter(None, (query.benchmark * several, query.domain)))
            for query in self.queries
        }
        return tuple(names.get(i, "") for i in self.trial.query_ids)
