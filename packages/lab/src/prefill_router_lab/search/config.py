"""The options of a search."""

from dataclasses import dataclass
from typing import Annotated, final

from typing_extensions import Doc

from prefill_router.fitting import MARGINS, Objective
from prefill_router.options import AT_LEAST_ONE, AT_LEAST_TWO, NOT_NEGATIVE, POSITIVE
from prefill_router_lab.study_options import Seed, StudyOptions


@final
@dataclass(frozen=True, kw_only=True)
class SearchConfig(StudyOptions):
    """Options of a search.

    Attributes:
        trials: Number of trials, those of earlier runs included; each has one fit per fold.
        minutes: Time after which no new fold is started; None for no limit.
        objective: The optimised metric: `choice` AUC, mean `auc`, mean `brier`, or `headroom`
            captured.
        margin: A candidate is stopped if its mean over the folds so far is further than this behind
            the best one's on the same folds; `MARGINS` by default.
        seed: Random seed of folds, fits and proposals.
        resamples: Bootstrap resamples for the intervals on the test part.
    """

    trials: Annotated[int, AT_LEAST_ONE, Doc("Fits to try, those of earlier runs included.")] = 200
    minutes: Annotated[
        float | None,
        POSITIVE,
        Doc("Start no fit after this many minutes; no limit by default."),
    ] = None
    jobs: Annotated[int, AT_LEAST_ONE, Doc("Processes.")] = 1
    folds: Annotated[int, AT_LEAST_TWO, Doc("Folds of the cross-validation.")] = 5
    objective: Annotated[Objective, Doc("choice, auc, brier or headroom.")] = "choice"
    margin: Annotated[
        float | None,
        POSITIVE,
        Doc("Stop a fit that is this far behind the best on the same folds."),
    ] = None
    seed: Annotated[Seed, Doc("Seed of the split and of all else that is random.")] = 0
    resamples: Annotated[
        int,
        NOT_NEGATIVE,
        Doc("Bootstrap resamples for the intervals on the test part; 0 for none."),
    ] = 1000

    @property
    def stop_behind(self) -> float:
        """The margin in use."""
        return MARGINS[self.objective] if self.margin is None else self.margin

    def to_dict(self) -> dict[str, object]:
        """Plain values that identify this search; duration and parallelism don't belong to it."""
        return {
            "folds": self.folds,
            "objective": self.objective,
            "margin": self.stop_behind,
            "seed": self.seed,
        }
