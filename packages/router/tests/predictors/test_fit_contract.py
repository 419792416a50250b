"""The suite for fitting: a sound method passes, and each fault is found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, logit

from packages.router.tests.predictors.fit_contract import FIT_CHECKS, Case
from prefill_router.errors import CorruptError
from prefill_router.predictors import Examples, Predictor, PredictorConfig, PredictorFit
from prefill_router.predictors.base import (
    Correctness,
    Features,
    check_features,
)
from prefill_router.progress import Progress
from prefill_router.serialization import Tensors, take_tensors


class OwnPredictor(Predictor):
    """Each target's probability follows from a column of its own."""

    kind: ClassVar[str] = "own"

    def __init__(self, names: tuple[str, ...], width: int, line: NDArray[np.float32]) -> None:
        self._names, self._width, self._line = names, width, line

    @property
    def targets(self) -> tuple[str, ...]:
        return self._names

    @property
    def width(self) -> int:
        return self._width

    def correctness(self, features: Features) -> Correctness:
        check_features(features, width=self.width)
        slope, shift = self._line.astype(np.float64)
        probability: Correctness = expit(features[:, : len(self._names)] * slope + shift)
        return probability

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "targets": list(self._names), "width": self._width}

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {"line": self._line}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "OwnPredictor":
        sound = set(config) == {"kind", "targets", "width"} and all(config.values())
        if not sound or config["kind"] != cls.kind:
            raise CorruptError("not its own")
        [line] = take_tensors(tensors, {"line": (2, len(config["targets"]))})
        return cls(tuple(config["targets"]), config["width"], line)


@dataclass(frozen=True)
class OwnConfig(PredictorConfig):
    """A method with a fault to choose; without one it is sound."""

    fault: str = ""

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        del seed, progress
        features, correct = examples.features, examples.correct
        if self.fault == "divides by spread":
            features = features / features.std(axis=0)
        if self.fault == "needs ten rows":
            features[10]
        if self.fault == "changes its arguments":
            features -= 1e-3
        if self.fault == "counts missing labels":
            correct = np.nan_to_num(correct)
        if self.fault == "cuts labels":
            correct = np.where(np.isnan(correct), np.nan, np.round(correct))
        line = np.stack([self._line(x, y) for x, y in zip(features.T, correct.T, strict=False)])
        line[~examples.learnable] = 0
        line[~examples.learnable, 1] = logit(examples.base_rates[~examples.learnable])
        if self.fault == "no base rate":
            line[~examples.learnable, 1] = 0
        if self.fault == "looks at no label":
            line[:, 0] = 1
        if self.fault == "draws without a seed":
            line += np.random.default_rng().normal(size=line.shape) / 1e4
        if self.fault == "counts all rows":
            line += len(features) / 1e4
        shared = line.T.astype(np.float32)
        if self.fault == "keeps its arguments":
            shared = features[:2, : len(examples.targets)]
        notes = () if self.fault == "no notes" else examples.target_notes()
        training = {"loss": float("nan")} if self.fault == "no record" else {}
        predictor = OwnPredictor(examples.targets, features.shape[1], shared)
        return PredictorFit(predictor, notes, training)

    def _line(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        """Slope and shift by some steps of Newton's method, with a little ridge."""
        is_known = ~np.isnan(y)
        if self.fault == "looks at the first rows":
            is_known &= np.arange(len(y)) < len(y) // 2
        coefficients, scale = np.zeros(2), max(float(np.abs(x[is_known]).max(initial=0)), 1e-12)
        inputs = np.stack([x[is_known] / scale, np.ones(is_known.sum())], axis=1).astype(np.float64)
        for _ in range(8 if self.fault != "looks at no feature" else 0):
            chance = expit(inputs @ coefficients)
            curve = (inputs.T * (chance * (1 - chance))) @ inputs + 0.1 * np.eye(2)
            coefficients -= np.linalg.solve(
                curve, inputs.T @ (chance - y[is_known]) + 0.1 * coefficients
            )
        return coefficients / [scale, 1]


def case(fault: str) -> Case:
    return Case(config=OwnConfig(fault), load=OwnPredictor.from_dict)


FAULTS = {
    "changes its arguments": "arguments",
    "counts all rows": "rows without labels",
    "counts missing labels": "missing labels",
    "cuts labels": "soft labels",
    "divides by spread": "odd features",
    "draws without a seed": "same seed",
    "keeps its arguments": "arguments",
    "looks at no feature": "signal",
    "looks at no label": "signal",
    "looks at the first rows": "order of rows",
    "needs ten rows": "few",
    "no base rate": "unlearnable targets",
    "no notes": "unlearnable targets",
    "no record": "record",
}


@pytest.mark.parametrize("check", FIT_CHECKS)
def test_suite_passes_a_sound_method(check: str) -> None:
    FIT_CHECKS[check](case(""))


@pytest.mark.parametrize("fault", FAULTS)
def test_suite_finds(fault: str) -> None:
    with pytest.raises((AssertionError, ValueError, IndexError, RuntimeWarning)):
        FIT_CHECKS[FAULTS[fault]](case(fault))


def test_suite_finds_labels_that_are_not_cut() -> None:
    with pytest.raises(AssertionError, match="soft labels"):
        FIT_CHECKS["soft labels"](
            Case(config=OwnConfig(), cuts_labels=True, load=OwnPredictor.from_dict)
        )
