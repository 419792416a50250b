from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import pytest
from jaxtyping import Float32, Float64
from numpy.typing import NDArray

from packages.router.tests.predictors.contract import check_predictor
from prefill_router.errors import CorruptError
from prefill_router.predictors import Predictor, SharedTrunkNet, load_predictor
from prefill_router.predictors.base import check_features
from prefill_router.serialization import take_tensors

FEATURES = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)


def trunk() -> SharedTrunkNet:
    random = np.random.default_rng(1)
    sizes = [(5, 8), (8, 4), (4, 3)]
    return SharedTrunkNet(
        ("a", "b", "c"),
        tuple(random.normal(size=(2, *s)).astype(np.float32) for s in sizes),
        tuple(random.normal(size=(2, s[1])).astype(np.float32) for s in sizes),
    )


class Bent(Predictor):
    """A predictor with a fault to choose; without one it is sound."""

    kind: ClassVar[str] = "bent"

    def __init__(self, slope: NDArray[np.float32], fault: str) -> None:
        self._slope, self._fault, self._calls = slope, fault, 0

    @property
    def targets(self) -> tuple[str, ...]:
        return ("a", "b")

    @property
    def width(self) -> int:
        return len(self._slope)

    def correctness(
        self, features: Float32[NDArray[np.float32], "query feature"]
    ) -> Float64[NDArray[np.float64], "query target"]:
        if self._fault != "width":
            check_features(features, width=self.width)
        elif features.shape[1] != self.width:
            features = features[:, : self.width]
        self._calls += 1
        rows = features.astype(np.float64)
        if self._fault == "batch" and len(rows):
            rows = rows - rows.mean(axis=0)
        if self._fault == "changes its input":
            features += 1
        logits = rows @ self._slope + (self._calls if self._fault == "state" else 0)
        probability = logits if self._fault == "range" else (1 + np.tanh(logits)) / 2
        if self._fault == "overflow":
            with np.errstate(all="ignore"):
                probability = np.exp(rows @ self._slope * 9) / (1 + np.exp(rows @ self._slope * 9))
        return np.stack([probability, 1 - probability], axis=1)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "targets": list(self.targets), "width": self.width}

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {"slope": self._slope}

    def load(self, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> "Bent":
        if self._fault == "unchecked":
            return self
        if dict(config) != self.to_dict():
            raise CorruptError("not a bent predictor")
        [slope] = take_tensors(tensors, {"slope": (self.width,)})
        return Bent(slope + np.float32(self._fault == "load"), self._fault)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Self:
        raise NotImplementedError


FAULTS = [
    "batch",
    "changes its input",
    "load",
    "overflow",
    "range",
    "state",
    "unchecked",
    "width",
]


def bent(fault: str) -> Bent:
    return Bent(np.linspace(-1, 1, 5, dtype=np.float32), fault)


def test_shared_trunk_keeps_the_contract() -> None:
    check_predictor(trunk(), FEATURES)


def test_suite_passes_a_sound_predictor() -> None:
    check_predictor(bent(""), FEATURES.copy(), load=bent("").load)


@pytest.mark.parametrize("fault", FAULTS)
def test_suite_finds(fault: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_predictor(bent(fault), FEATURES.copy(), load=bent(fault).load)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(CorruptError, match=r"'oracle'; known are"):
        load_predictor(trunk().to_dict() | {"kind": "oracle"}, trunk().tensors())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    tensors = {k: v.copy() for k, v in trunk().tensors().items()}
    tensors["bias.1"][0, 0] = value
    with pytest.raises(CorruptError, match=r"bias\.1"):
        load_predictor(trunk().to_dict(), tensors)


def test_ensemble_is_the_mean_of_sigmoids() -> None:
    net = trunk()
    each = []
    for n in range(2):
        hidden = FEATURES.astype(np.float64)
        for weight, bias in zip(net.weights[:-1], net.biases[:-1], strict=True):
            hidden = np.clip(hidden @ weight[n] + bias[n], 0, None)
        each.append(1 / (1 + np.exp(-(hidden @ net.weights[-1][n] + net.biases[-1][n]))))
    result = net.correctness(FEATURES)
    np.testing.assert_allclose(result, (each[0] + each[1]) / 2, rtol=1e-12)
    logits = (np.log(each[0] / (1 - each[0])) + np.log(each[1] / (1 - each[1]))) / 2
    assert np.abs(result - 1 / (1 + np.exp(-logits))).max() > 1e-3  # control: not of the logits


def test_more_rows_than_one_pass() -> None:
    rows = np.random.default_rng(2).normal(size=(5000, 5)).astype(np.float32)
    expected = trunk().correctness(rows)
    np.testing.assert_allclose(
        expected[4090:4100], trunk().correctness(rows[4090:4100]), atol=1e-12
    )
