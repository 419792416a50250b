"""Proposals of candidates: first every predictor and every set of features, then optuna's TPE.

A proposal depends only on the seed and on the earlier trials, so that an interrupted search
continues as if it had never stopped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, final

import numpy as np

from prefill_router.lazy_imports import optional_imports
from prefill_router.studies.search.fold_scores import Objective
from prefill_router.studies.search.space import Branch, Candidate, Space
from prefill_router.studies.search.trials import SearchTrial

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
        taken = {trial.candidate for trial in trials}
        for candidate in openers(self.space):
            if candidate not in taken:
                return candidate
        if len(taken) >= self.space.candidates:
            return None
        study = self._study(trials)
        for _ in range(_ATTEMPTS):
            found = self._asked(study.ask())
            if found not in taken:
                return found
        return self._drawn(taken, len(trials))

    def _study(self, trials: Sequence[SearchTrial]) -> Any:
        optuna = load_optuna()
        seed = np.random.SeedSequence((self.seed, len(trials))).generate_state(1)[0]
        sampler = optuna.samplers.TPESampler(seed=int(seed), n_startup_trials=0)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in trials:
            value = trial.best(self.objective, trial.folds)
            if np.isfinite(value):
                study.add_trial(self._told(optuna, trial, value))
        return study

    def _told(self, optuna: Any, trial: SearchTrial, value: float) -> Any:
        ranges = self._ranges(trial.candidate)
        return optuna.trial.create_trial(
            params=self._params(trial.candidate), distributions=ranges, value=value
        )

    def _asked(self, asked: Any) -> Candidate:
        features = asked.suggest_categorical("features", list(self.space.features))
        predictor = asked.suggest_categorical("predictor", list(self.space.predictors))
        calibrated = asked.suggest_categorical("calibrated", list(self.space.held_out))
        places = tuple(
            tuple(
                int(asked.suggest_categorical(name, list(range(size))))
                for name, size in _axes(branch, what)
            )
            for branch, what in self._branches(features, predictor)
        )
        return Candidate(features, predictor, (places[0], places[1]), bool(calibrated))

    def _branches(self, features: str, predictor: str) -> list[tuple[Branch, str]]:
        return [
            (self.space.features[features], "features"),
            (self.space.predictors[predictor], "predictor"),
        ]

    def _params(self, candidate: Candidate) -> dict[str, Any]:
        params: dict[str, Any] = {
            "features": candidate.features,
            "predictor": candidate.predictor,
            "calibrated": candidate.calibrated,
        }
        branches = self._branches(candidate.features, candidate.predictor)
        for (branch, what), places in zip(branches, candidate.places, strict=True):
            names = [name for name, _ in _axes(branch, what)]
            params |= dict(zip(names, places, strict=True))
        return params

    def _ranges(self, candidate: Candidate) -> Mapping[str, "CategoricalDistribution"]:
        from optuna.distributions import CategoricalDistribution

        ranges = {
            "features": CategoricalDistribution(list(self.space.features)),
            "predictor": CategoricalDistribution(list(self.space.predictors)),
            "calibrated": CategoricalDistribution(list(self.space.held_out)),
        }
        for branch, what in self._branches(candidate.features, candidate.predictor):
            for name, size in _axes(branch, what):
                ranges[name] = CategoricalDistribution(list(range(size)))
        return ranges

    def _drawn(self, taken: set[Candidate], number: int) -> Candidate | None:
        """A random untried candidate, where the sampler only repeats itself."""
        left = [c for c in islice(self.space.all_candidates(), _WALKED) if c not in taken]
        random = np.random.default_rng((self.seed, number))
        return left[int(random.integers(len(left)))] if left else None


def openers(space: Space) -> Iterator[Candidate]:
    """Every predictor on the first features, then every set of features with the first predictor.

    All with the first value of each option.
    """
    held = space.held_out[0]
    features, predictors = list(space.features.values()), list(space.predictors.values())
    pairs = [(features[0], one) for one in predictors] + [(f, predictors[0]) for f in features[1:]]
    for read, predictor in pairs:
        places = ((0,) * len(read.axes), (0,) * len(predictor.axes))
        yield Candidate(read.name, predictor.name, places, held)


def load_optuna() -> Any:
    """Import optuna and silence its log.

    Raises:
        MissingExtraError: It isn't installed.
    """
    with optional_imports("the search"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _axes(branch: Branch, what: str) -> list[tuple[str, int]]:
    """The name of each axis, unique among the branches, and its length."""
    return [
        (f"{what} {branch.name} {axis.part} {axis.option}", len(axis.values))
        for axis in branch.axes
    ]
