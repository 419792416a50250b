from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jaxtyping import Float64
from numpy.typing import NDArray

from packages.router.tests.calibration.calibrator_contract import Array, check_calibrator
from packages.router.tests.part_cases import check_guide
from prefill_router.calibration import (
    KINDS,
    Calibrator,
    CalibratorFit,
    CalibratorKind,
    find,
    fit_calibrator,
    load_calibrator,
)
from prefill_router.calibration.base import LEAST, logits
from prefill_router.calibration.calibrators import Isotonic, Platt
from prefill_router.errors import ConfigError, CorruptError, FitError

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c")
Table = Float64[NDArray[np.float64], "query target"]


def sample(rows: int = 400, *, seed: int = 0, targets: int = 3) -> tuple[Array, Array]:
    """Predictions that are too sure of themselves, and labels, a tenth of them missing."""
    random = np.random.default_rng(seed)
    line = random.normal(0.3, 1.5, (rows, targets))
    correct = (random.random(line.shape) < 1 / (1 + np.exp(-0.5 * line + 0.4))).astype(np.float64)
    correct[random.random(line.shape) < 0.1] = np.nan
    return 1 / (1 + np.exp(-line)), correct


def fit_kind(kind: CalibratorKind, *data: Array) -> CalibratorFit:
    correctness, correct = data or sample()
    return fit_calibrator(kind, correctness, correct, NAMES[: correct.shape[1]])


@dataclass(frozen=True, eq=False)
class FaultyCalibrator(Calibrator):
    """A calibrator with a fault to choose; without one it is sound."""

    kind: ClassVar[str] = "crooked"
    label: ClassVar[str] = "crooked"
    source: ClassVar[str] = ""
    probabilistic: ClassVar[bool] = True
    fault: str
    power: NDArray[np.float32]

    @classmethod
    def fit(cls, correctness: Table, correct: Table, targets: tuple[str, ...]) -> CalibratorFit:
        raise NotImplementedError

    def calibrate(self, correctness: Table) -> Table:
        return (
            self._map(correctness) if self.fault == "unchecked" else super().calibrate(correctness)
        )

    def _map(self, correctness: Table) -> Table:
        if self.fault == "same array":
            correctness[:] = correctness
            return correctness
        result = correctness**self.power
        if self.fault == "falls":
            result = np.where(correctness > 0.4, result, 1 - result)
        if self.fault == "leaves the range":
            result = 1.2 * result
        if self.fault == "batch" and len(result):
            result = result * (1 - result.mean(axis=0))
        if self.fault == "other columns":
            result = result * correctness.mean(axis=1, keepdims=True)
        return result

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "targets": list(NAMES)}

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {"power": self.power}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> "FaultyCalibrator":
        raise NotImplementedError

    def load(self, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> "FaultyCalibrator":
        sound = dict(config) == self.to_dict() and set(tensors) == {"power"}
        if self.fault != "loads anything":
            if not sound or tensors["power"].shape != (3,) or tensors["power"].dtype != np.float32:
                raise CorruptError("not a crooked calibrator")
            if np.isnan(tensors["power"]).any():
                raise CorruptError("not a power")
        changed = np.float32(self.fault == "loads another")
        return FaultyCalibrator(NAMES, self.fault, self.power + changed)


FAULTS = [
    *("batch", "falls", "leaves the range", "loads another", "loads anything"),
    *("other columns", "same array", "unchecked"),
]


def test_the_guide_names_every_kind() -> None:
    """All kinds go through the suite by themselves."""
    check_guide(KINDS, "calibration.md")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [LEAST, 400])
def test_contract(kind: CalibratorKind, rows: int) -> None:
    calibrator = fit_kind(kind, *sample(rows)).calibrator
    assert (calibrator.kind, calibrator.targets) == (kind, NAMES)
    check_calibrator(calibrator, sample(30, seed=1)[0])


def test_suite_passes_a_sound_calibrator() -> None:
    sound = FaultyCalibrator(NAMES, "", np.array([1, 2, 3], np.float32))
    check_calibrator(sound, sample(9)[0], load=sound.load)


@pytest.mark.parametrize("fault", FAULTS)
def test_suite_finds(fault: str) -> None:
    bad = FaultyCalibrator(NAMES, fault, np.array([1, 2, 3], np.float32))
    with pytest.raises((AssertionError, pytest.fail.Exception, ValueError, KeyError)):
        check_calibrator(bad, sample(9)[0], load=bad.load)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_never_falls(kind: CalibratorKind, data: st.DataObject) -> None:
    number = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0, 1e-9, 0.3, 0.3000001]))
    rows = data.draw(st.lists(number, min_size=LEAST, max_size=40))
    label = st.sampled_from([0.0, 1.0, 0.5, np.nan])
    labels = data.draw(st.lists(label, min_size=len(rows), max_size=len(rows)))
    table = np.array(rows)[:, None]
    calibrator = fit_kind(kind, table, np.array(labels)[:, None]).calibrator
    new_scores = np.sort(np.array([*rows, *data.draw(st.lists(number, max_size=20)), 0.0, 1.0]))
    given_back = calibrator.calibrate(new_scores[:, None])[:, 0]
    assert ((given_back >= 0) & (given_back <= 1)).all()
    assert (np.diff(given_back) >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_order_of_rows_changes_no_bit(kind: CalibratorKind) -> None:
    correctness, correct = sample()
    order = np.random.default_rng(5).permutation(len(correct))
    new_scores = sample(50, seed=2)[0]
    first = fit_kind(kind, correctness, correct).calibrator.calibrate(new_scores)
    again = fit_kind(kind, correctness[order], correct[order]).calibrator.calibrate(new_scores)
    assert np.array_equal(first, again)


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_missing_labels_are_left_out(kind: CalibratorKind) -> None:
    correctness, correct = sample(targets=1)
    is_known = ~np.isnan(correct[:, 0])
    new_scores = sample(50, seed=2, targets=1)[0]
    masked = fit_kind(kind, correctness, correct).calibrator.calibrate(new_scores)
    without = fit_kind(kind, correctness[is_known], correct[is_known]).calibrator.calibrate(
        new_scores
    )
    assert np.array_equal(masked, without)
    as_wrong = fit_kind(kind, correctness, np.nan_to_num(correct)).calibrator.calibrate(new_scores)
    assert np.abs(as_wrong - masked).max() > 0.01  # control


@pytest.mark.parametrize("kind", ["percentile", "z_score"])
def test_scales_use_no_labels_and_say_so(kind: CalibratorKind) -> None:
    correctness, correct = sample()
    fit = fit_kind(kind, correctness, correct)
    new_scores = sample(50, seed=2)[0]
    unlabelled = fit_kind(kind, correctness, np.full_like(correct, np.nan)).calibrator
    assert np.array_equal(fit.calibrator.calibrate(new_scores), unlabelled.calibrate(new_scores))
    assert "isn't a probability" in fit.notes[0]
    assert not fit.calibrator.probabilistic
    assert fit.calibrator.calibrate(correctness).mean(axis=0) == pytest.approx(0.5, abs=0.03)


def test_platt_agrees_with_scikit_learn() -> None:
    from sklearn.calibration import _sigmoid_calibration

    correctness, correct = sample(targets=2)
    platt = fit_kind("platt", correctness, correct).calibrator
    assert isinstance(platt, Platt)
    for k in range(2):
        is_known = ~np.isnan(correct[:, k])
        a, b = _sigmoid_calibration(logits(correctness[is_known, k]), correct[is_known, k])
        assert platt.slope[k] == pytest.approx(-a, abs=2e-4)
        assert platt.intercept[k] == pytest.approx(-b, abs=2e-4)


def test_platt_is_the_maximum_of_the_smoothed_likelihood() -> None:
    correctness, correct = sample(targets=1)
    soft = np.clip(correct * 0.8 + 0.1, 0, 1)
    platt = fit_kind("platt", correctness, soft).calibrator
    assert isinstance(platt, Platt)
    is_known = ~np.isnan(soft[:, 0])
    x, label = logits(correctness[is_known, 0]), soft[is_known, 0]
    right, wrong = label.sum(), (1 - label).sum()
    goal = label * (right + 1) / (right + 2) + (1 - label) / (wrong + 2)
    given_back = platt.calibrate(correctness[is_known])[:, 0]
    assert np.mean(given_back - goal) == pytest.approx(0, abs=1e-6)
    assert np.mean((given_back - goal) * x) == pytest.approx(0, abs=1e-6)


def test_platt_undoes_what_was_too_sure() -> None:
    random = np.random.default_rng(3)
    line = random.normal(0, 2, (20_000, 1))
    correct = (random.random(line.shape) < 1 / (1 + np.exp(-line))).astype(np.float64)
    platt = fit_kind("platt", 1 / (1 + np.exp(-3 * line - 1)), correct).calibrator
    assert isinstance(platt, Platt)
    assert platt.slope[0] == pytest.approx(1 / 3, abs=0.02)
    assert platt.intercept[0] == pytest.approx(-1 / 3, abs=0.05)


def test_platt_stays_finite_where_the_labels_can_be_told_apart() -> None:
    correctness = np.linspace(0.01, 0.99, 40)[:, None]
    platt = fit_kind("platt", correctness, (correctness > 0.5).astype(np.float64)).calibrator
    result = platt.calibrate(correctness)
    assert 0 < result.min() < 0.06
    assert 0.94 < result.max() < 1


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_curve_that_would_fall_is_level(kind: CalibratorKind) -> None:
    correctness, correct = sample(targets=2)
    correctness[:, 1] = 1 - correctness[:, 1]
    fit = fit_kind(kind, correctness, correct)
    result = fit.calibrator.calibrate(correctness)
    assert np.ptp(result[:, 0]) > 0.2
    if kind == "platt":
        rate = np.nanmean(correct[:, 1])
        assert result[:, 1] == pytest.approx(rate, abs=0.01)
        assert np.ptp(result[:, 1]) == 0
        assert len(fit.notes) == 1
        assert fit.notes[0].startswith("b: its calibration labels fall, with a slope of -0.3")
    else:
        assert np.ptp(result[:, 1]) < 0.2


def test_steps_agree_with_scikit_learn() -> None:
    from sklearn.isotonic import IsotonicRegression

    correctness, correct = sample(300)
    correctness = np.round(correctness, 2).astype(np.float32).astype(np.float64)  # with ties
    isotonic = fit_kind("isotonic", correctness, correct).calibrator
    assert isinstance(isotonic, Isotonic)
    for k, (middle, height) in enumerate(zip(isotonic.curves.x, isotonic.curves.y, strict=True)):
        is_known = ~np.isnan(correct[:, k])
        oracle = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
        steps = oracle.fit_transform(correctness[is_known, k], correct[is_known, k])
        assert np.unique(np.round(steps, 6)) == pytest.approx(height, abs=2e-6)
        np.testing.assert_allclose(oracle.predict(middle), height, atol=2e-6)
        middles = [correctness[is_known, k][np.isclose(steps, h)].mean() for h in height]
        assert middles == pytest.approx(middle.tolist(), abs=1e-6)


def test_isotonic_is_straight_between_the_middles_of_its_steps() -> None:
    scores = np.repeat([0.1, 0.3, 0.5, 0.7], 5)[:, None]
    correct = np.concatenate([[0.0] * 5, [1, 0, 0, 0, 0], [0.0] * 5, [1, 1, 1, 1, 0]])[:, None]
    isotonic = fit_kind("isotonic", scores, correct).calibrator
    new_scores = np.array([0, 0.1, 0.25, 0.4, 0.55, 0.7, 1])[:, None]
    expected = [0, 0, 0.05, 0.1, 0.45, 0.8, 0.8]
    assert isotonic.calibrate(new_scores)[:, 0] == pytest.approx(expected, abs=1e-6)


def test_percentile_is_the_mid_rank() -> None:
    scores = np.array([0.2, 0.2, 0.4, 0.6, 0.8, *([0.9] * 5)])[:, None]
    percentile = fit_kind("percentile", scores, np.full_like(scores, np.nan)).calibrator
    new_scores = np.array([0, 0.1, 0.2, 0.3, 0.4, 0.9, 1])[:, None]
    expected = [0, 0.05, 0.1, 0.175, 0.25, 0.75, 1]
    assert percentile.calibrate(new_scores)[:, 0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", ["percentile", "z_score", "platt"])
def test_ranking_within_a_target_is_kept(kind: CalibratorKind) -> None:
    new_scores = np.sort(np.random.default_rng(8).uniform(0.01, 0.99, (200, 3)), axis=0)
    assert (np.diff(fit_kind(kind).calibrator.calibrate(new_scores), axis=0) > 0).all()


def test_z_score_is_standard_normal() -> None:
    from scipy.stats import norm

    correctness, correct = sample(targets=1)
    line = np.log(correctness / (1 - correctness))
    expected = norm.cdf((line - line.mean()) / line.std())
    result = fit_kind("z_score", correctness, correct).calibrator.calibrate(correctness)
    np.testing.assert_allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_gives_the_rule_of_succession(kind: CalibratorKind, label: float) -> None:
    correctness, correct = sample(40, targets=2)
    correct[:, 1] = label
    fit = fit_kind(kind, correctness, correct)
    given_back = fit.calibrator.calibrate(correctness)[:, 1]
    assert given_back == pytest.approx((40 * label + 1) / 42, abs=1e-6)
    assert fit.notes == (
        "b: all its 40 calibration labels are the same; its predictions become "
        f"{(40 * label + 1) / 42:.3f}",
    )


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
@pytest.mark.parametrize("labels", [0, LEAST - 1])
def test_too_few_labels_change_nothing(kind: CalibratorKind, labels: int) -> None:
    correctness, correct = sample(40, targets=2)
    correct[:, 1] = np.nan
    correct[:labels, 1] = np.arange(labels) % 2
    fit = fit_kind(kind, correctness, correct)
    np.testing.assert_allclose(
        fit.calibrator.calibrate(correctness)[:, 1], correctness[:, 1], atol=1e-6
    )
    assert fit.notes[0].startswith(f"b: it has {labels} calibration labels and needs {LEAST}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, LEAST - 1])
def test_too_few_queries_change_nothing(kind: CalibratorKind, rows: int) -> None:
    fit = fit_kind(kind, *sample(rows))
    new_scores = sample(5)[0]
    assert np.array_equal(fit.calibrator.calibrate(new_scores), new_scores)
    assert bool(fit.notes) == (kind != "none")


@pytest.mark.parametrize("kind", KINDS)
def test_equal_predictions_become_equal_numbers(kind: CalibratorKind) -> None:
    correct = np.array([1.0, 0.0, 0.0, 0.0] * 5)[:, None]
    fit = fit_kind(kind, np.full_like(correct, 0.7), correct)
    expected = {"none": 0.7, "platt": 0.25, "isotonic": 0.25, "percentile": 0.5, "z_score": 0.5}
    given_back = fit.calibrator.calibrate(np.array([[0.7]]))
    assert given_back[0, 0] == pytest.approx(expected[kind], abs=0.03)
    assert bool(fit.notes) == (kind != "none")


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_brier_score_falls_on_new_rows(kind: CalibratorKind) -> None:
    correctness, correct = sample(4000, seed=11)
    calibrator = fit_kind(kind).calibrator
    before = np.nanmean((correctness - correct) ** 2)
    after = np.nanmean((calibrator.calibrate(correctness) - correct) ** 2)
    assert after < before - 0.01


def test_bad_input_is_refused() -> None:
    correctness, correct = sample(20)
    with pytest.raises(ConfigError, match=r"no calibrator 'magic'; known are"):
        find("magic")
    for names in (("a", "b"), ("a", "b", "b"), ()):
        with pytest.raises(FitError):
            fit_calibrator("platt", correctness, correct, names)
    with pytest.raises(FitError, match="one row per query"):
        fit_calibrator("platt", correctness[:-1], correct, NAMES)
    for bad in (-0.1, np.nan, np.inf):
        broken = correctness.copy()
        broken[3, 1] = bad
        with pytest.raises(FitError, match="predictions"):
            fit_calibrator("platt", broken, correct, NAMES)
    with pytest.raises(FitError, match="labels"):
        fit_calibrator("platt", correctness, correct + 0.5, NAMES)


@pytest.mark.parametrize(
    ("kind", "array", "change"),
    [
        ("platt", "slope", -1.0),
        ("z_score", "deviation", -1.0),
        ("isotonic", "x", 2.0),
        ("isotonic", "y", -0.5),
        ("percentile", "x", 0.5),
        ("percentile", "y", 0.9),
    ],
)
def test_curves_that_fall_or_leave_the_range_are_corrupt(
    kind: CalibratorKind, array: str, change: float
) -> None:
    calibrator = fit_kind(kind).calibrator
    tensors = {name: values.copy() for name, values in calibrator.tensors().items()}
    tensors[array][0] = change
    with pytest.raises(CorruptError, match="calibrator"):
        load_calibrator(calibrator.to_dict(), tensors)


def test_unknown_kind_is_corrupt() -> None:
    with pytest.raises(CorruptError, match=r"'magic'; known are"):
        load_calibrator({"kind": "magic", "targets": ["a"]}, {})
    with pytest.raises(CorruptError):
        load_calibrator(fit_kind("isotonic").calibrator.to_dict() | {"kind": "none"}, {})
