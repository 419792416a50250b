"""The search: candidates are proposed and tried fold by fold, and the winner is judged once.

Every predictor and every set of features is proposed first; after that, optuna's TPE proposes. A
proposal depends only on the seed and on the earlier trials, so that an interrupted search continues
as if it had never stopped. Folds are scored in this process, in several worker processes, or by an
engine. In the end the winner is fitted on all train rows and judged once on the test part.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from prefill_router.activations import Activations
from prefill_router.calibration import CalibratorKind
from prefill_router.engines import Engine, LocalEngine, TaskPool
from prefill_router.errors import FitError
from prefill_router.evaluation import Evaluation, plain
from prefill_router.fitting import (
    Answer,
    FitConfig,
    FoldScorer,
    Objective,
    Recipe,
    TrainOnly,
    answer,
    fit_router,
)
from prefill_router.lazy_imports import optional_imports
from prefill_router.progress import Advance, Progress, SilentProgress
from prefill_router.router import EncoderSources, Router
from prefill_router_lab.search.config import SearchConfig
from prefill_router_lab.search.holdout_guard import SealedTest
from prefill_router_lab.search.space import Branch, Candidate, Space
from prefill_router_lab.search.trials import (
    RankedCandidate,
    SearchTrial,
    TrialLedger,
    orient_score,
    rank_candidates,
)

if TYPE_CHECKING:
    from optuna.distributions import CategoricalDistribution


_ATTEMPTS = 20
_WALKED = 100_000


@final
@dataclass(frozen=True, eq=False)
class Proposer:
    """Proposes candidates.

    Attributes:
        space: The search space.
        objective: The optimised metric.
        seed: Random seed of the proposals.
    """

    space: Space
    objective: Objective
    seed: int

    def __post_init__(self) -> None:
        load_optuna()  # report a missing package before the work

    def propose(self, trials: Sequence[SearchTrial]) -> Candidate | None:
        """A candidate that isn't among these trials; None when all have been tried."""
        tried = {trial.candidate for trial in trials}
        for candidate in openers(self.space):
            if candidate not in tried:
                return candidate
        if len(tried) >= self.space.candidates:
            return None
        study = self._rebuild_study(trials)
        for _ in range(_ATTEMPTS):
            candidate = self._read_candidate(study.ask())
            if candidate not in tried:
                return candidate
        return self._draw_untried(tried, len(trials))

    def _rebuild_study(self, trials: Sequence[SearchTrial]) -> Any:
        optuna = load_optuna()
        seed = np.random.SeedSequence((self.seed, len(trials))).generate_state(1)[0]
        sampler = optuna.samplers.TPESampler(seed=int(seed), n_startup_trials=0)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in trials:
            value = trial.best(self.objective, trial.folds)
            if np.isfinite(value):
                study.add_trial(self._make_optuna_trial(optuna, trial, value))
        return study

    def _make_optuna_trial(self, optuna: Any, trial: SearchTrial, value: float) -> Any:
        ranges = self._list_ranges(trial.candidate)
        return optuna.trial.create_trial(
            params=self._list_params(trial.candidate), distributions=ranges, value=value
        )

    def _read_candidate(self, trial: Any) -> Candidate:
        features = trial.suggest_categorical("features", list(self.space.features))
        predictor = trial.suggest_categorical("predictor", list(self.space.predictors))
        calibrated = trial.suggest_categorical("calibrated", list(self.space.held_out))
        places = tuple(
            tuple(
                int(trial.suggest_categorical(name, list(range(size))))
                for name, size in _name_axes(branch, what)
            )
            for branch, what in self._pair_branches(features, predictor)
        )
        return Candidate(features, predictor, (places[0], places[1]), bool(calibrated))

    def _pair_branches(self, features: str, predictor: str) -> list[tuple[Branch, str]]:
        return [
            (self.space.features[features], "features"),
            (self.space.predictors[predictor], "predictor"),
        ]

    def _list_params(self, candidate: Candidate) -> dict[str, Any]:
        params: dict[str, Any] = {
            "features": candidate.features,
            "predictor": candidate.predictor,
            "calibrated": candidate.calibrated,
        }
        branches = self._pair_branches(candidate.features, candidate.predictor)
        for (branch, what), places in zip(branches, candidate.places, strict=True):
            names = [name for name, _ in _name_axes(branch, what)]
            params |= dict(zip(names, places, strict=True))
        return params

    def _list_ranges(self, candidate: Candidate) -> Mapping[str, "CategoricalDistribution"]:
        from optuna.distributions import CategoricalDistribution

        ranges = {
            "features": CategoricalDistribution(list(self.space.features)),
            "predictor": CategoricalDistribution(list(self.space.predictors)),
            "calibrated": CategoricalDistribution(list(self.space.held_out)),
        }
        for branch, what in self._pair_branches(candidate.features, candidate.predictor):
            for name, size in _name_axes(branch, what):
                ranges[name] = CategoricalDistribution(list(range(size)))
        return ranges

    def _draw_untried(self, tried: set[Candidate], number: int) -> Candidate | None:
        """A random untried candidate, where the sampler only repeats itself."""
        untried = [c for c in islice(self.space.all_candidates(), _WALKED) if c not in tried]
        random = np.random.default_rng((self.seed, number))
        return untried[int(random.integers(len(untried)))] if untried else None


def openers(space: Space) -> Iterator[Candidate]:
    """Every predictor on the first features, then every set of features with the first predictor.

    All with the first value of each option.
    """
    calibrated = space.held_out[0]
    features, predictors = list(space.features.values()), list(space.predictors.values())
    pairs = [(features[0], predictor) for predictor in predictors] + [
        (f, predictors[0]) for f in features[1:]
    ]
    for read, predictor in pairs:
        places = ((0,) * len(read.axes), (0,) * len(predictor.axes))
        yield Candidate(read.name, predictor.name, places, calibrated)


def load_optuna() -> Any:
    """Import optuna and silence its log.

    Raises:
        MissingExtraError: It isn't installed.
    """
    with optional_imports("the search"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _name_axes(branch: Branch, what: str) -> list[tuple[str, int]]:
    """The name of each axis, unique among the branches, and its length."""
    return [
        (f"{what} {branch.name} {axis.part} {axis.option}", len(axis.values))
        for axis in branch.axes
    ]


def _score_fold(
    bench: FoldScorer, job: tuple[Recipe, Sequence[CalibratorKind], int], progress: Progress
) -> Answer:
    del progress
    return answer(bench, *job)


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
    config, bar = config or SearchConfig(), progress or SilentProgress()
    ledger = TrialLedger(None if folder is None else folder / "trials")
    cache = None if folder is None else folder / "cache"
    bench = FoldScorer(train, tuple(states), config.folds, config.seed, config.objective, cache)
    proposer = Proposer(space, config.objective, config.seed)
    trials = {trial.number: trial for trial in ledger.read()}
    with (
        bar.task("trials", total=float(config.trials)) as advance,
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
        trials_by_future: dict[Future[Answer], SearchTrial] = {}
        unfinished = [trial for trial in self._list_trials() if trial.state == "running"]
        for _ in range(len(self.trials) - len(unfinished)):
            self.advance(note="kept")
        while True:
            while (
                len(trials_by_future) < self.pool.size
                and (trial := self._take_next(unfinished)) is not None
            ):
                trials_by_future[self._submit(trial)] = trial
            if not trials_by_future:
                return
            completed, _ = wait(trials_by_future, return_when=FIRST_COMPLETED)
            for future in completed:
                trial = self._judge(trials_by_future.pop(future), future.result())
                if trial.state == "running" and not self._is_over():
                    trials_by_future[self._submit(trial)] = trial
                elif trial.state != "running":
                    self.advance(note=self._write_note())

    def _list_trials(self) -> list[SearchTrial]:
        return [self.trials[number] for number in sorted(self.trials)]

    def _is_over(self) -> bool:
        limit = self.config.minutes
        return limit is not None and time.monotonic() - self._began > 60 * limit

    def _take_next(self, unfinished: list[SearchTrial]) -> SearchTrial | None:
        """An interrupted trial, or a new one; None when there are enough."""
        if self._is_over():
            return None
        if unfinished:
            return unfinished.pop(0)
        if len(self.trials) >= self.config.trials:
            return None
        candidate = self.proposer.propose(self._list_trials())
        if candidate is None:
            return None
        number = max(self.trials, default=-1) + 1
        return self._save(SearchTrial(number, candidate, {}))

    def _submit(self, trial: SearchTrial) -> Future[Answer]:
        recipe = self.space.recipe(trial.candidate)
        kinds = tuple(self.space.kinds(trial.candidate))
        return self.pool.submit(_score_fold, (recipe, kinds, trial.folds))

    def _judge(self, trial: SearchTrial, answer: Answer) -> SearchTrial:
        scores, seconds, why = answer
        if why:
            return self._save(replace(trial, state="failed", why=why))
        joined = {kind: (*trial.scores.get(kind, ()), score) for kind, score in scores.items()}
        trial = replace(trial, scores=joined, seconds=trial.seconds + seconds)
        if trial.folds >= self.config.folds:
            return self._save(replace(trial, state="finished"))
        return self._save(
            replace(trial, state="stopped" if self._is_hopeless(trial) else "running")
        )

    def _is_hopeless(self, trial: SearchTrial) -> bool:
        """Whether the trial is too far behind the best finished one on the same folds."""
        best = self._find_best()
        if best is None:
            return False
        objective, folds = self.config.objective, trial.folds
        behind = best.best(objective, folds) - trial.best(objective, folds)
        return bool(behind > self.config.stop_behind)

    def _find_best(self) -> SearchTrial | None:
        finished = [trial for trial in self._list_trials() if trial.state == "finished"]
        objective, folds = self.config.objective, self.config.folds
        return max(finished, key=lambda trial: trial.best(objective, folds), default=None)

    def _write_note(self) -> str:
        best = self._find_best()
        if best is None:
            return ""
        value = best.best(self.config.objective, self.config.folds)
        magnitude = abs(value) if self.config.objective == "brier" else value
        return f"best {self.config.objective} {magnitude:.4f}"

    def _save(self, trial: SearchTrial) -> SearchTrial:
        self.trials[trial.number] = trial
        self.ledger.write(trial)
        return trial


def chosen_on_other_folds(trials: Sequence[SearchTrial], objective: Objective, folds: int) -> float:
    """The score of the choice on rows that it wasn't made on, estimated from train rows alone.

    For each fold, the configuration that is best on the other folds is scored on this fold. The
    mean of these scores lacks most of the selection bias of the best mean over all folds. Stopped
    configurations are left out.

    Returns:
        The mean in the objective's own direction; NaN without a finished trial.
    """
    table = np.array(
        [
            [orient_score(score, objective) for score in scores]
            for trial in trials
            if trial.state == "finished"
            for scores in trial.scores.values()
            if np.isfinite([orient_score(score, objective) for score in scores]).all()
        ]
    )
    if not len(table):
        return float("nan")
    others = (table.sum(axis=1, keepdims=True) - table) / (folds - 1)
    value = float(np.mean(table[np.argmax(others, axis=0), np.arange(folds)]))
    return -value if objective == "brier" else value


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
        evaluation = self.evaluation
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
            "winner": {**self.winner.to_dict(), "cross_validation": self._average_scores()},
            "chosen_on_other_folds": plain(self.honest),
            "test": None
            if evaluation is None
            else {name: estimate.to_dict() for name, estimate in evaluation.headline.items()},
            "test_targets": None
            if evaluation is None
            else {
                target: {name: values[name].to_dict() for name in ("auc", "brier")}
                for target, values in evaluation.per_target.items()
            },
            "openings": list(self.openings),
            "ranking": [candidate.to_dict() for candidate in self.ranking],
            "failed": {str(t.number): t.why for t in self.trials if t.state == "failed"},
        }

    def _average_scores(self) -> dict[str, float | None]:
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
    ranking = rank_candidates(space, trials, config.objective)
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
        sources: Where encoders are found.
        progress: Reports the progress of the work.

    Raises:
        ConfigError: It was opened for another configuration.
    """
    recipe, seed = verdict.winner.recipe, verdict.config.seed
    split = sealed.split_for(recipe, seed=seed)
    dataset = sealed.open(recipe, again=again)
    fit = fit_router(
        dataset,
        states,
        config=FitConfig(recipe=recipe, resamples=verdict.config.resamples, seed=seed),
        split=split,
        sources=sources,
        progress=progress,
    )
    openings = tuple(sealed.openings)
    result = replace(verdict, evaluation=fit.evaluation, openings=openings)
    return result, fit.router
