"""The search: candidates are proposed, scored fold by fold, stopped early, and recorded.

Folds are scored in this process, in several worker processes, or by an engine.
"""

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import numpy as np

from prefill_router.activations import Activations
from prefill_router.calibration import CalibratorKind
from prefill_router.engines import Engine, LocalEngine, TaskPool
from prefill_router.errors import ConfigError, FitError, MissingExtraError
from prefill_router.fitting import Recipe
from prefill_router.progress import Advance, Progress, SilentProgress
from prefill_router.studies.search.fold_scores import FoldScore, FoldScorer, Objective
from prefill_router.studies.search.holdout_guard import TrainOnly
from prefill_router.studies.search.proposer import Proposer
from prefill_router.studies.search.space import Space
from prefill_router.studies.search.trials import SearchTrial, TrialLedger, worth

Answer = tuple[dict[str, FoldScore], float, str]
"""Scores by kind of calibration, seconds, and the reason where there are no scores."""


def answer(bench: FoldScorer, recipe: Recipe, kinds: Sequence[CalibratorKind], fold: int) -> Answer:
    """The scores, or the reason why there are none."""
    try:
        return *bench.score(recipe, kinds, fold), ""
    except (FitError, MissingExtraError) as error:
        return {}, 0.0, str(error)


def _answer(
    bench: FoldScorer, asked: tuple[Recipe, Sequence[CalibratorKind], int], progress: Progress
) -> Answer:
    del progress
    return answer(bench, *asked)


MARGINS: dict[Objective, float] = {
    "choice": 0.01,
    "auc": 0.01,
    "brier": 0.004,
    "headroom": 0.15,
}
"""How far behind the best on the same folds a candidate is stopped."""


@final
@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Options of a search.

    Attributes:
        trials: Number of trials, those of earlier runs included; each has one fit per fold.
        folds: Number of folds of the cross-validation.
        objective: The optimised metric: `choice` AUC, mean `auc`, mean `brier`, or `headroom`
            captured.
        margin: A candidate is stopped if its mean over the folds so far is further than this behind
            the best one's on the same folds; `MARGINS` by default.
        seed: Random seed of folds, fits and proposals.
        jobs: Number of processes.
        minutes: Time after which no new fold is started; None for no limit.
    """

    trials: int = 200
    folds: int = 5
    objective: Objective = "choice"
    margin: float | None = None
    seed: int = 0
    jobs: int = 1
    minutes: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("folds", 2), ("jobs", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.seed < 0:
            raise ConfigError(f"the seed is {self.seed}; it must be 0 or more")
        for name in ("margin", "minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; it must be above 0")

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


def search(
    train: TrainOnly,
    space: Space,
    states: Sequence[Activations],
    *,
    config: SearchConfig | None = None,
    folder: Path | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> list[SearchTrial]:
    """Score candidates by cross-validation on train rows.

    Args:
        train: The rows; test rows can't be among them.
        space: The search space.
        states: Hidden states for the features, see `fitting.gather`.
        config: The options.
        folder: Keeps each fold's scores once they are computed, so that the search can resume.
        engine: Where folds are scored, several at once; in `config.jobs` processes if not given.
        progress: Reports the progress of the work.

    Returns:
        Every trial, by number, including those already in the folder.

    Raises:
        FitError: None of the candidates could be fitted.
        MissingExtraError: optuna isn't installed.
    """
    config, shown = config or SearchConfig(), progress or SilentProgress()
    ledger = TrialLedger(None if folder is None else folder / "trials")
    cache = None if folder is None else folder / "cache"
    bench = FoldScorer(train, tuple(states), config.folds, config.seed, config.objective, cache)
    proposer = Proposer(space, config.objective, config.seed)
    trials = {trial.number: trial for trial in ledger.read()}
    with (
        shown.task("trials", total=float(config.trials)) as advance,
        (engine or LocalEngine(config.jobs)).pool(bench) as at,
    ):
        _SearchRun(space, config, ledger, proposer, trials, at, advance).run()
    if all(trial.state == "failed" for trial in trials.values()):
        why = next((trial.why for trial in trials.values()), "the time limit was too short")
        raise FitError(f"no candidate could be fitted: {why}")
    return [trials[number] for number in sorted(trials)]


@final
@dataclass(frozen=True, eq=False)
class _SearchRun:
    """The loop of one run; only `trials` changes."""

    space: Space
    config: SearchConfig
    ledger: TrialLedger
    proposer: Proposer
    trials: dict[int, SearchTrial]
    pool: TaskPool[FoldScorer]
    advance: Advance
    _began: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        waiting: dict[Future[Answer], SearchTrial] = {}
        left = [trial for trial in self._by_number() if trial.state == "running"]
        for _ in range(len(self.trials) - len(left)):
            self.advance(note="kept")
        while True:
            while len(waiting) < self.pool.size and (trial := self._next(left)) is not None:
                waiting[self._begin(trial)] = trial
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                trial = self._judge(waiting.pop(future), future.result())
                if trial.state == "running" and not self._over():
                    waiting[self._begin(trial)] = trial
                elif trial.state != "running":
                    self.advance(note=self._note())

    def _by_number(self) -> list[SearchTrial]:
        return [self.trials[number] for number in sorted(self.trials)]

    def _over(self) -> bool:
        limit = self.config.minutes
        return limit is not None and time.monotonic() - self._began > 60 * limit

    def _next(self, left: list[SearchTrial]) -> SearchTrial | None:
        """An interrupted trial, or a new one; None when there are enough."""
        if self._over():
            return None
        if left:
            return left.pop(0)
        if len(self.trials) >= self.config.trials:
            return None
        candidate = self.proposer.propose(self._by_number())
        if candidate is None:
            return None
        number = max(self.trials, default=-1) + 1
        return self._keep(SearchTrial(number, candidate, {}))

    def _begin(self, trial: SearchTrial) -> Future[Answer]:
        recipe = self.space.recipe(trial.candidate)
        kinds = tuple(self.space.kinds(trial.candidate))
        return self.pool.submit(_answer, (recipe, kinds, trial.folds))

    def _judge(self, trial: SearchTrial, found: Answer) -> SearchTrial:
        scores, seconds, why = found
        if why:
            return self._keep(replace(trial, state="failed", why=why))
        joined = {kind: (*trial.scores.get(kind, ()), one) for kind, one in scores.items()}
        trial = replace(trial, scores=joined, seconds=trial.seconds + seconds)
        if trial.folds >= self.config.folds:
            return self._keep(replace(trial, state="finished"))
        return self._keep(replace(trial, state="stopped" if self._hopeless(trial) else "running"))

    def _hopeless(self, trial: SearchTrial) -> bool:
        """Whether the trial is too far behind the best finished one on the same folds."""
        best = self._best()
        if best is None:
            return False
        objective, folds = self.config.objective, trial.folds
        behind = best.best(objective, folds) - trial.best(objective, folds)
        return bool(behind > self.config.stop_behind)

    def _best(self) -> SearchTrial | None:
        finished = [trial for trial in self._by_number() if trial.state == "finished"]
        objective, folds = self.config.objective, self.config.folds
        return max(finished, key=lambda one: one.best(objective, folds), default=None)

    def _note(self) -> str:
        best = self._best()
        if best is None:
            return ""
        value = best.best(self.config.objective, self.config.folds)
        shown = abs(value) if self.config.objective == "brier" else value
        return f"best {self.config.objective} {shown:.4f}"

    def _keep(self, trial: SearchTrial) -> SearchTrial:
        self.trials[trial.number] = trial
        self.ledger.write(trial)
        return trial


def chosen_on_other_folds(trials: Sequence[SearchTrial], objective: Objective, folds: int) -> float:
    """The score of the choice on rows that it wasn't made on, estimated from train rows alone.

    For each fold, the configuration that is best on the other folds is scored on this fold; the
    mean of these scores lacks most of the selection bias of the best mean over all folds. Stopped
    configurations are left out.

    Returns:
        The mean in the objective's own direction; NaN without a finished trial.
    """
    table = np.array(
        [
            [worth(score, objective) for score in scores]
            for trial in trials
            if trial.state == "finished"
            for scores in trial.scores.values()
            if np.isfinite([worth(score, objective) for score in scores]).all()
        ]
    )
    if not len(table):
        return float("nan")
    others = (table.sum(axis=1, keepdims=True) - table) / (folds - 1)
    value = float(np.mean(table[np.argmax(others, axis=0), np.arange(folds)]))
    return -value if objective == "brier" else value
