"""The interface of predictors: from features to each target's probability of a correct answer.

Also their train rows (`Examples`, and the usable rows in a canonical order), their options
(`PredictorConfig`), the result of fitting (`PredictorFit`), and the predictors by kind. A kind is
imported when it is first looked up. Its module has a constant `ENTRY`, a `PredictorEntry`; a module
with several kinds has a constant for each.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, final

import numpy as np
from jaxtyping import Float32, Float64, Int64
from numpy.typing import NDArray
from pydantic import Field

from prefill_router import mapped_matrix, statistics
from prefill_router.errors import ConfigError, FitError
from prefill_router.options import build, check_options
from prefill_router.progress import Progress
from prefill_router.serialization import Kinds, Names, Part, Tensors
from prefill_router.short_repr import short_repr

Features = Float32[NDArray[np.float32], "query feature"]
Correctness = Float64[NDArray[np.float64], "query target"]
Share = Field(ge=0, le=1, title="probabilities")
"""The bounds of saved probabilities."""


@dataclass(frozen=True, eq=False)
class Predictor(Part, ABC):
    """A fitted, frozen predictor.

    A row of the result depends on the same row of the features alone, not on other rows, their
    order or their number.

    Attributes:
        targets: The targets' names, in the order of the result's columns.
    """

    noun: ClassVar[str] = "predictor"
    axes: ClassVar[Mapping[str, str]] = {"target": "targets", "feature": "width"}
    targets: Names

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of features it was fitted on."""

    @abstractmethod
    def correctness(self, features: Features) -> Correctness:
        """The probability that each target answers each query correctly, in [0, 1].

        Args:
            features: The same features that it was fitted on (Equation 3), finite.

        Raises:
            ConfigError: The width differs, or a feature isn't finite.
        """


def check_features(features: Features, *, width: int) -> None:
    """Check features before they are used.

    Raises:
        ConfigError: The width differs, or a feature isn't finite.
    """
    if features.shape[1] != width:
        raise ConfigError(
            f"the features are {features.shape[1]} wide; the predictor was fitted on {width}; "
            "make them with the feature extractor that it was fitted with"
        )
    if not np.isfinite(features).all():
        row = int(np.flatnonzero(~np.isfinite(features).all(axis=1))[0])
        raise ConfigError(
            f"row {row} of the features isn't finite; check the encoder's states of that query"
        )


Labels = Float64[NDArray[np.float64], "query target"]
PerTarget = Float64[NDArray[np.float64], " target"]
Vectors = Float64[NDArray[np.float64], "_ dimension"]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Descriptions:
    """Embedded descriptions of targets and groups.

    Attributes:
        targets: One row per target.
        groups: The row of each group, by its name.
    """

    targets: Vectors
    groups: Mapping[str, Float64[NDArray[np.float64], " dimension"]]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Examples:
    """What a predictor learns from, all of it train rows.

    Attributes:
        features: One row per query, finite.
        correct: Labels in [0, 1], NaN where missing; soft labels train as they are.
        targets: The targets' names.
        groups: The benchmark or domain of each query; empty where unknown.
        costs: Costs of the answers, US dollars, NaN where unknown; for predictors that learn from
            costs.
        descriptions: Descriptions of targets and groups, for predictors that use them.
        folds: The fold of each query, for predictors that need predictions out of fold.

    Raises:
        FitError: The shapes differ, names repeat, a feature isn't finite, a label is outside
            [0, 1], or no target has two different labels.
    """

    features: Features
    correct: Labels
    targets: tuple[str, ...]
    groups: tuple[str, ...]
    costs: Float64[NDArray[np.float64], "_ _"] | None = None
    descriptions: Descriptions | None = None
    folds: Int64[NDArray[np.int64], " query"] | None = None

    def __post_init__(self) -> None:
        if self.correct.shape != (len(self.features), len(self.targets)):
            raise FitError(
                f"the labels are {self.correct.shape} for {len(self.features)} rows of features "
                f"and {len(self.targets)} targets; give one row per query, one column per target"
            )
        if len(set(self.targets)) < len(self.targets) or not self.targets:
            raise FitError(f"the targets are {list(self.targets)}; name at least one, each once")
        if len(self.groups) != len(self.features):
            raise FitError(
                f"{len(self.groups)} groups for {len(self.features)} queries; give one each"
            )
        if self.costs is not None and self.costs.shape != self.correct.shape:
            raise FitError(
                f"the costs are {self.costs.shape} and the labels {self.correct.shape}; give one "
                "cost per label"
            )
        if not self.features.shape[1]:
            raise FitError("the features have no columns; choose at least one family of features")
        bad = np.flatnonzero(~np.isfinite(self.features).all(axis=1))
        if len(bad):
            raise FitError(
                f"{len(bad)} rows of features aren't finite, the first is row {bad[0]}; "
                "check the encoder's states of these queries"
            )
        self._check_labels()

    def _check_labels(self) -> None:
        outside = ~np.isnan(self.correct) & ~((self.correct >= 0) & (self.correct <= 1))
        if outside.any():
            row, column = np.argwhere(outside)[0]
            raise FitError(
                f"the label of {self.targets[column]!r} in row {row} is "
                f"{self.correct[row, column]}; labels are in [0, 1], or NaN where missing"
            )
        if not self.learnable.any():
            raise FitError(
                "no target has two different labels, so there is nothing to learn; "
                "add queries that a target answers correctly and queries that it doesn't"
            )

    def __getitem__(self, rows: NDArray[np.int64]) -> "Examples":
        """Some of the rows, in this order."""
        return replace(
            self,
            features=mapped_matrix.take_rows(self.features, rows),
            correct=self.correct[rows],
            groups=tuple(self.groups[row] for row in rows.tolist()),
            costs=None if self.costs is None else self.costs[rows],
            folds=None if self.folds is None else self.folds[rows],
        )

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which labels were measured, [query, target]."""
        return ~np.isnan(self.correct)

    @property
    def learnable(self) -> NDArray[np.bool_]:
        """Whether each target has at least two different labels."""
        return statistics.learnable(self.correct)

    @property
    def base_rates(self) -> NDArray[np.float64]:
        """The share of right answers of each target, see `statistics.base_rates`."""
        return statistics.base_rates(self.correct)

    def target_notes(self) -> tuple[str, ...]:
        """Which targets can't be learned, and why; they get their base rates."""
        notes = []
        rates, counts = self.base_rates, self.present.sum(axis=0).tolist()
        for i in np.flatnonzero(~self.learnable).tolist():
            why = (
                f"all its {counts[i]} train labels are the same"
                if counts[i]
                else "it has no labels"
            )
            notes.append(
                f"{self.targets[i]} can't be learned: {why}; its predictions are {rates[i]:.3f}"
            )
        return tuple(notes)


@short_repr
@final
@dataclass(frozen=True, eq=False)
class PredictorFit:
    """A fitted predictor, with notes and training curves.

    Attributes:
        predictor: The fitted predictor.
        notes: Notes for the user, such as which targets couldn't be learned.
        training: Training curves and similar, as plain values for the record.
        unseen: Predictions for the train rows, each by a predictor that wasn't fitted on its fold
            (`Examples.folds`), where the fit made them. NaN for a fold that can't be predicted.
    """

    predictor: Predictor
    notes: tuple[str, ...] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    unseen: Correctness | None = None


class PredictorConfig(ABC):
    """Options of a predictor; a frozen dataclass whose fields can be set in a recipe.

    Raises:
        ConfigError: An option is outside the limits in its type (`options`).
    """

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def describes_with(self) -> str | None:
        """The encoder for descriptions of targets and groups (`Examples.descriptions`), if any."""
        return None

    @abstractmethod
    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit on train rows.

        A target that can't be learned (`Examples.learnable`) gets its base rate.

        Args:
            examples: The train rows.
            seed: The seed of all random numbers; the same seed gives the same predictor.
            progress: Shows the progress.

        Raises:
            FitError: There is nothing to learn from, or the fit doesn't converge.
            ConfigError: The options don't fit the data.
            MissingExtraError: A package isn't installed.
        """

    def lighter(self) -> "PredictorConfig":
        """The options for temporary fits, such as out-of-fold ones: with fewer networks, if any."""
        return self


def usable_rows(examples: Examples, *, missing: float = np.nan) -> Examples:
    """The rows with a label of a learnable target, sorted by content.

    So a fit depends neither on the order of the rows nor on rows without labels.

    Args:
        examples: All train rows.
        missing: The value of a missing label when rows with equal features are sorted.
    """
    rows = np.flatnonzero((examples.present & examples.learnable).any(axis=1))
    used = examples[_by_content(examples, rows, missing)]
    # Adding 0 turns -0.0 into 0.0, which is equal but has different bytes; both are copies.
    np.add(used.features, np.float32(0), out=used.features)
    np.add(used.correct, 0.0, out=used.correct)
    return used


def _by_content(
    examples: Examples, rows: NDArray[np.int64], missing: float
) -> Int64[NDArray[np.int64], " row"]:
    """The rows in the order of their bytes: by the first eight, and ties by all."""

    def content(row: int) -> tuple[bytes, str, bytes]:
        features, correct = examples.features[row] + np.float32(0), examples.correct[row] + 0.0
        labels, costs = np.where(np.isnan(correct), missing, correct), examples.costs
        money = b"" if costs is None else costs[row].tobytes()
        return features.tobytes() + labels.tobytes(), examples.groups[row], money

    begin = np.zeros((len(rows), 2), dtype=np.float32)
    begin[:, : examples.features.shape[1]] = examples.features[rows, :2] + np.float32(0)
    first = begin.view(">u8").reshape(-1)
    order = np.argsort(first, kind="stable")
    ends = np.flatnonzero(np.diff(first[order])) + 1
    result, starts = rows[order], np.concatenate([[0], ends, [len(rows)]])
    for start, stop in pairwise(starts.tolist()):
        if stop - start > 1:
            result[start:stop] = sorted(result[start:stop].tolist(), key=content)
    return result


def left_out_note(examples: Examples, used: int) -> tuple[str, ...]:
    """A note on the number of rows without a usable label, if any.

    Args:
        examples: All train rows.
        used: The number of rows in `usable_rows`.
    """
    left = len(examples.features) - used
    return (f"{left} queries without a usable label were left out",) if left else ()


@final
@dataclass(frozen=True)
class PredictorEntry:
    """One kind of predictor.

    Attributes:
        config: The class of its options, which fit it.
        predictor: The class of the fitted predictor.
        label: The name in tables.
        source: The publication that describes it.
    """

    config: type[PredictorConfig]
    predictor: type[Predictor]
    label: str
    source: str


PREDICTORS = Kinds[PredictorEntry](
    "predictor",
    "prefill_router.predictors",
    {
        "shared_trunk": "trunk:ENTRY",
        "constant": "constant:CONSTANT",
        "knn_majority": "knn:MAJORITY",
        "knn_score": "knn:SCORE",
        "logistic": "logistic:ENTRY",
        "unified_multitask": "networks.unified:ENTRY",
        "stack": "stack:ENTRY",
        "given": "given:GIVEN",
    },
    "prefill_router.predictors",
    expects=PredictorEntry,
)


def predictor_config(value: Mapping[str, Any]) -> PredictorConfig:
    """The options of a predictor, from a mapping with its kind and those that aren't defaults.

    Raises:
        ConfigError: The kind or an option is unknown, or of the wrong type.
    """
    options = {name: option for name, option in value.items() if name != "kind"}
    kind = str(value.get("kind"))
    return build(PREDICTORS.find(kind).config, options, what=f"the predictor {kind}")


def load_predictor(config: Mapping[str, Any], tensors: Tensors) -> Predictor:
    """The predictor that `Predictor.to_dict` and `Predictor.tensors` describe.

    Raises:
        CorruptError: The kind is unknown, or the values contradict each other.
    """
    return PREDICTORS.of_saved(config).predictor.from_dict(config, tensors)
