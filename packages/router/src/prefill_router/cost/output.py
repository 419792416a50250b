"""Prediction of each target's output length for a query, by ridge regression.

    log amount[k, q] = a[k] + f[k] * (w[k] . features[q] + u[k] . (t[q], t[q]^2) - m[k])
    mean[k, q]       = s[k] * exp(log amount[k, q])

The amount is the output tokens of target k, or its recorded cost in US dollars where no train row
has a count. `t` is the logarithm of the input tokens, standardised. `w` and `u` are a ridge
regression (`Ridge`), and `f` shrinks it towards the mean `a`. `f` is the slope of observed on
out-of-fold predicted values, minus a standard error. So where nothing was learned the mean is
predicted. `s` is Duan's smearing factor (1983, "Smearing estimate: a nonparametric retransformation
method"), the mean of exp(residual) out of fold, weighted by the predicted amount, so that
predictions for the train rows add up to the observed total: totals are what is paid, and the mean
of a skewed amount is above the exponential of its mean logarithm. Amounts are clipped to the range
of the train rows.

The penalty of the ridge is chosen by leave-one-out, one column at a time. The inputs are read some
rows at a time, so they may be computed when they are read.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import Float32, Float64, Int64, Real
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from prefill_router.cost.estimate import CostEstimator
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.serialization import Names, Part, StrictModel
from prefill_router.short_repr import short_repr
from prefill_router.statistics import mean_and_spread, row_blocks

Matrix = Float64[NDArray[np.float64], "row column"]
Vector = Float64[NDArray[np.float64], " row"]
PENALTIES = np.geomspace(1e-3, 1e6, 28)
_LEAST = 1e-9
"""A row whose leverage is closer to 1 than this isn't predicted by the other rows at all."""


@runtime_checkable
class Inputs(Protocol):
    """The inputs of a regression: a matrix, or rows that are computed when they are read."""

    def __len__(self) -> int:
        """The number of rows."""

    def __getitem__(self, rows: slice) -> Matrix:
        """Some of the rows."""


class _Products(NamedTuple):
    """Of rows with a leading 1: with each other, and with the values."""

    gram: Matrix
    right: Vector

    @classmethod
    def of(cls, inputs: Matrix, values: Vector) -> "_Products":
        return cls(inputs.T @ inputs, inputs.T @ values)

    def plus(self, other: "_Products") -> "_Products":
        return _Products(self.gram + other.gram, self.right + other.right)


class RidgeFit(NamedTuple):
    """A ridge regression, with predictions for rows that it wasn't fitted on.

    Attributes:
        weights: One per column.
        intercept: Not penalised.
        out_of_fold: The prediction for each row by a fit without its fold, at the same penalty.
    """

    weights: Float64[NDArray[np.float64], " column"]
    intercept: float
    out_of_fold: Vector


def fit_ridge(columns: Inputs, values: Vector, folds: Int64[NDArray[np.int64], " row"]) -> RidgeFit:
    """Fit a ridge regression whose penalty has the least leave-one-out squared error.

    Args:
        columns: The inputs, finite.
        values: The values to predict, finite.
        folds: The fold of each row; at least two differ.
    """
    whole, parts = _sum_products(columns, values, folds)
    best = float(PENALTIES[np.argmin(left_out_errors(columns, values, whole))])
    penalty = np.diag([0.0, *np.full(len(whole.right) - 1, best)])
    solved = {
        fold: np.linalg.solve(whole.gram - part.gram + penalty, whole.right - part.right)
        for fold, part in parts.items()
    }
    unseen = np.empty(len(values))
    for block, inputs in _read_blocks(columns):
        for fold, weights in solved.items():
            rows = folds[block] == fold
            unseen[block][rows] = inputs[rows] @ weights
    solution = np.linalg.solve(whole.gram + penalty, whole.right).astype(np.float64, copy=False)
    return RidgeFit(solution[1:], float(solution[0]), unseen)


def _read_blocks(columns: Inputs) -> Iterator[tuple[slice, Matrix]]:
    for block in row_blocks(len(columns)):
        rows = columns[block]
        yield block, np.column_stack([np.ones(len(rows)), rows])


def _sum_products(
    columns: Inputs, values: Vector, folds: NDArray[np.int64]
) -> tuple[_Products, dict[int, _Products]]:
    """The products of all rows, and of each fold's."""
    whole, parts = list[_Products](), dict[int, _Products]()
    for block, inputs in _read_blocks(columns):
        here = _Products.of(inputs, values[block])
        whole = [whole[0].plus(here)] if whole else [here]
        for fold in np.unique(folds[block]).tolist():
            rows = folds[block] == fold
            mine = _Products.of(inputs[rows], values[block][rows])
            parts[fold] = parts[fold].plus(mine) if fold in parts else mine
    return whole[0], parts


def left_out_errors(
    columns: Inputs, values: Vector, products: _Products | None = None
) -> Float64[NDArray[np.float64], " penalty"]:
    """The leave-one-out mean squared error for each of `PENALTIES`.

    In closed form (Allen's PRESS): each residual of the whole fit, over 1 minus its leverage.
    """
    count, level = len(values), values.mean()
    if products is None:
        products, _ = _sum_products(columns, values, np.zeros(count, dtype=np.int64))
    mean = products.gram[0, 1:] / count
    strength, directions = np.linalg.eigh(products.gram[1:, 1:] - count * np.outer(mean, mean))
    along = directions.T @ (products.right[1:] - mean * products.right[0])
    shrunk = 1 / (np.maximum(strength, 0)[:, None] + PENALTIES)
    total = np.zeros(len(PENALTIES))
    for block in row_blocks(count):
        turned = (columns[block] - mean) @ directions
        errors = (values[block] - level)[:, None] - turned @ (along[:, None] * shrunk)
        own = 1 / count + np.square(turned) @ shrunk
        total += np.square(errors / np.maximum(1 - own, _LEAST)).sum(axis=0)
    return total / count


HIGH = 0.9
"""The quantile that `Expected.high` estimates."""
WIDEST = 512
"""The most feature columns that are used; where there are more, those with the most variance."""
_LEAST_ROWS = 20
"""The fewest known amounts of a target for a regression; with fewer only its mean is learned."""
_OF_LENGTH = 3
"""Rows of the weights besides the features': for the length, its square, and the constant 1."""
_NOTHING = 1e-12
Table = Float64[NDArray[np.float64], "query target"]
Columns = Float32[NDArray[np.float32], "query column"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Expected(NamedTuple):
    """The predicted output of each target: output tokens, or US dollars; NaN where unknown.

    Attributes:
        mean: The expected value.
        high: The 0.9 quantile (`HIGH`).
    """

    mean: Table
    high: Table


class OutputOfTarget(StrictModel):
    """The numbers learned for one target besides the weights.

    Attributes:
        level: The mean logarithm of its amounts.
        low: The least amount in the train rows.
        top: The largest amount in the train rows.
        smearing: The factor from the exponential of the predicted logarithm to the mean.
        high: The factor from there to the quantile `HIGH`.
        r2: The share of the logarithm's variance that is explained out of fold.
    """

    model_config = ConfigDict(frozen=True)
    level: Annotated[float, Field(ge=-100, le=100)]
    low: Positive
    top: Positive
    smearing: Positive
    high: Positive
    r2: Annotated[float, Field(ge=0, le=1)]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class OutputHead(Part):
    """Predicts each target's output tokens, or recorded cost. Frozen; made by `fit_output`.

    Attributes:
        names: The targets' names, in order.
        targets: The numbers learned for each target; None where no amount is known.
        length: Mean, standard deviation, minimum and maximum of the logarithm of input tokens.
        weights: From the features, the length, its square and 1 to the logarithm minus the level.
    """

    noun: ClassVar[str] = "output head"
    axes: ClassVar[Mapping[str, str]] = {"target": "names"}
    names: Names
    targets: tuple[OutputOfTarget | None, ...]
    length: tuple[float, float, float, float]
    weights: Float32[NDArray[np.float32], "column target"]

    def __post_init__(self) -> None:
        if not len(set(self.names)) == len(self.targets) == self.weights.shape[1]:
            raise ConfigError(
                f"the output head has {len(set(self.names))} names, {len(self.targets)} targets "
                f"and weights {self.weights.shape}; each target needs one of each"
            )
        outputs = [output for output in self.targets if output is not None]
        if len(self.weights) < _OF_LENGTH:
            raise ConfigError(
                f"the output head has {len(self.weights)} rows of weights; it needs one for each "
                f"feature and {_OF_LENGTH} for the length"
            )
        if self.length[1] <= 0 or any(output.low > output.top for output in outputs):
            raise ConfigError("the output head's spread is 0, or a target's low is above its top")

    @property
    def width(self) -> int:
        """The number of feature columns that it needs."""
        return len(self.weights) - _OF_LENGTH

    @property
    def r2(self) -> Float64[NDArray[np.float64], " target"]:
        """The share of the logarithm's variance explained out of fold; NaN where unknown."""
        return np.array([np.nan if target is None else target.r2 for target in self.targets])

    @property
    def words(self) -> str:
        """How well it predicts, for people."""
        r2 = self.r2[~np.isnan(self.r2)]
        if not r2.size:
            return "Equation 1, since no target's output is known"
        return (
            f"predicted output, which explains {r2.mean():.0%} of the variance of its logarithm "
            f"out of fold ({r2.min():.0%} to {r2.max():.0%} over targets)"
        )

    def check(self, *, width: int, names: tuple[str, ...]) -> None:
        """Check that it was fitted for this number of features and these targets.

        Raises:
            ConfigError: It wasn't.
        """
        if (self.width, self.names) != (width, names):
            raise ConfigError(
                f"the output head has {self.width} features and targets {self.names}; the router "
                f"has {width} and {names}"
            )

    def expect(self, features: Columns, tokens: Real[NDArray[Any], " query"]) -> Expected:
        """Predict the output of each target.

        Args:
            features: The predictor's features.
            tokens: The encoder's token count of each query, before truncation.
        """
        own, of_length = self.weights[: self.width], self.weights[self.width :]
        beyond = features @ own + _length_columns(tokens, self.length) @ of_length
        level, low, top, smearing, high = self._tabulate_targets
        amount = np.exp(np.clip(level + beyond, np.log(low), np.log(top)))
        return Expected(np.minimum(amount * smearing, top), np.minimum(amount * high, top))

    @cached_property
    def _tabulate_targets(self) -> Float64[NDArray[np.float64], "number target"]:
        names = ("level", "low", "top", "smearing", "high")
        rows = [[np.nan if t is None else getattr(t, name) for t in self.targets] for name in names]
        return np.array(rows)


class OutputFit(NamedTuple):
    """A fitted output head, and its predictions for the train rows.

    Attributes:
        head: The fitted head.
        out_of_fold: Predictions for each train row by weights that were fitted on other folds.
    """

    head: OutputHead
    out_of_fold: Expected


def fit_output(
    features: Columns,
    train: RoutingDataset,
    tokens: Real[NDArray[Any], " query"],
    folds: Int64[NDArray[np.int64], " query"],
    costs: CostEstimator,
) -> OutputFit:
    """Learn the output of each target from the train rows; missing amounts are left out.

    Args:
        features: The predictor's features of each train row.
        train: The train rows.
        tokens: The encoder's token count of each query, before truncation.
        folds: The fold of each row.
        costs: Equation 1 fitted on the same rows, which says which targets' amounts are tokens.
    """
    logs = np.log(np.maximum(np.asarray(tokens, dtype=np.float64), 1))
    length = (float(logs.mean()), float(logs.std()) or 1.0, float(logs.min()), float(logs.max()))
    mean, scale = _fit_scaling(features)
    read = _StandardisedInputs(features, mean, scale, _length_columns(tokens, length)[:, :2])
    weights = np.zeros((features.shape[1] + _OF_LENGTH, len(train.pool)), dtype=np.float32)
    targets: list[OutputOfTarget | None] = []
    unseen = np.full((2, *train.correct.shape), np.nan)
    for k, amounts in enumerate(_list_amounts(train, costs).T):
        learned = _learn_target(read, amounts, folds)
        targets.append(None if learned is None else learned.target)
        if learned is not None:
            slopes = np.concatenate([learned.weights[:-2] * scale, learned.weights[-2:]])
            weights[:, k] = [*slopes, learned.offset - slopes[:-2] @ mean]
            unseen[:, :, k] = _expect_output(learned.target, learned.beyond)
    head = OutputHead(train.pool.names, tuple(targets), length, weights)
    return OutputFit(head, Expected(*unseen))


class _Learned(NamedTuple):
    """The fit of one target: its numbers, its weights, and its predictions for the train rows.

    `beyond`, the predicted logarithm minus the level, is out of fold for rows whose amount is
    known; the other rows aren't used to fit.
    """

    target: OutputOfTarget
    weights: Vector
    offset: float
    beyond: Vector


@final
class _StandardisedInputs:
    """The standardised features beside the length, computed block by block, or once if few."""

    def __init__(
        self,
        features: Columns,
        mean: Float64[NDArray[np.float64], " column"],
        scale: Float64[NDArray[np.float64], " column"],
        length: Float64[NDArray[np.float64], "query 2"],
        rows: Int64[NDArray[np.int64], " row"] | None = None,
    ) -> None:
        self._parts, self._rows = (features, mean, scale, length), rows
        self._whole = self._compute_rows(slice(None)) if len(row_blocks(len(self))) == 1 else None

    def of(self, rows: NDArray[np.int64]) -> "_StandardisedInputs":
        """Only these rows."""
        return _StandardisedInputs(*self._parts, rows)

    def __len__(self) -> int:
        return len(self._parts[0]) if self._rows is None else len(self._rows)

    def __getitem__(self, block: slice) -> Matrix:
        return self._compute_rows(block) if self._whole is None else self._whole[block]

    def _compute_rows(self, block: slice) -> Matrix:
        features, mean, scale, length = self._parts
        rows = block if self._rows is None else self._rows[block]
        return np.column_stack([(features[rows] - mean) * scale, length[rows]])


def _learn_target(
    read: _StandardisedInputs, amounts: Vector, folds: NDArray[np.int64]
) -> _Learned | None:
    is_known = ~np.isnan(amounts)
    if not is_known.any():
        return None
    logs = np.log(amounts[is_known])
    level = float(logs.mean())
    weights, offset, beyond = np.zeros(read[:1].shape[1]), 0.0, np.zeros(len(read))
    if is_known.sum() >= _LEAST_ROWS and len(np.unique(folds[is_known])) > 1:
        ridge = fit_ridge(read.of(np.flatnonzero(is_known)), logs, folds[is_known])
        factor = _fit_factor(ridge.out_of_fold, logs, folds[is_known])
        weights, offset = factor * ridge.weights, factor * (ridge.intercept - level)
        for block in row_blocks(len(read)):
            beyond[block] = read[block] @ weights + offset
        beyond[is_known] = factor * (ridge.out_of_fold - level)
    return _Learned(_describe_target(logs, level, beyond[is_known]), weights, offset, beyond)


def _describe_target(logs: Vector, level: float, beyond: Vector) -> OutputOfTarget:
    """The numbers of a target, from the logarithms of its amounts and their predictions."""
    low, top = float(logs.min()), float(logs.max())
    predicted = np.clip(level + beyond, low, top)
    left = np.sort(logs - predicted)
    smearing = float(np.exp(logs).sum() / np.exp(predicted).sum())
    high = float(np.exp(left[min(len(left) - 1, math.ceil(HIGH * (len(left) + 1)) - 1)]))
    varied = float(((logs - level) ** 2).sum())
    return OutputOfTarget(
        level=level,
        low=float(np.exp(low)),
        top=float(np.exp(top)),
        smearing=smearing,
        high=max(high, smearing),
        r2=max(0.0, 1 - float((left**2).sum()) / varied) if varied > 0 and beyond.any() else 0.0,
    )


def _expect_output(target: OutputOfTarget, beyond: Vector) -> tuple[Vector, Vector]:
    amount = np.exp(np.clip(target.level + beyond, math.log(target.low), math.log(target.top)))
    mean, high = (
        np.minimum(amount * factor, target.top) for factor in (target.smearing, target.high)
    )
    return mean, high


def _fit_factor(predicted: Vector, happened: Vector, folds: NDArray[np.int64]) -> float:
    """The slope, within folds, of observed on predicted values, minus its standard error."""
    x, y = predicted.copy(), happened.copy()
    for fold in np.unique(folds):
        rows = folds == fold
        x[rows] -= x[rows].mean()
        y[rows] -= y[rows].mean()
    squares = float((x**2).sum())
    if squares < _NOTHING:
        return 0.0
    slope = float(x @ y) / squares
    error = float(np.sqrt((((y - slope * x) * x) ** 2).sum())) / squares
    return float(np.clip(slope - error, 0, 1))


def _list_amounts(train: RoutingDataset, costs: CostEstimator) -> Table:
    """The output of each target, in tokens, or in US dollars where no count is known; above 0."""
    counted = ~np.isnan(costs.median_output)
    amounts = np.where(counted, train.output_tokens, train.recorded_cost)
    some = np.where(amounts > 0, amounts, np.inf).min(axis=0, initial=np.inf)
    return np.where(np.isinf(some), np.nan, np.maximum(amounts, some))


def _fit_scaling(features: Columns) -> tuple[Vector, Vector]:
    """The mean and the multiplier of each column; the multiplier is 0 for unused columns.

    Columns are divided by the square root of their standard deviation, half-way between no scaling
    and unit variance, and then by one number that makes their variances add up to 1.
    """
    mean, spread = mean_and_spread(features)
    widest = np.argsort(-spread, kind="stable")[:WIDEST]
    scale = np.zeros(features.shape[1])
    scale[widest] = 1 / np.sqrt(np.maximum(spread[widest], _NOTHING))
    whole = math.sqrt(float(((spread * scale) ** 2).sum()))
    return mean, scale / max(whole, _NOTHING)


def _length_columns(
    tokens: Real[NDArray[Any], " query"], length: tuple[float, float, float, float]
) -> Float64[NDArray[np.float64], "query 3"]:
    """The clipped and standardised logarithm of the input tokens, its square, and 1."""
    mean, spread, least, most = length
    logs = np.log(np.maximum(np.asarray(tokens, dtype=np.float64), 1))
    standard = (np.clip(logs, least, most) - mean) / spread
    return np.column_stack([standard, standard**2, np.ones(len(standard))])
