"""The scores of candidates on each fold, the trials that they make up, and the trials' ranking.

A score is computed once and kept in a file, from which an interrupted search goes on.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from prefill_router import files
from prefill_router.activations import Activations
from prefill_router.calibration import CalibratorKind, fit_calibrator
from prefill_router.cost import CostEstimator, fit_output
from prefill_router.data import RoutingDataset, prompt_text, split, stratified_folds
from prefill_router.errors import CorruptError
from prefill_router.evaluation import (
    PairRankings,
    Ranking,
    Scorer,
    Trial,
    auc_by_target,
    known_mean,
    macro_mean,
    ones,
    plain,
)
from prefill_router.features import FAMILIES, FamilyConfig, PromptStates
from prefill_router.fitting import Recipe, folds_of
from prefill_router.policy import Predictions
from prefill_router.predictors import Examples
from prefill_router.serialization import read_tensors
from prefill_router_lab.search.holdout_guard import CALIBRATION, TrainOnly
from prefill_router_lab.search.space import Candidate, Space, key_of

Objective = Literal["choice", "auc", "brier", "headroom"]
WORDS: Mapping[Objective, str] = {
    "choice": "choice AUC",
    "auc": "mean AUC",
    "brier": "Brier score",
    "headroom": "headroom captured",
}
OBJECTIVES: tuple[Objective, ...] = ("choice", "auc", "brier", "headroom")
Columns = NDArray[np.float32]
"""Feature columns of some rows; parts differ in their number of rows."""
_PARTS = ("fit", "held", "judged")


@final
@dataclass(frozen=True)
class FoldScore:
    """One configuration on one fold's validation rows.

    Attributes:
        auc: Mean AUC over targets; NaN where no target has both classes.
        brier: Mean Brier score over targets.
        headroom: Headroom captured; NaN unless it is the objective.
        aucs: Each target's AUC.
        choice: Choice AUC, the mean over pairs of targets; NaN where it isn't defined for any pair.
    """

    auc: float
    brier: float
    headroom: float
    aucs: tuple[float, ...]
    choice: float = np.nan

    def of(self, objective: Objective) -> float:
        """The metric of the objective."""
        if objective == "choice" and np.isnan(self.choice):
            return self.auc  # undefined by the fold's labels, so for every candidate alike
        value: float = getattr(self, objective)
        return value

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; null where a number isn't defined."""
        one: dict[str, Any] = {name: plain(getattr(self, name)) for name in OBJECTIVES}
        return {**one, "aucs": [plain(value) for value in self.aucs]}

    @classmethod
    def from_dict(cls, value: Any) -> "FoldScore":
        """The score of `to_dict`; raises KeyError, TypeError or ValueError where it isn't one."""
        auc, brier, headroom = (_number(value[n]) for n in ("auc", "brier", "headroom"))
        aucs = tuple(_number(one) for one in value["aucs"])
        return cls(auc, brier, headroom, aucs, _number(value.get("choice")))


@final
@dataclass(frozen=True, eq=False)
class FoldRows:
    """The rows of one fold.

    Attributes:
        fit: Rows that everything but the calibrator is fitted on.
        held: Rows that the calibrator is fitted on; empty without a calibrator.
        judged: The fold's validation rows, which no fit sees.
    """

    fit: RoutingDataset
    held: RoutingDataset
    judged: RoutingDataset


@final
@dataclass(frozen=True, eq=False)
class FoldScorer:
    """Scores recipes by cross-validation on train rows.

    Attributes:
        train: The rows; no other rows are accessible from here.
        states: Hidden states for the features.
        folds: Number of folds.
        seed: Random seed of the folds, the held-out rows and every fit.
        objective: The objective; headroom is computed only if it is the objective.
        cache: Folder that keeps feature columns; None keeps them in memory only.
    """

    train: TrainOnly
    states: tuple[Activations, ...]
    folds: int
    seed: int
    objective: Objective
    cache: Path | None = None
    _rows: dict[tuple[int, bool], FoldRows] = field(default_factory=dict, repr=False)
    _columns: dict[str, list[Columns]] = field(default_factory=dict, repr=False)

    def score(
        self, recipe: Recipe, kinds: Sequence[CalibratorKind], fold: int
    ) -> tuple[dict[str, FoldScore], float]:
        """Fit a recipe once on a fold and score it with each of these calibrations.

        Returns:
            The scores by kind of calibration, and the duration in seconds.

        Raises:
            FitError: The recipe can't be fitted on these rows.
            MissingExtraError: A package isn't installed.
        """
        began = time.monotonic()
        rows = self.rows(fold, calibrated=any(kind != "none" for kind in kinds))
        fit, held, judged = self._features(recipe, rows, fold)
        names = rows.fit.pool.names
        fitted = recipe.predictor.fit(
            Examples(fit, rows.fit.correct, names, _groups(rows.fit)), seed=self.seed
        )
        raw = fitted.predictor.correctness(judged)
        scores = {}
        for kind in kinds:
            after = raw
            if kind != "none":
                found = fit_calibrator(
                    kind, fitted.predictor.correctness(held), rows.held.correct, names
                )
                after = found.calibrator.calibrate(raw)
            scores[str(kind)] = self._judged(rows, after, recipe, fit, judged)
        return scores, time.monotonic() - began

    def rows(self, fold: int, *, calibrated: bool) -> FoldRows:
        """The rows of a fold."""
        if (fold, calibrated) not in self._rows:
            self._rows[fold, calibrated] = self._drawn(fold, calibrated)
        return self._rows[fold, calibrated]

    def _drawn(self, fold: int, calibrated: bool) -> FoldRows:
        dataset = self.train.dataset
        place = stratified_folds(dataset, count=self.folds, seed=self.seed)
        ids = np.array(dataset.query_ids, dtype=object)
        rest = dataset.select(ids[place != fold].tolist())
        judged = dataset.select(ids[place == fold].tolist())
        if not calibrated:
            return FoldRows(rest, rest.select([]), judged)
        drawn = split(rest, seed=self.seed, fractions=CALIBRATION)
        return FoldRows(rest.select(drawn["train"]), rest.select(drawn["calibration"]), judged)

    def _features(self, recipe: Recipe, rows: FoldRows, fold: int) -> list[Columns]:
        parts = [self._family(one, rows, fold) for one in recipe.features]
        return [np.concatenate(side, axis=1) for side in zip(*parts, strict=True)]

    def _family(self, config: FamilyConfig, rows: FoldRows, fold: int) -> list[Columns]:
        made_by = sorted(str(store.provenance) for store in self.states)
        drawn = [fold, bool(len(rows.held)), self.folds, self.seed]
        what = [FAMILIES.kind_of(config), repr(config), *drawn, made_by]
        name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16] + ".safetensors"
        kept = (
            self._columns.get(name)
            if self.cache is None
            else _read_columns(self.cache / name, rows)
        )
        if kept is not None:
            return kept
        family = config.fit(rows.fit, self.states, seed=self.seed)
        made = [
            family.read(PromptStates.of_dataset(part, self.states))
            if len(part)
            else np.empty((0, family.width), dtype=np.float32)
            for part in (rows.fit, rows.held, rows.judged)
        ]
        if self.cache is None:
            self._columns[name] = made
        else:
            _keep(self.cache / name, made)
        return made

    def _judged(
        self,
        rows: FoldRows,
        correctness: NDArray[np.float64],
        recipe: Recipe,
        fit: Columns,
        judged: Columns,
    ) -> FoldScore:
        correct, once = rows.judged.correct, ones(len(rows.judged))
        columns = zip(correctness.T, correct.T, strict=True)
        aucs = auc_by_target(tuple(Ranking.of(*column) for column in columns), once)
        brier = macro_mean(known_mean(once, (correctness - correct) ** 2))
        headroom = np.nan
        if self.objective == "headroom":
            found = self._predictions(rows, correctness, recipe, fit, judged)
            trial = Trial.join(found, rows.judged)
            headroom = float(Scorer(trial).score(once).headline["headroom_captured"][0])
        choice = PairRankings.of(correctness, correct).scores(once)["choice_auc"]
        return FoldScore(
            float(macro_mean(aucs)[0]),
            float(brier[0]),
            headroom,
            tuple(aucs[0].tolist()),
            float(choice[0]),
        )

    def _predictions(
        self,
        rows: FoldRows,
        correctness: NDArray[np.float64],
        recipe: Recipe,
        fit: Columns,
        judged: Columns,
    ) -> Predictions:
        """The predictions with the judged rows' estimated costs, fitted on the rows of the fit."""
        given, asked = self._tokens(rows.fit), self._tokens(rows.judged)
        costs, expected = CostEstimator.fit(rows.fit, given), None
        if recipe.cost == "predicted":
            folds = folds_of(rows.fit, seed=self.seed)
            head = fit_output(fit, rows.fit, given, folds, costs).head
            expected = head.expect(judged, asked).mean
        inputs = rows.judged.input_tokens
        return Predictions(
            query_ids=rows.judged.query_ids,
            targets=rows.judged.pool.names,
            correctness=correctness,
            estimated_cost=costs.estimate(asked, input_tokens=inputs, expected=expected),
            scale=costs.scale,
        )

    def _tokens(self, part: RoutingDataset) -> NDArray[np.int64]:
        """The length of each prompt; each target's own length is this times a fitted ratio."""
        if self.states:
            return self.states[0].tokens(part.prompt_keys)
        return np.array([1 + len(prompt_text(q.prompt)) for q in part.queries], dtype=np.int64)


def _groups(part: RoutingDataset) -> tuple[str, ...]:
    return tuple(" / ".join(filter(None, (q.benchmark, q.domain))) for q in part.queries)


def _keep(place: Path, parts: list[Columns]) -> None:
    with files.replacing_file(place) as temporary:
        save_file(dict(zip(_PARTS, parts, strict=True)), temporary)


def _read_columns(place: Path, rows: FoldRows) -> list[Columns] | None:
    """The kept columns; None where there are none or their shape doesn't match."""
    try:
        held = read_tensors(place).tensors
    except CorruptError:
        return None
    sizes = dict(zip(_PARTS, (len(rows.fit), len(rows.held), len(rows.judged)), strict=True))
    if set(held) != set(_PARTS) or any(len(held[n]) != size for n, size in sizes.items()):
        return None
    return [held[name] for name in _PARTS]


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


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
            float(np.mean([worth(score, objective) for score in scores[:folds]]))
            for scores in self.scores.values()
            if scores
        ]
        return max((one for one in means if np.isfinite(one)), default=-np.inf)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "number": self.number,
            "features": self.candidate.features,
            "predictor": self.candidate.predictor,
            "places": [list(one) for one in self.candidate.places],
            "calibrated": self.candidate.calibrated,
            "scores": {k: [one.to_dict() for one in v] for k, v in self.scores.items()},
            "seconds": self.seconds,
            "state": self.state,
            "why": self.why,
        }

    @classmethod
    def from_dict(cls, value: Any) -> "SearchTrial":
        """The trial of `to_dict`; raises KeyError, TypeError or ValueError where it isn't one."""
        read, predictor = value["places"]
        state: State = value["state"]
        if state not in get_args(State):
            raise ValueError(state)
        return cls(
            int(value["number"]),
            Candidate(
                str(value["features"]),
                str(value["predictor"]),
                (tuple(map(int, read)), tuple(map(int, predictor))),
                bool(value["calibrated"]),
            ),
            {k: tuple(map(FoldScore.from_dict, v)) for k, v in value["scores"].items()},
            float(value["seconds"]),
            state,
            str(value["why"]),
        )


def worth(score: FoldScore, objective: Objective) -> float:
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


def ranked(
    space: Space, trials: Sequence[SearchTrial], objective: Objective
) -> list[RankedCandidate]:
    """All configurations that were tried, the best first; stopped ones come last.

    Ties (to 1e-6) are broken by the Brier score, which calibration changes even where it doesn't
    change the AUC.
    """
    found = []
    for trial in trials:
        for kind in space.kinds(trial.candidate):
            scores = trial.scores.get(kind, ())
            if scores and np.isfinite(np.mean([worth(s, objective) for s in scores])):
                found.append((trial, kind, scores))
    found.sort(key=lambda one: _order(one[0], one[1], one[2], objective))
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
        for place, (trial, kind, scores) in enumerate(found, 1)
    ]


def _order(
    trial: SearchTrial, kind: str, scores: tuple[FoldScore, ...], objective: Objective
) -> tuple[Any, ...]:
    value = float(np.mean([worth(score, objective) for score in scores]))
    brier = float(np.mean([score.brier for score in scores]))
    return (trial.state != "finished", -round(value, 6), brier, trial.number, kind)
