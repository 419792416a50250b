"""The scores of recipes on each fold of the train rows."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from prefill_router import files
from prefill_router.activations import Activations
from prefill_router.calibration import CalibratorKind, fit_calibrator
from prefill_router.cost import CostEstimator, fit_output
from prefill_router.data import Part, RoutingDataset, prompt_text, split, stratified_folds
from prefill_router.errors import CorruptError, DataError, FitError, MissingExtraError
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
from prefill_router.fitting.inputs import folds_of
from prefill_router.fitting.objectives import OBJECTIVES, Objective
from prefill_router.fitting.recipe import Recipe
from prefill_router.policy import Predictions
from prefill_router.predictors import Examples
from prefill_router.serialization import read_tensors
from prefill_router.short_repr import short_repr

CALIBRATION: Mapping[Part, float] = {"train": 15 / 17, "calibration": 2 / 17}
"""How the rows outside the test part are divided for a calibrator: 75 to 10."""
Columns = NDArray[np.float32]
"""Feature columns of some rows; parts differ in their number of rows."""
_PARTS = ("fit", "held", "judged")


@final
@dataclass(frozen=True, eq=False)
class TrainOnly:
    """Rows that may be searched on.

    Attributes:
        dataset: The rows.
        withheld: The ids of the test part, none of which may be among the rows.

    Raises:
        DataError: Test rows are among them.
    """

    dataset: RoutingDataset
    withheld: frozenset[str] = field(repr=False)

    def __post_init__(self) -> None:
        leaked = sum(query_id in self.withheld for query_id in self.dataset.query_ids)
        if leaked:
            raise DataError(
                f"{leaked} of {len(self.dataset)} rows to search on belong to the test part; "
                "leave them out"
            )


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
        objectives: dict[str, Any] = {name: plain(getattr(self, name)) for name in OBJECTIVES}
        return {**objectives, "aucs": [plain(value) for value in self.aucs]}

    @classmethod
    def from_dict(cls, value: Any) -> "FoldScore":
        """The score of `to_dict`; raises KeyError, TypeError or ValueError where it isn't one."""
        auc, brier, headroom = (_read_number(value[n]) for n in ("auc", "brier", "headroom"))
        aucs = tuple(_read_number(auc) for auc in value["aucs"])
        return cls(auc, brier, headroom, aucs, _read_number(value.get("choice")))


@final
@dataclass(frozen=True, eq=False)
class FoldRows:
    """The rows of one fold.

    Attributes:
        fit: Rows that everything but the calibrator is fitted on.
        calibration: Rows that the calibrator is fitted on; empty without a calibrator.
        judged: The fold's validation rows, which no fit sees.
    """

    fit: RoutingDataset
    calibration: RoutingDataset
    judged: RoutingDataset


@final
@short_repr
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
        fit, calibration, judged = self._read_features(recipe, rows, fold)
        names = rows.fit.pool.names
        fitted = recipe.predictor.fit(
            Examples(fit, rows.fit.correct, names, _list_groups(rows.fit)), seed=self.seed
        )
        raw = fitted.predictor.correctness(judged)
        scores = {}
        for kind in kinds:
            after = raw
            if kind != "none":
                calibration_fit = fit_calibrator(
                    kind, fitted.predictor.correctness(calibration), rows.calibration.correct, names
                )
                after = calibration_fit.calibrator.calibrate(raw)
            scores[str(kind)] = self._score_predictions(rows, after, recipe, fit, judged)
        return scores, time.monotonic() - began

    def rows(self, fold: int, *, calibrated: bool) -> FoldRows:
        """The rows of a fold."""
        if (fold, calibrated) not in self._rows:
            self._rows[fold, calibrated] = self._draw_rows(fold, calibrated)
        return self._rows[fold, calibrated]

    def _draw_rows(self, fold: int, calibrated: bool) -> FoldRows:
        dataset = self.train.dataset
        place = stratified_folds(dataset, count=self.folds, seed=self.seed)
        ids = np.array(dataset.query_ids, dtype=object)
        rest = dataset.select(ids[place != fold].tolist())
        judged = dataset.select(ids[place == fold].tolist())
        if not calibrated:
            return FoldRows(rest, rest.select([]), judged)
        parts = split(rest, seed=self.seed, fractions=CALIBRATION)
        return FoldRows(rest.select(parts["train"]), rest.select(parts["calibration"]), judged)

    def _read_features(self, recipe: Recipe, rows: FoldRows, fold: int) -> list[Columns]:
        parts = [self._read_family(family, rows, fold) for family in recipe.features]
        return [np.concatenate(side, axis=1) for side in zip(*parts, strict=True)]

    def _read_family(self, config: FamilyConfig, rows: FoldRows, fold: int) -> list[Columns]:
        made_by = sorted(str(store.provenance) for store in self.states)
        rows_key = [fold, bool(len(rows.calibration)), self.folds, self.seed]
        what = [FAMILIES.kind_of(config), repr(config), *rows_key, made_by]
        name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16] + ".safetensors"
        columns = (
            self._columns.get(name)
            if self.cache is None
            else _read_columns(self.cache / name, rows)
        )
        if columns is not None:
            return columns
        family = config.fit(rows.fit, self.states, seed=self.seed)
        columns = [
            family.read(PromptStates.of_dataset(part, self.states))
            if len(part)
            else np.empty((0, family.width), dtype=np.float32)
            for part in (rows.fit, rows.calibration, rows.judged)
        ]
        if self.cache is None:
            self._columns[name] = columns
        else:
            _write_columns(self.cache / name, columns)
        return columns

    def _score_predictions(
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
            predictions = self._make_predictions(rows, correctness, recipe, fit, judged)
            trial = Trial.join(predictions, rows.judged)
            headroom = float(Scorer(trial).score(once).headline["headroom_captured"][0])
        choice = PairRankings.of(correctness, correct).scores(once)["choice_auc"]
        return FoldScore(
            float(macro_mean(aucs)[0]),
            float(brier[0]),
            headroom,
            tuple(aucs[0].tolist()),
            float(choice[0]),
        )

    def _make_predictions(
        self,
        rows: FoldRows,
        correctness: NDArray[np.float64],
        recipe: Recipe,
        fit: Columns,
        judged: Columns,
    ) -> Predictions:
        """The predictions with the judged rows' estimated costs, fitted on the rows of the fit."""
        fit_tokens, judged_tokens = self._count_tokens(rows.fit), self._count_tokens(rows.judged)
        costs, expected = CostEstimator.fit(rows.fit, fit_tokens), None
        if recipe.cost == "predicted":
            folds = folds_of(rows.fit, seed=self.seed)
            head = fit_output(fit, rows.fit, fit_tokens, folds, costs).head
            expected = head.expect(judged, judged_tokens).mean
        inputs = rows.judged.input_tokens
        return Predictions(
            query_ids=rows.judged.query_ids,
            targets=rows.judged.pool.names,
            correctness=correctness,
            estimated_cost=costs.estimate(judged_tokens, input_tokens=inputs, expected=expected),
            scale=costs.scale,
        )

    def _count_tokens(self, part: RoutingDataset) -> NDArray[np.int64]:
        """The length of each prompt; each target's own length is this times a fitted ratio."""
        if self.states:
            return self.states[0].tokens(part.prompt_keys)
        return np.array([1 + len(prompt_text(q.prompt)) for q in part.queries], dtype=np.int64)


def _list_groups(part: RoutingDataset) -> tuple[str, ...]:
    return tuple(" / ".join(filter(None, (q.benchmark, q.domain))) for q in part.queries)


def _write_columns(place: Path, parts: list[Columns]) -> None:
    with files.replacing_file(place) as temporary:
        save_file(dict(zip(_PARTS, parts, strict=True)), temporary)


def _read_columns(place: Path, rows: FoldRows) -> list[Columns] | None:
    """The kept columns; None where there are none or their shape doesn't match."""
    try:
        columns = read_tensors(place).tensors
    except CorruptError:
        return None
    sizes = dict(zip(_PARTS, (len(rows.fit), len(rows.calibration), len(rows.judged)), strict=True))
    if set(columns) != set(_PARTS) or any(len(columns[n]) != size for n, size in sizes.items()):
        return None
    return [columns[name] for name in _PARTS]


def _read_number(value: Any) -> float:
    return float("nan") if value is None else float(value)


Answer = tuple[dict[str, FoldScore], float, str]
"""Scores by kind of calibration, seconds, and the reason where there are no scores."""


def answer(bench: FoldScorer, recipe: Recipe, kinds: Sequence[CalibratorKind], fold: int) -> Answer:
    """The scores, or the reason why there are none."""
    try:
        return *bench.score(recipe, kinds, fold), ""
    except (FitError, MissingExtraError) as error:
        return {}, 0.0, str(error)
