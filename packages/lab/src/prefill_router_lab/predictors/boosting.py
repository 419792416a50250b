"""Boosted trees, one ensemble per target (XGBoost, Chen and Guestrin 2016).

The trees are plain arrays: read from XGBoost once, and evaluated with NumPy alone. So a router can
be used without XGBoost, and XGBoost's parser never reads downloaded files.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Float32, Float64, Int32
from numpy.typing import NDArray
from pydantic import PositiveInt
from scipy.special import expit, logit

from prefill_router.errors import ConfigError
from prefill_router.lazy_imports import optional_imports
from prefill_router.options import Count, Fraction, NotNegative, Several, Validation
from prefill_router.predictors import (
    Correctness,
    Examples,
    Features,
    Holdout,
    Predictor,
    PredictorConfig,
    PredictorEntry,
    PredictorFit,
    check_features,
    hold_out,
    left_out_note,
    usable_rows,
)
from prefill_router.progress import Progress, SilentProgress
from prefill_router.serialization import Part, Saved

LEAF = -1
_CELLS = 1 << 20  # rows times trees per batch; bounds the memory


@final
@dataclass(frozen=True, eq=False)
class Forest(Part):
    """The trees of all targets.

    Attributes:
        nodes: For each node the feature that it splits on, or `LEAF`. The child if the feature is
            below the node's value, and the other child, both at later positions.
        values: A node's threshold, or a leaf's log-odds.
        roots: The position of each tree's root, and the tree's target; trees are grouped by target.
        shifts: The initial log-odds of each target.
    """

    axes: ClassVar[Mapping[str, str]] = {"node": "nodes", "tree": "trees"}
    nodes: Int32[NDArray[np.int32], "3 node"]
    values: Float32[NDArray[np.float32], " node"]
    roots: Int32[NDArray[np.int32], "2 tree"]
    shifts: Float32[NDArray[np.float32], " target"]

    @classmethod
    def of(
        cls, boosters: Sequence[bytes | None], shifts: Float64[NDArray[np.float64], " target"]
    ) -> "Forest":
        """The forest of XGBoost's boosters.

        Args:
            boosters: The booster of each target as JSON; None for a target without trees.
            shifts: The initial log-odds of each target.
        """
        nodes: list[NDArray[np.int32]] = []
        values: list[NDArray[np.float32]] = []
        roots: list[tuple[int, int]] = []
        count = 0
        for target, booster in enumerate(boosters):
            for tree in _read_trees(booster) if booster else ():
                roots.append((count, target))
                tree_nodes, tree_values = _read_arrays(tree, count)
                nodes.append(tree_nodes)
                values.append(tree_values)
                count += len(tree_values)
        return cls(
            np.concatenate(nodes, axis=1),
            np.concatenate(values),
            np.array(roots, np.int32).T.copy(),
            shifts.astype(np.float32),
        )

    def log_odds(self, features: Features) -> Float64[NDArray[np.float64], "query target"]:
        """The sum of the leaves that each query reaches, for each target."""
        result = np.empty((len(features), len(self.shifts)))
        step = max(1, _CELLS // self.roots.shape[1])
        for start in range(0, len(features), step):
            leaves = self._find_leaves(features[start : start + step])
            result[start : start + step] = self.values.astype(np.float64)[leaves] @ self._member
        result += self.shifts
        return result

    def _find_leaves(self, features: Features) -> NDArray[np.intp]:
        feature, below, above = self.nodes.astype(np.intp)
        rows = np.arange(len(features))[:, None]
        place = np.tile(self.roots[0].astype(np.intp), (len(features), 1))
        while (feature[place] != LEAF).any():
            split = feature[place]
            is_below = features[rows, np.maximum(split, 0)] < self.values[place]
            place = np.where(split == LEAF, place, np.where(is_below, below[place], above[place]))
        return place

    @cached_property
    def _member(self) -> Float64[NDArray[np.float64], "tree target"]:
        return np.asarray(self.roots[1][:, None] == np.arange(len(self.shifts)), np.float64)

    def check_paths(self, width: int) -> None:
        """Check that every path through a tree ends, and splits on one of `width` features.

        Raises:
            ConfigError: A path doesn't.
        """
        feature, below, above = self.nodes
        rows = np.arange(len(feature))
        inner = feature != LEAF
        goes_forward = all(
            ((to > rows) & (to < len(feature)))[inner].all() for to in (below, above)
        )  # so that every path ends
        start, target = self.roots
        is_valid = (
            goes_forward
            and ((feature >= LEAF) & (feature < width)).all()
            and ((start >= 0) & (start < len(feature))).all()
            and ((target >= 0) & (target < len(self.shifts))).all()
        )
        if not is_valid:
            raise ConfigError("its trees have invalid children, features or targets")


def _read_trees(saved: bytes) -> list[dict[str, Any]]:
    trees: list[dict[str, Any]] = json.loads(saved)["learner"]["gradient_booster"]["model"]["trees"]
    return trees


def _read_arrays(
    tree: dict[str, Any], offset: int
) -> tuple[Int32[NDArray[np.int32], "3 node"], Float32[NDArray[np.float32], " node"]]:
    """One tree's nodes and values; XGBoost numbers children after their parents."""
    below = np.array(tree["left_children"], np.int32)
    above = np.array(tree["right_children"], np.int32)
    leaf = below == LEAF
    feature = np.where(leaf, LEAF, np.array(tree["split_indices"], np.int32))
    children = [np.where(leaf, offset, to + offset) for to in (below, above)]
    return (
        np.stack([feature, *children]).astype(np.int32),
        np.array(tree["split_conditions"], np.float32),
    )


@final
@dataclass(frozen=True, eq=False)
class BoostedTrees(Predictor):
    """The sigmoid of the sum of a target's trees.

    Attributes:
        features: The number of features it was fitted on.
        forest: The trees of all targets.
    """

    kind: ClassVar[str] = "xgboost"
    features: Annotated[PositiveInt, Saved("width")]
    forest: Forest

    @property
    def width(self) -> int:
        """The number of features it was fitted on."""
        return self.features

    def correctness(self, features: Features) -> Correctness:
        """The probabilities from the trees; XGBoost isn't needed."""
        check_features(features, width=self.width)
        probability: Correctness = expit(self.forest.log_odds(features))
        return probability

    def verify(self) -> None:
        """Check that the trees split on existing features."""
        self.forest.check_paths(self.width)


@final
@dataclass(frozen=True, kw_only=True)
class BoostingConfig(PredictorConfig):
    """Options of the boosted trees.

    Attributes:
        rounds: The most trees of a target.
        patience: Trees without a better validation loss after which a target stops; it keeps the
            trees up to its best one.
        learning_rate: The factor of each tree's output.
        depth: The maximum depth of the trees.
        rows: The share of the train rows that each tree is fitted on.
        columns: The share of the features that each node chooses from.
        least_weight: The least sum of Hessians in a leaf, about a quarter of the rows in it.
        l2: The L2 penalty of the leaves.
        bins: The number of histogram bins per feature.
        validation: The share of the train rows that is held out for the validation loss.
    """

    rounds: Count = 300
    patience: Count = 15
    learning_rate: Fraction = 0.05
    depth: Count = 4
    rows: Fraction = 0.8
    columns: Fraction = 0.2
    least_weight: NotNegative = 10.0
    l2: NotNegative = 10.0
    bins: Several = 64
    validation: Validation = 0.15

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit the trees of each target, on one core, with early stopping on its validation loss.

        Raises:
            MissingExtraError: XGBoost isn't installed.
        """
        xgboost = _load_xgboost()
        usable = usable_rows(examples)
        parts = hold_out(usable.features, share=self.validation, seed=seed)
        learned = examples.learnable.tolist()
        boosters: list[bytes | None] = []
        shifts, counts = logit(examples.base_rates), []
        with (progress or SilentProgress()).task("boosting", total=len(learned)) as advance:
            for target, learnable in enumerate(learned):
                booster = self._boost(xgboost, usable, parts, target, seed) if learnable else None
                boosters.append(bytes(booster.save_raw("json")) if booster is not None else None)
                counts.append(booster.num_boosted_rounds() if booster is not None else 0)
                advance()
        forest = Forest.of(boosters, shifts)
        predictor = BoostedTrees(examples.targets, examples.features.shape[1], forest)
        notes = (*examples.target_notes(), *left_out_note(examples, len(usable.features)))
        return PredictorFit(predictor, notes, {"trees": counts})

    def _boost(self, xgboost: Any, usable: Examples, parts: Holdout, target: int, seed: int) -> Any:
        """The booster of one target, up to its best tree."""
        labels = usable.correct[:, target]
        fit, held_out = (rows[~np.isnan(labels[rows])] for rows in (parts.fit, parts.validation))
        if not len(fit) or not len(held_out):
            fit = held_out = np.flatnonzero(~np.isnan(labels))
        train = xgboost.QuantileDMatrix(
            usable.features[fit], label=labels[fit], max_bin=self.bins, nthread=1
        )
        validation = xgboost.QuantileDMatrix(
            usable.features[held_out],
            label=labels[held_out],
            max_bin=self.bins,
            nthread=1,
            ref=train,
        )
        booster = xgboost.train(
            self._make_parameters(usable.base_rates[target], seed),
            train,
            num_boost_round=self.rounds,
            evals=[(validation, "validation")],
            early_stopping_rounds=self.patience,
            verbose_eval=False,
        )
        return booster[: booster.best_iteration + 1]

    def _make_parameters(self, rate: float, seed: int) -> dict[str, Any]:
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


def _load_xgboost() -> Any:
    with optional_imports("fitting boosted trees"):
        import xgboost
    return xgboost


ENTRY = PredictorEntry(BoostingConfig, BoostedTrees, "XGBoost", "Chen and Guestrin 2016, XGBoost")
