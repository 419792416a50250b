"""Boosted trees, one ensemble per target (XGBoost, Chen and Guestrin 2016)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt
from scipy.special import expit, logit

from prefill_router.errors import ConfigError, MissingExtraError
from prefill_router.predictors.base import (
    Correctness,
    Features,
    Predictor,
    Tensors,
    check_features,
)
from prefill_router.predictors.fitted import Examples, PredictorConfig, PredictorFit
from prefill_router.predictors.registry import Entry
from prefill_router.predictors.rows import left_out_note, usable_rows
from prefill_router.predictors.saving import Saved, read_saved
from prefill_router.predictors.trees import Forest
from prefill_router.predictors.trunk.holdout import Holdout, hold_out
from prefill_router.progress import Progress, SilentProgress


@final
@dataclass(frozen=True, eq=False)
class BoostedTrees(Predictor):
    """The sigmoid of the sum of a target's trees.

    Attributes:
        names: The targets' names.
        features: How many it was fitted on.
        forest: The trees of all targets.
    """

    kind: ClassVar[str] = "xgboost"
    names: tuple[str, ...]
    features: int
    forest: Forest

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets' names, in the order of the result's columns."""
        return self.names

    @property
    def width(self) -> int:
        """How many features it was fitted on."""
        return self.features

    def correctness(self, features: Features) -> Correctness:
        """The probabilities by the trees; XGBoost isn't needed."""
        check_features(features, width=self.width)
        probability: Correctness = expit(self.forest.log_odds(features))
        return probability

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "kind": self.kind,
            "targets": list(self.names),
            "width": self.width,
            "nodes": len(self.forest.values),
            "trees": int(self.forest.roots.shape[1]),
        }

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Those of the forest."""
        return self.forest.tensors()

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "BoostedTrees":
        """The predictor of `to_dict` and `tensors`, checked.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        saved = read_saved(_Saved, config, kind=cls.kind)
        forest = Forest.from_tensors(
            tensors,
            nodes=saved.nodes,
            trees=saved.trees,
            width=saved.width,
            targets=len(saved.targets),
        )
        return cls(tuple(saved.targets), saved.width, forest)


class _Saved(Saved):
    nodes: PositiveInt
    trees: PositiveInt


@final
@dataclass(frozen=True, kw_only=True)
class BoostingConfig(PredictorConfig):
    """Options of the boosted trees.

    Attributes:
        rounds: Trees of a target, at most.
        patience: Trees without a better validation loss after which a target stops; it keeps the
            trees up to its best one.
        learning_rate: How much of each tree counts.
        depth: Of the trees, at most.
        rows: The share of the train rows that each tree sees.
        columns: The share of the features that each node chooses from.
        least_weight: Hessian that a leaf must hold, about a quarter of the rows in it.
        l2: Penalty of the leaves' squares.
        bins: Thresholds that are tried of each feature.
        validation: The share of the train rows that is held out for the validation loss.
    """

    rounds: int = 300
    patience: int = 15
    learning_rate: float = 0.05
    depth: int = 4
    rows: float = 0.8
    columns: float = 0.2
    least_weight: float = 10.0
    l2: float = 10.0
    bins: int = 64
    validation: float = 0.15

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("patience", 1), ("depth", 1), ("bins", 2)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("learning_rate", "rows", "columns"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be in (0, 1]")
        for name in ("least_weight", "l2"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 0 or more, finite")
        if not 0 < self.validation < 1:
            raise ConfigError(f"validation is {self.validation}; it must be in (0, 1)")

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Boost the trees of each target, on one core, until its validation loss stops falling.

        Raises:
            MissingExtraError: XGBoost isn't installed.
        """
        xgboost = _xgboost()
        used = usable_rows(examples)
        parts = hold_out(used.features, share=self.validation, seed=seed)
        learned = examples.learnable.tolist()
        boosters: list[bytes | None] = []
        shifts, counts = logit(examples.base_rates), []
        with (progress or SilentProgress()).task("boosting", total=len(learned)) as advance:
            for target, learnable in enumerate(learned):
                found = self._boost(xgboost, used, parts, target, seed) if learnable else None
                boosters.append(bytes(found.save_raw("json")) if found is not None else None)
                counts.append(found.num_boosted_rounds() if found is not None else 0)
                advance()
        forest = Forest.of(boosters, shifts)
        predictor = BoostedTrees(examples.targets, examples.features.shape[1], forest)
        notes = (*examples.target_notes(), *left_out_note(examples, len(used.features)))
        return PredictorFit(predictor, notes, {"trees": counts})

    def _boost(self, xgboost: Any, used: Examples, parts: Holdout, target: int, seed: int) -> Any:
        """The booster of one target, up to its best tree."""
        labels = used.correct[:, target]
        fit, held = (rows[~np.isnan(labels[rows])] for rows in (parts.fit, parts.held))
        if not len(fit) or not len(held):
            fit = held = np.flatnonzero(~np.isnan(labels))
        train = xgboost.QuantileDMatrix(
            used.features[fit], label=labels[fit], max_bin=self.bins, nthread=1
        )
        validation = xgboost.QuantileDMatrix(
            used.features[held], label=labels[held], max_bin=self.bins, nthread=1, ref=train
        )
        booster = xgboost.train(
            self._parameters(used.base_rates[target], seed),
            train,
            num_boost_round=self.rounds,
            evals=[(validation, "validation")],
            early_stopping_rounds=self.patience,
            verbose_eval=False,
        )
        return booster[: booster.best_iteration + 1]

    def _parameters(self, rate: float, seed: int) -> dict[str, Any]:
        return {
            "objective": "binary:logistic",  # takes soft labels as they are
            "eval_metric": "logloss",
            "base_score": float(rate),
            "tree_method": "hist",
            "max_bin": self.bins,
            "learning_rate": self.learning_rate,
            "max_depth": self.depth,
            "subsample": self.rows,
            "colsample_bynode": self.columns,
            "min_child_weight": self.least_weight,
            "reg_lambda": self.l2,
            "nthread": 1,  # the same trees on every machine
            "seed": seed,
            "verbosity": 0,
        }


def _xgboost() -> Any:
    try:
        import xgboost
    except ImportError:
        raise MissingExtraError(
            "xgboost-cpu", extra="xgboost", needed_for="fitting boosted trees"
        ) from None
    return xgboost


ENTRY = Entry(BoostingConfig, BoostedTrees, "XGBoost", "Chen and Guestrin 2016, XGBoost")
