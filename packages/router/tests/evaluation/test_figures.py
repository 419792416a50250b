"""What figures and tables show: bands of whole curves, one reference, one meaning of bold."""

import dataclasses
import math

import numpy as np
import pytest

from packages.router.tests.evaluation.trials import random_system
from prefill_router.evaluation import Evaluation, References, Trial, evaluate, worded
from prefill_router.evaluation.bootstrap import Band, Estimate
from prefill_router.reporting.evaluation_charts import draw, draw_side_by_side, drawing
from prefill_router.reporting.evaluation_report import evaluation_figures
from prefill_router.reporting.evaluation_tables import references
from prefill_router.reporting.report import BOLD, Cell, Table, estimate_cell, significance
from prefill_router.reporting.report_files import page, style

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return evaluate(*random_system(queries=150, targets=5, seed=3), resamples=30)


def test_marks_are_said_to_be_without_correction() -> None:
    assert "without a correction for how many there are" in BOLD


def render_cell(cell: Cell | str) -> str:
    return page("Title", [Table(["", "number"], [["row", cell]])])


def paths(count: int, seed: int) -> np.ndarray:
    """Random walks, whose ends depend little on their beginnings."""
    return np.random.default_rng(seed).normal(size=(count, 60)).cumsum(axis=1)


def test_a_band_holds_whole_curves() -> None:
    curves = paths(1000, 0)
    band = Band.of(np.arange(60.0), curves)
    share = ((curves >= band.lower) & (curves <= band.upper)).all(axis=1).mean()
    fresh = paths(1000, 1)
    fresh_share = ((fresh >= band.lower) & (fresh <= band.upper)).all(axis=1).mean()
    assert 0.95 <= share < 0.97
    assert fresh_share == pytest.approx(0.95, abs=0.03)


def test_a_band_is_drawn_where_most_curves_reach() -> None:
    curves = paths(200, 0)
    curves[:50, -1] = np.nan
    curves[:10, 0] = np.nan
    band = Band.of(np.arange(60.0), curves)
    assert np.isnan([band.lower[-1], band.upper[-1]]).all()
    assert np.isfinite(band.lower[:-1]).all()
    nothing = Band.of(np.arange(60.0), curves[:0])
    assert np.isnan(nothing.lower).all()


def test_the_band_of_an_evaluation_is_wider_than_the_intervals_of_its_places() -> None:
    evaluation = evaluate(*random_system(queries=150, targets=5, seed=3), resamples=200)
    oracle = evaluation.headline["argmax_accuracy"]
    ends = evaluation.raw_band.upper[-20:] - evaluation.raw_band.lower[-20:]
    assert np.nanmax(ends) > oracle.upper - oracle.lower


@pytest.mark.parametrize("view", ["raw", "normalised"])
def test_targets_are_labelled_and_joined_by_no_straight_line(
    evaluation: Evaluation, view: str
) -> None:
    what = drawing(evaluation, "raw" if view == "raw" else "normalised")
    axes = draw(what).axes[0]
    words = {text.get_text() for text in axes.texts}
    assert set(evaluation.targets) <= words
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert "their frontier" not in lines
    assert lines["on the Pareto frontier"].get_linestyle() == "None"
    mixed = lines["best fixed mix"]
    assert mixed.get_linestyle() == "--"
    if view == "raw":  # straight in cost, so bent on the logarithmic axis
        x, y = np.log(np.asarray(mixed.get_xdata(), float)), np.asarray(mixed.get_ydata(), float)
        assert axes.get_xscale() == "log"
        assert np.abs(np.diff(y, 2)).max() > 0 or np.abs(np.diff(x, 2)).max() > 1e-6


def test_price_alone_is_drawn_beside_the_mix() -> None:
    predictions, data = random_system(queries=200, targets=3, seed=3)
    train_references = References.fit(data, predictions.normalised_cost)
    evaluation = evaluate(predictions, data, references=train_references, resamples=0)
    costs = [point.mean_cost for point in evaluation.price_alone]
    assert costs == sorted(costs)
    assert evaluation.price_alone[-1].accuracy == pytest.approx(data.correct.mean(axis=0).max())
    for view in ("raw", "normalised"):
        what = drawing(evaluation, "raw" if view == "raw" else "normalised")
        assert "price alone" in {line.get_label() for line in draw(what).axes[0].get_lines()}
        assert [row for row in what.rows() if row["series"] == "price alone"]
    table = references(evaluation)
    gain = table.rows[0][5]
    assert evaluation.verdict is not None
    assert evaluation.verdict.setting.price is not None
    assert isinstance(gain, Cell)
    assert gain.text == worded(evaluation.verdict.setting.price.gain.value, "points", signed=True)


def test_systems_side_by_side_have_labelled_targets_too(evaluation: Evaluation) -> None:
    axes = draw_side_by_side({"a": evaluation, "b": evaluation}, title="t").axes[0]
    assert set(evaluation.targets) <= {text.get_text() for text in axes.texts}


def test_the_share_of_calls_to_the_dearest_is_that_of_plain_counts(evaluation: Evaluation) -> None:
    predictions, data = random_system(queries=150, targets=5, seed=3)
    trial = Trial.join(predictions, data)
    dearest = int(data.observed_cost.mean(axis=0).argmax())
    curve = evaluation.curve
    middle = (curve.lam_from + np.minimum(curve.lam_to, 1)) / 2
    for place in range(0, len(curve), 7):
        chosen = trial.path.at(float(middle[place]))
        assert curve.dearest_share[place] == pytest.approx((chosen == dearest).mean())
    below = draw(drawing(evaluation, "raw")).axes[1]
    assert f"t{dearest}" in below.get_ylabel()
    unasked = dataclasses.replace(curve, dearest_share=np.zeros(len(curve)))
    never = dataclasses.replace(evaluation, curve=unasked)
    assert len(draw(drawing(never, "raw")).axes) == 1


def test_without_costs_there_is_no_dearest_target() -> None:
    predictions, data = random_system(queries=40, seed=3)
    free = dataclasses.replace(data, recorded_cost=np.full((40, 4), np.nan))
    evaluation = evaluate(predictions, free, resamples=0)
    assert np.isnan(evaluation.curve.dearest_share).all()
    assert drawing(evaluation, "raw").costliest is None
    assert drawing(evaluation, "raw").is_empty
    assert [figure.caption for figure in evaluation_figures(evaluation)] == ["", ""]


def test_bold_is_surely_better_and_brackets_surely_worse() -> None:
    gain, loss, even = Estimate(2, 1, 3), Estimate(-2, -3, -1), Estimate(1, -1, 3)
    assert [significance(estimate, "higher") for estimate in (gain, loss, even)] == [
        "better",
        "worse",
        "",
    ]
    assert [significance(estimate, "lower") for estimate in (gain, loss, even)] == [
        "worse",
        "better",
        "",
    ]
    assert (
        significance(gain, "neither")
        == significance(Estimate(1, math.nan, math.nan), "higher")
        == ""
    )
    assert "<b>2.000</b>" in render_cell(estimate_cell(gain, "number", compared="better"))
    assert "[-2.000]" in render_cell(estimate_cell(loss, "number", compared="worse"))
    assert "font-weight: 600" not in style()  # headers of rows aren't bold either


def test_wide_tables_can_be_reached_and_are_shaded_at_their_hidden_side() -> None:
    assert '<div class="wide" tabindex="0"><table>' in render_cell("1")
    rule = style()[style().index(".wide {") :].split("}")[0]
    assert "overflow-x: auto" in rule
    assert rule.count(" local") == rule.count(" scroll") == 2
