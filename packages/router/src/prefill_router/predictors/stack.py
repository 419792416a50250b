"""Stacking: several predictors, weighted by what each is worth on rows it wasn't fitted on.

With z the logit of a member's probability and m its mean over the targets of a query,

    logit p[q, k] = sum over members of level * m[q] + choice * (z[q, k] - m[q])

What all targets share, the difficulty of the query, and what parts them have weights of their own,
since one member may know the first better and another the second. The weights are those of a
logistic regression on out-of-fold predictions, by predictors that were fitted on the other folds
(Wolpert, Stacked generalization, 1992). None is negative (Breiman, Stacked regressions, 1996).
There are no intercepts, since members know the base rates. Intercepts of each target would only add
noise to the choice between targets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import expit, logit

from prefill_router.errors import ConfigError, FitError
from prefill_router.options import Several
from prefill_router.predictors.base import (
    Correctness,
    Examples,
    Features,
    Labels,
    Predictor,
    PredictorConfig,
    PredictorEntry,
    PredictorFit,
    load_predictor,
    predictor_config,
    usable_rows,
)
from prefill_router.predictors.training import draw_folds
from prefill_router.progress import Progress, SilentProgress
from prefill_router.serialization import NO_TENSORS, Names, StrictModel, Tensors, under, validate
from prefill_router.statistics import shrunken_logistic


def out_of_fold(
    config: PredictorConfig,
    examples: Examples,
    *,
    seed: int,
    progress: Progress | None = None,
) -> Correctness:
    """Fit the predictor several times, each time without one fold, and predict that fold.

    The features stay as they were fitted, and fewer networks are averaged
    (`PredictorConfig.lighter`).

    Args:
        config: The predictor's options.
        examples: Its train rows, with the fold of each row.
        seed: The seed of the fits.
        progress: Shows the progress.

    Returns:
        One row per query. NaN for a fold where no predictor can be fitted on the others, and
        everywhere if there is only one fold.

    Raises:
        MissingExtraError: A package isn't installed.
    """
    folds = np.zeros(len(examples.features)) if examples.folds is None else examples.folds
    result, names = np.full(examples.correct.shape, np.nan), np.unique(folds)
    with (progress or SilentProgress()).task("out of fold", total=float(len(names))) as advance:
        for fold in names if len(names) > 1 else ():
            is_held = folds == fold
            try:
                fitted = config.lighter().fit(examples[np.flatnonzero(~is_held)], seed=seed)
                result[is_held] = fitted.predictor.correctness(examples.features[is_held])
            except FitError:  # for example, all labels are the same
                pass
            advance()
    return result


Weights = Float64[NDArray[np.float64], " member"]
Folds = Int64[NDArray[np.int64], " query"]
Members = Float64[NDArray[np.float64], "member query target"]
_SURE = 1e-6
"""The least distance of a member's probability from 0 and 1."""


Weight = Annotated[float, Field(ge=0)]


class _SavedStack(StrictModel):
    kind: str
    targets: Names
    fixed: dict[str, Annotated[float, Field(ge=0, le=1)]]
    members: list[dict[str, Any]] = Field(min_length=1)
    level: list[Weight]
    choice: list[Weight]


@final
@dataclass(frozen=True, eq=False)
class Stack(Predictor):
    """A weighted sum of the logits of its members.

    Attributes:
        fixed: The probabilities of targets that couldn't be learned; the others are weighted.
        members: The fitted predictors.
        level: Each member's weight for what all targets share, not negative.
        choice: Each member's weight for what parts the targets, not negative.
    """

    kind: ClassVar[str] = "stack"
    fixed: Mapping[str, float]
    members: tuple[Predictor, ...]
    level: Weights
    choice: Weights

    @property
    def width(self) -> int:
        """The number of features it was fitted on."""
        return self.members[0].width

    def correctness(self, features: Features) -> Correctness:
        """The probabilities of the weighted logits."""
        each = np.stack([member.correctness(features) for member in self.members])
        learned = np.array([name not in self.fixed for name in self.targets])
        result = np.empty(each.shape[1:])
        result[:, learned] = expit(
            _combine_members(self.level, self.choice, _clipped_logits(each[..., learned]))
        )
        result[:, ~learned] = [self.fixed[name] for name in self.targets if name in self.fixed]
        return result

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the arrays of the members are in `tensors`."""
        members = [member.to_dict() for member in self.members]
        weights = {name: getattr(self, name).tolist() for name in ("level", "choice")}
        summary = {"kind": self.kind, "targets": list(self.targets), "fixed": dict(self.fixed)}
        return summary | {"members": members} | weights

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays of the members, by names such as `0.weight.1`."""
        return {
            f"{number}.{name}": array
            for number, member in enumerate(self.members)
            for name, array in member.tensors().items()
        }

    @classmethod
    def parse(cls, config: Mapping[str, Any], tensors: Tensors = NO_TENSORS) -> "Stack":
        """Like `Part.parse`; members are read by their own kinds."""
        saved = validate(_SavedStack, config, what=cls.display_name())
        members = tuple(
            load_predictor(member, under(tensors, f"{i}."))
            for i, member in enumerate(saved.members)
        )
        prefixes = tuple(f"{i}." for i in range(len(members)))
        surplus = sorted(name for name in tensors if not name.startswith(prefixes))
        sizes = len(saved.level), len(saved.choice)
        if surplus or sizes != (len(members), len(members)):
            raise ConfigError(
                f"it has {sizes} weights for {len(members)} members, and the unknown arrays "
                f"{surplus}"
            )
        if any(
            member.targets != saved.targets or member.width != members[0].width
            for member in members
        ):
            raise ConfigError("its members differ in targets or in features")
        level, choice = np.array(saved.level), np.array(saved.choice)
        return cls(saved.targets, saved.fixed, members, level, choice)


@final
@dataclass(frozen=True, kw_only=True)
class StackConfig(PredictorConfig):
    """Options of a stack.

    Attributes:
        members: The predictors, each as in a recipe: a mapping with a kind and options.
        folds: The number of folds of their out-of-fold predictions, where the fit has none of its
            own (`Examples.folds`).
    """

    members: tuple[Mapping[str, Any], ...] = ({"kind": "shared_trunk"}, {"kind": "logistic"})
    folds: Several = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.members or any(member.get("kind") == Stack.kind for member in self.members):
            raise ConfigError("a stack needs members, which can't be stacks; name at least one")
        _ = self.configs

    @property
    def configs(self) -> tuple[PredictorConfig, ...]:
        """The options of the members.

        Raises:
            ConfigError: A kind or an option is unknown.
        """
        return tuple(map(predictor_config, self.members))

    def lighter(self) -> "StackConfig":
        """Lighter members, weighted on two folds."""
        each = zip(self.members, self.configs, strict=True)
        light = ({"kind": member["kind"], **vars(config.lighter())} for member, config in each)
        return replace(self, members=tuple(light), folds=2)

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit the members, and their weights on the predictions out of fold."""
        progress, configs, is_learned = (
            progress or SilentProgress(),
            self.configs,
            examples.learnable,
        )
        fitted = [config.fit(examples, seed=seed, progress=progress) for config in configs]
        rows = self._draw_own_folds(examples, seed) if examples.folds is None else examples
        unseen = np.stack(
            [out_of_fold(config, rows, seed=seed, progress=progress) for config in configs]
        )
        weights = _fit_weights(unseen[..., is_learned], rows.correct[:, is_learned])
        predictions: Correctness | None = None
        if examples.folds is not None:
            predictions = unseen.mean(axis=0)
            labels = rows.correct[:, is_learned]
            predictions[:, is_learned] = _cross_fit_weights(
                unseen[..., is_learned], labels, examples.folds
            )
        rates = zip(examples.targets, examples.base_rates.tolist(), is_learned, strict=True)
        fixed = {name: rate for name, rate, is_learned in rates if not is_learned}
        members = tuple(member.predictor for member in fitted)
        notes = tuple(dict.fromkeys(note for member in fitted for note in member.notes))
        member_weights = [
            {"kind": member["kind"], "level": level, "choice": choice}
            for member, level, choice in zip(
                self.members, *map(np.ndarray.tolist, weights), strict=True
            )
        ]
        curves = next((member.training for member in fitted if member.training), {})
        return PredictorFit(
            Stack(examples.targets, fixed, members, *weights),
            notes,
            {**curves, "members": member_weights},
            unseen=predictions,
        )

    def _draw_own_folds(self, examples: Examples, seed: int) -> Examples:
        """The usable rows with folds of their own; rows with equal features share one."""
        used = usable_rows(examples)
        folds = draw_folds(used.features, count=self.folds, seed=seed)
        return replace(used, folds=folds)


def _clipped_logits(each: Members) -> Members:
    return np.asarray(logit(np.clip(each, _SURE, 1 - _SURE)))


def _combine_members(level: Weights, choice: Weights, each: Members) -> Labels:
    """The logits of the stack, [query, target]."""
    shared = each.mean(axis=2, keepdims=True)
    return np.asarray(np.tensordot(level, shared, 1) + np.tensordot(choice, each - shared, 1))


def _fit_weights(unseen: Members, correct: Labels) -> tuple[Weights, Weights]:
    """The weights of levels and of choices for these out-of-fold predictions; equal without any."""
    count = len(unseen)
    is_known = ~np.isnan(correct) & ~np.isnan(unseen).any(axis=0)
    rows = is_known.any(axis=1)
    each = _clipped_logits(np.nan_to_num(unseen[:, rows], nan=0.5))
    shared = each.mean(axis=2, keepdims=True)

    def slopes(miss: Labels) -> NDArray[np.float64]:
        level = miss.sum(axis=1) @ shared[..., 0].T
        return np.concatenate([level, np.tensordot(each - shared, miss, 2)])

    weights = shrunken_logistic(
        np.full(2 * count, 1 / count),
        lambda weights: _combine_members(weights[:count], weights[count:], each),
        slopes,
        np.where(is_known, correct, 0)[rows],
        weights=is_known[rows].astype(np.float64),
        bounds=[(0, None)] * (2 * count),
    )
    return weights[:count], weights[count:]


def _cross_fit_weights(unseen: Members, correct: Labels, folds: Folds) -> Correctness:
    """The stack's own out-of-fold predictions: a fold's weights are those of the other folds.

    The members' predictions for those folds know the fold's labels, so these reach its predictions
    too, but only through two weights a member.
    """
    result = unseen.mean(axis=0)
    for fold in np.unique(folds):
        is_held_out = folds == fold
        weights = _fit_weights(unseen[:, ~is_held_out], correct[~is_held_out])
        result[is_held_out] = expit(
            _combine_members(*weights, _clipped_logits(unseen[:, is_held_out]))
        )
    return np.asarray(result)


ENTRY = PredictorEntry(StackConfig, Stack, "Stack", "Wolpert 1992, Breiman 1996")
