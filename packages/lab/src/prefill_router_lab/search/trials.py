"""The trials of a search, fold by fold, and their ranking.

A trial is kept in a file, from which an interrupted search goes on.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final, get_args

import numpy as np

from prefill_router import files
from prefill_router.calibration import CalibratorKind
from prefill_router.errors import CorruptError
from prefill_router.fitting import FoldScore, Objective, Recipe
from prefill_router_lab.search.space import Candidate, Space, key_of

State = Literal["running", "finished", "stopped", "failed"]


@final
@dataclass(frozen=True)
class SearchTrial:
    """The trial of one candidate, fold by fold.

    Attributes:
        number: Number from 0, in order of start.
        candidate: The candidate.
        scores: Scores by kind of calibration, one per finished fold.
        seconds: Duration of its folds.
        state: `stopped`: too far behind; `failed`: can't be fitted.
        why: The reason of a failure.
    """

    number: int
    candidate: Candidate
    scores: Mapping[str, tuple[FoldScore, ...]]
    seconds: float = 0.0
    state: State = "running"
    why: str = ""

    @property
    def folds(self) -> int:
        """The number of finished folds."""
        return len(next(iter(self.scores.values()), ()))

    def best(self, objective: Objective, folds: int) -> float:
        """Its best calibration's mean over the first folds, higher is better; -inf for none."""
        means = [
            float(np.mean([orient_score(score, objective) for score in scores[:folds]]))
            for scores in self.scores.values()
            if scores
        ]
        return max((mean for mean in means if np.isfinite(mean)), default=-np.inf)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "number": self.number,
            "features": self.candidate.features,
            "predictor": self.candidate.predictor,
            "places": [list(places) for places in self.candidate.places],
            "calibrated": self.candidate.calibrated,
            "scores": {k: [score.to_dict() for score in v] for k, v in self.scores.items()},
            "seconds": self.seconds,
            "state": self.state,
            "why": self.why,
        }

    @classmethod
    def from_dict(cls, value: Any) -> "SearchTrial":
        """The trial of `to_dict`; raises KeyError, TypeError or ValueError where it isn't one."""
        feature_places, predictor_places = value["places"]
        state: State = value["state"]
        if state not in get_args(State):
            raise ValueError(state)
        return cls(
            int(value["number"]),
            Candidate(
                str(value["features"]),
                str(value["predictor"]),
                (tuple(map(int, feature_places)), tuple(map(int, predictor_places))),
                bool(value["calibrated"]),
            ),
            {k: tuple(map(FoldScore.from_dict, v)) for k, v in value["scores"].items()},
            float(value["seconds"]),
            state,
            str(value["why"]),
        )


def orient_score(score: FoldScore, objective: Objective) -> float:
    """The objective as a number of which higher is better."""
    return -score.of(objective) if objective == "brier" else score.of(objective)


@final
@dataclass(frozen=True, eq=False)
class TrialLedger:
    """A folder of trials.

    Attributes:
        folder: The folder; None keeps nothing.
    """

    folder: Path | None

    def write(self, trial: SearchTrial) -> None:
        """Write a trial, replacing its earlier state."""
        if self.folder is not None:
            files.write_json(self.folder / f"{trial.number:05d}.json", trial.to_dict())

    def read(self) -> list[SearchTrial]:
        """The trials in the folder, by number.

        Raises:
            CorruptError: A file is damaged.
        """
        if self.folder is None:
            return []
        return [_read_trial(path) for path in sorted(self.folder.glob("[0-9]*.json"))]


def _read_trial(path: Path) -> SearchTrial:
    try:
        return SearchTrial.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CorruptError(
            f"{path} isn't what was written; remove it, and its candidate is tried again"
        ) from None


@final
@dataclass(frozen=True)
class RankedCandidate:
    """One configuration in the ranking.

    Attributes:
        rank: Rank from 1.
        trial: The number of its trial.
        features: The name of its features.
        predictor: The name of its predictor.
        calibration: The kind of its calibration.
        recipe: The whole recipe.
        scores: One score per finished fold.
        state: State of its trial; only a `finished` one can win.
    """

    rank: int
    trial: int
    features: str
    predictor: str
    calibration: CalibratorKind
    recipe: Recipe
    scores: tuple[FoldScore, ...]
    state: State

    @property
    def key(self) -> str:
        """A short name of the configuration."""
        return key_of(self.recipe)

    def mean(self, number: Objective) -> float:
        """The mean over its folds."""
        return float(np.mean([score.of(number) for score in self.scores]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rank": self.rank,
            "trial": self.trial,
            "configuration": self.key,
            "features": self.features,
            "predictor": self.predictor,
            "calibration": self.calibration,
            "recipe": self.recipe.to_dict(),
            "scores": [score.to_dict() for score in self.scores],
            "state": self.state,
        }


def rank_candidates(
    space: Space, trials: Sequence[SearchTrial], objective: Objective
) -> list[RankedCandidate]:
    """All configurations that were tried, the best first; stopped ones come last.

    Ties (to 1e-6) are broken by the Brier score, which calibration changes even where it doesn't
    change the AUC.
    """
    entries = []
    for trial in trials:
        for kind in space.kinds(trial.candidate):
            scores = trial.scores.get(kind, ())
            if scores and np.isfinite(np.mean([orient_score(s, objective) for s in scores])):
                entries.append((trial, kind, scores))
    entries.sort(key=lambda entry: _make_sort_key(entry[0], entry[1], entry[2], objective))
    return [
        RankedCandidate(
            place,
            trial.number,
            trial.candidate.features,
            trial.candidate.predictor,
            kind,
            space.recipe(trial.candidate, kind),
            scores,
            trial.state,
        )
        for place, (trial, kind, scores) in enumerate(entries, 1)
    ]


def _make_sort_key(
    trial: SearchTrial, kind: str, scores: tuple[FoldScore, ...], objective: Objective
) -> tuple[Any, ...]:
    value = float(np.mean([orient_score(score, objective) for score in scores]))
    brier = float(np.mean([score.brier for score in scores]))
    return (trial.state != "finished", -round(value, 6), brier, trial.number, kind)
