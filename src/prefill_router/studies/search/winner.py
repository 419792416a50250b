"""The end of a search: the winner is fitted on all train rows and judged once on the test part."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from prefill_router.activations import Activations
from prefill_router.errors import FitError
from prefill_router.evaluation import Evaluation, plain
from prefill_router.fitting import FitConfig, fit_router
from prefill_router.progress import Progress
from prefill_router.router import EncoderSources, Router
from prefill_router.studies.search.cross_validation import SearchConfig, chosen_on_other_folds
from prefill_router.studies.search.holdout_guard import SealedTest
from prefill_router.studies.search.space import Space
from prefill_router.studies.search.trials import RankedCandidate, SearchTrial, ranked


@final
@dataclass(frozen=True, eq=False)
class SearchResult:
    """The result of a search.

    Attributes:
        space: The search space.
        config: The options.
        trials: Every trial.
        ranking: Every configuration that was tried, the best first.
        honest: The objective when each fold is scored with the choice made on the other folds.
        evaluation: The winner's evaluation on the test part; None while that is sealed.
        openings: The dates and configurations of the openings of the test part.
        targets: The targets' names.
    """

    space: Space
    config: SearchConfig
    trials: tuple[SearchTrial, ...]
    ranking: tuple[RankedCandidate, ...]
    honest: float
    evaluation: Evaluation | None = None
    openings: tuple[dict[str, Any], ...] = ()
    targets: tuple[str, ...] = ()

    @property
    def winner(self) -> RankedCandidate:
        """The best configuration by cross-validation on train rows."""
        return self.ranking[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        judged = self.evaluation
        return {
            **self.config.to_dict(),
            "possible": self.space.size,
            "tried": len(self.ranking),
            "targets": list(self.targets),
            "fits": sum(trial.folds for trial in self.trials),
            "seconds": sum(trial.seconds for trial in self.trials),
            "states": {
                state: sum(trial.state == state for trial in self.trials)
                for state in ("finished", "stopped", "failed", "running")
            },
            "winner": {**self.winner.to_dict(), "cross_validation": self._means()},
            "chosen_on_other_folds": plain(self.honest),
            "test": None
            if judged is None
            else {name: one.to_dict() for name, one in judged.headline.items()},
            "test_targets": None
            if judged is None
            else {
                target: {name: values[name].to_dict() for name in ("auc", "brier")}
                for target, values in judged.per_target.items()
            },
            "openings": list(self.openings),
            "ranking": [one.to_dict() for one in self.ranking],
            "failed": {str(t.number): t.why for t in self.trials if t.state == "failed"},
        }

    def _means(self) -> dict[str, float | None]:
        return {
            "auc": plain(self.winner.mean("auc")),
            "brier": plain(self.winner.mean("brier")),
            "headroom": plain(self.winner.mean("headroom")),
        }


def choose(
    trials: Sequence[SearchTrial],
    space: Space,
    config: SearchConfig,
    *,
    targets: tuple[str, ...] = (),
) -> SearchResult:
    """Choose the winner among the trials, without the test part.

    Args:
        trials: The result of `search`.
        space: The search space.
        config: The options.
        targets: The targets' names, for tables.

    Raises:
        FitError: No trial went through all folds.
    """
    ranking = ranked(space, trials, config.objective)
    if not ranking or ranking[0].state != "finished":
        raise FitError(
            f"none of {len(trials)} trials finished all {config.folds} folds; allow more time"
        )
    honest = chosen_on_other_folds(trials, config.objective, config.folds)
    return SearchResult(space, config, tuple(trials), tuple(ranking), honest, targets=targets)


def conclude(
    verdict: SearchResult,
    sealed: SealedTest,
    states: Sequence[Activations],
    *,
    again: bool = False,
    resamples: int = 1000,
    sources: EncoderSources | None = None,
    progress: Progress | None = None,
) -> tuple[SearchResult, Router]:
    """Open the test part: fit the winner on all rows that were searched on, and judge it.

    The fit is the same as that of `fit` with the winner's recipe and split.

    Args:
        verdict: The choice, which the test part can't change.
        sealed: The test part.
        states: Hidden states for the features.
        again: Whether to open it although it was opened for another configuration.
        resamples: Bootstrap resamples for the intervals.
        sources: Where encoders are found.
        progress: Reports the progress of the work.

    Raises:
        ConfigError: It was opened for another configuration.
    """
    recipe, seed = verdict.winner.recipe, verdict.config.seed
    drawn = sealed.split_for(recipe, seed=seed)
    dataset = sealed.open(recipe, again=again)
    fitted = fit_router(
        dataset,
        states,
        config=FitConfig(recipe=recipe, resamples=resamples, seed=seed),
        drawn=drawn,
        sources=sources,
        progress=progress,
    )
    opened = tuple(sealed.openings)
    done = replace(verdict, evaluation=fitted.evaluation, openings=opened)
    return done, fitted.router


def spread(one: RankedCandidate) -> float:
    """The standard error of a configuration's mean AUC over folds."""
    values = [score.auc for score in one.scores]
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
