"""SharedTrunkNet: one trunk for all targets, an ensemble of seeds (section 3.1 of the paper).

The defaults of its options are those of the method's authors. It is evaluated and trained in NumPy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, final

import numpy as np
from jaxtyping import Bool, Float32, Float64
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from prefill_router import mapped_matrix
from prefill_router.errors import ConfigError, FitError
from prefill_router.options import (
    NOT_NEGATIVE,
    Count,
    Dropout,
    NotNegative,
    Positive,
    Validation,
)
from prefill_router.predictors.base import (
    Correctness,
    Examples,
    Features,
    Labels,
    PerTarget,
    Predictor,
    PredictorConfig,
    PredictorEntry,
    PredictorFit,
    check_features,
    left_out_note,
)
from prefill_router.predictors.networks import Network
from prefill_router.predictors.training import (
    Holdout,
    TrainingCurves,
    hold_out,
    query_weights,
)
from prefill_router.progress import Progress, SilentProgress
from prefill_router.serialization import (
    NO_TENSORS,
    Names,
    Shape,
    StrictModel,
    Tensors,
    take_tensors,
    validate,
)
from prefill_router.short_repr import short_repr
from prefill_router.statistics import sigmoid


@final
@dataclass(frozen=True, kw_only=True)
class TrunkConfig(PredictorConfig):
    """Options of the shared trunk's training.

    Attributes:
        hidden: The widths of the two hidden layers.
        dropout: The dropout rate after each of them.
        learning_rate: Adam's learning rate.
        weight_decay: Adam's weight decay, as an L2 penalty in the gradient.
        batch_size: Queries per step.
        max_epochs: The greatest number of epochs.
        patience: Epochs without a better validation loss after which a seed stops.
        seeds: The number of networks that are trained.
        keep: The number of them, with the least validation loss, that make up the ensemble.
        validation: The share of the rows that is held out for the validation loss.
        disagreement_weight: The weight of a query on which targets disagree, where others have 1.
        seed: The seed of the held-out rows and of the networks.
    """

    hidden: tuple[Count, Count] = (256, 128)
    dropout: tuple[Dropout, Dropout] = (0.3, 0.2)
    learning_rate: Positive = 1e-3
    weight_decay: NotNegative = 1e-4
    batch_size: Count = 512
    max_epochs: Count = 150
    patience: Count = 15
    seeds: Count = 10
    keep: Count = 5
    validation: Validation = 0.15
    disagreement_weight: Positive = 1.0
    seed: Annotated[int, NOT_NEGATIVE] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep > self.seeds:
            raise ConfigError(
                f"keep is {self.keep} of {self.seeds} seeds; it must be at most the number of seeds"
            )

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit a SharedTrunkNet; `seed` is added to the options' own."""
        trunk = fit_trunk(
            examples.features,
            examples.correct,
            examples.targets,
            config=replace(self, seed=self.seed + seed),
            progress=progress,
        )
        return PredictorFit(trunk.predictor, trunk.notes, trunk.curves.to_dict())

    def lighter(self) -> "TrunkConfig":
        """The same options with at most three networks."""
        return replace(self, seeds=min(self.seeds, 3), keep=min(self.keep, 3))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


_ROWS = 4096  # rows per batch; bounds the memory


def _describe_network(widths: Sequence[int]) -> Network:
    """One of the networks; its layers are saved as 0, 1, ..., the last for all targets."""
    *inner, outputs = widths
    return Network(tuple(inner), {str(len(inner) - 1): outputs})


class _SavedTrunk(StrictModel):
    kind: Literal["shared_trunk"]
    targets: Names
    widths: Annotated[list[PositiveInt], Field(min_length=2)]
    networks: PositiveInt


@short_repr
@final
@dataclass(frozen=True, eq=False)
class SharedTrunkNet(Predictor):
    """The mean of the probabilities of several networks of Linear and ReLU, the last layer linear.

    Attributes:
        weights: The weights of each layer; one matrix per network.
        biases: The biases of each layer; one vector per network.
    """

    kind: ClassVar[str] = "shared_trunk"
    weights: tuple[Float32[NDArray[np.float32], "network _ _"], ...]
    biases: tuple[Float32[NDArray[np.float32], "network _"], ...]

    @property
    def width(self) -> int:
        """The number of features it was fitted on."""
        return int(self.weights[0].shape[1])

    @property
    def networks(self) -> int:
        """The number of networks that are averaged."""
        return len(self.weights[0])

    def correctness(self, features: Features) -> Correctness:
        """The mean over the networks of the sigmoid of their logits."""
        check_features(features, width=self.width)
        result = np.empty((len(features), len(self.targets)))
        for start in range(0, len(features), _ROWS):
            part = slice(start, start + _ROWS)
            result[part] = self._mean_sigmoid(features[part].astype(np.float64))
        return result

    def _mean_sigmoid(self, rows: Float64[NDArray[np.float64], "query feature"]) -> Correctness:
        total = np.zeros((len(rows), len(self.targets)))
        head = self._network.layers[-1].name
        for arrays in self._each:
            total += sigmoid(self._network.outputs(arrays, rows, head))
        return total / self.networks

    @cached_property
    def _each(self) -> list[dict[str, NDArray[np.float64]]]:
        """Each network's arrays, in double precision so that batches hardly change results."""
        saved = self.tensors().items()
        return [
            {name: a[n].reshape(1, -1, a.shape[-1]).astype(np.float64) for name, a in saved}
            for n in range(self.networks)
        ]

    @cached_property
    def _network(self) -> Network:
        return _describe_network(self._widths)

    @property
    def _widths(self) -> list[int]:
        return [self.width, *(int(bias.shape[1]) for bias in self.biases)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        summary = {"kind": self.kind, "targets": list(self.targets)}
        return summary | {"widths": self._widths, "networks": self.networks}

    def tensors(self) -> dict[str, NDArray[Any]]:
        """`weight.0`, `bias.0`, ... from the first layer to the last."""
        result: dict[str, NDArray[Any]] = {}
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            result |= {f"weight.{i}": weight, f"bias.{i}": bias}
        return result

    @classmethod
    def parse(cls, config: Mapping[str, Any], tensors: Tensors = NO_TENSORS) -> "SharedTrunkNet":
        """Like `Part.parse`; the widths determine the shapes of the layers."""
        saved = validate(_SavedTrunk, config, what=cls.display_name())
        targets, widths, networks = saved.targets, saved.widths, saved.networks
        if widths[-1] != len(targets):
            raise ConfigError(f"its widths {widths} don't end in one output for each of {targets}")
        shapes: dict[str, Shape] = {}
        for name, before, after in _describe_network(widths).layers:
            shapes[f"weight.{name}"] = (networks, before, after)
            shapes[f"bias.{name}"] = (networks, after)
        arrays = take_tensors(tensors, shapes, what=cls.display_name())
        return cls(targets, tuple(arrays[0::2]), tuple(arrays[1::2]))


@short_repr
@final
@dataclass(frozen=True, eq=False)
class TrunkFit:
    """A fitted trunk, with training curves and notes.

    Attributes:
        predictor: The ensemble.
        curves: The losses of all seeds.
        notes: Notes for the user, such as which targets couldn't be learned.
    """

    predictor: SharedTrunkNet
    curves: TrainingCurves
    notes: tuple[str, ...]


def fit_trunk(
    features: Features,
    correct: Labels,
    targets: Sequence[str],
    *,
    config: TrunkConfig | None = None,
    progress: Progress | None = None,
) -> TrunkFit:
    """Fit a SharedTrunkNet on the train rows.

    Rows without a label are left out. A target whose labels are all the same, or all missing, can't
    be learned: it gets a constant probability (`Examples.base_rates`), and a note says so.

    Args:
        features: The features of the train rows (Equation 3).
        correct: Their labels in [0, 1], NaN where missing; soft labels train as they are.
        targets: The targets' names.
        config: The options; the authors' defaults if not given.
        progress: Shows the number of epochs done.

    Raises:
        FitError: There is nothing to learn from, a feature isn't finite, a label is outside [0, 1],
            or the losses aren't finite.
    """
    config = config or TrunkConfig()
    examples = Examples(features, correct, tuple(targets), ("",) * len(features))
    is_learned = examples.learnable
    present = ~np.isnan(correct) & is_learned
    labelled = np.asarray(present.any(axis=1))
    rows = slice(None) if labelled.all() else labelled  # a slice copies nothing
    weights = query_weights(correct[rows], disagreement_weight=config.disagreement_weight)
    counts = present[rows] * weights[:, None]
    if not labelled.all():
        features = mapped_matrix.take_rows(features, np.flatnonzero(labelled))
    parts = hold_out(features, share=config.validation, seed=config.seed)
    curves, layers, biases = _train_seeds(
        features, correct[rows], counts, parts, config, progress or SilentProgress()
    )
    _set_constants(layers[-1], biases[-1], is_learned, examples.base_rates)
    predictor = SharedTrunkNet(tuple(targets), tuple(layers), tuple(biases))
    notes = (*examples.target_notes(), *left_out_note(examples, int(labelled.sum())))
    if parts.shared:
        notes += ("all train rows have the same features; they were validated on too",)
    return TrunkFit(predictor, curves, notes)


def _train_seeds(
    features: Features,
    correct: Labels,
    counts: Float64[NDArray[np.float64], "query target"],
    parts: Holdout,
    config: TrunkConfig,
    progress: Progress,
) -> tuple[TrainingCurves, list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """The curves of all seeds, and the stacked weights and biases of the best."""
    from prefill_router.predictors.trunk_training import train, trunk_rows

    rows = trunk_rows(features, np.where(counts > 0, correct, 0), counts)
    runs = train(rows, parts, config, seeds=list(range(config.seeds)), progress=progress)
    best = np.array([run.best for run in runs])
    if not np.isfinite(best).all():
        raise FitError(
            "the losses aren't finite; the features are up to "
            f"{np.abs(features).max():.3g}, scale them to about 1"
        )
    kept_runs = np.sort(np.argsort(best, kind="stable")[: config.keep])
    curves = TrainingCurves.of(runs, np.isin(np.arange(len(runs)), kept_runs))
    stacked = {
        name: np.concatenate([runs[i].parameters[name] for i in kept_runs])
        for name in runs[0].parameters  # from the first layer to the last
    }
    weights = [array for name, array in stacked.items() if name.startswith("weight.")]
    biases = [array[:, 0] for name, array in stacked.items() if name.startswith("bias.")]
    return curves, weights, biases


def _set_constants(
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    learned: Bool[NDArray[np.bool_], " target"],
    constants: PerTarget,
) -> None:
    """Give the targets that weren't learned a constant probability."""
    from scipy.special import logit

    weight[:, :, ~learned] = 0
    bias[:, ~learned] = logit(constants[~learned])


ENTRY = PredictorEntry(TrunkConfig, SharedTrunkNet, "SharedTrunkNet", "section 3.1 of the paper")
