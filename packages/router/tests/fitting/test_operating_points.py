"""The operating points of a fit: chosen on train rows, out of fold."""

from dataclasses import replace

import numpy as np
import pytest

from packages.router.tests.fakes.planted_signal import states_of
from prefill_router.data import split
from prefill_router.fitting import FitConfig, fit_router, learn, recipe_from_dict
from prefill_router.policy import OperatingPoints
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

ANSWERS = make_routing_dataset(queries=200, seed=6)
STATES = states_of(ANSWERS)
SPLIT = split(ANSWERS)
RECIPE = {"features": {"kind": "prefill", "dim": 6}, "predictor": "logistic"}
CONFIG = FitConfig(recipe=recipe_from_dict(RECIPE), resamples=20)


def choose_points(answers: object) -> OperatingPoints | None:
    return learn(answers, [STATES], SPLIT, config=CONFIG).record.chosen  # type: ignore[arg-type]


def test_no_number_is_chosen_on_the_test_questions() -> None:
    test = np.isin(ANSWERS.query_ids, SPLIT["test"])[:, None]
    points = choose_points(ANSWERS)
    assert points is not None
    other = replace(
        ANSWERS,
        correct=np.where(test, 1 - ANSWERS.correct, ANSWERS.correct),
        output_tokens=np.where(test, 9999, ANSWERS.output_tokens),
    )
    assert choose_points(other) == points
    turned = replace(ANSWERS, correct=np.where(test, ANSWERS.correct, 1 - ANSWERS.correct))
    assert choose_points(turned) != points  # control


def test_a_fit_is_judged_at_what_was_chosen() -> None:
    fit = fit_router(ANSWERS, [STATES], config=CONFIG, split=SPLIT)
    points, evaluation = fit.router.record.chosen, fit.evaluation
    assert points is not None
    assert evaluation is not None
    assert evaluation.chosen == points
    assert evaluation.verdict is not None
    assert evaluation.verdict.lam == points.setting == fit.router.setting
    assert fit.router.record.verdict == evaluation.verdict.to_dict()
    trial_rows = ANSWERS.select(SPLIT["test"])
    predictions = fit.router.predict(trial_rows, stores=[STATES])
    choice = fit.router.policy.choose(
        predictions.correctness, predictions.normalised_cost, points.accurate
    )
    label = trial_rows.correct[np.arange(len(choice)), choice]
    assert evaluation.headline["chosen_accuracy"].value == np.mean(label)


def test_points_are_chosen_whether_or_not_predictions_are_shrunk() -> None:
    plain = replace(CONFIG, recipe=recipe_from_dict({**RECIPE, "shrinkage": False}))
    router = learn(ANSWERS, [STATES], SPLIT, config=plain)
    assert router.shrinkage is None
    assert router.record.chosen is not None
    off = replace(CONFIG, recipe=recipe_from_dict({**RECIPE, "operating_points": False}))
    router = learn(ANSWERS, [STATES], SPLIT, config=off)
    assert router.shrinkage is not None
    assert router.record.chosen is None
    assert recipe_from_dict(off.recipe.to_dict()) == off.recipe


def test_without_predictions_out_of_fold_nothing_is_chosen() -> None:
    without = {"shrinkage": False, "operating_points": False}
    plain = replace(CONFIG, recipe=recipe_from_dict({**RECIPE, **without}))
    fit = fit_router(ANSWERS, [STATES], config=plain, split=SPLIT)
    assert fit.router.record.chosen is None
    assert fit.evaluation is not None
    assert "fit the router on answers" in fit.evaluation.headline["savings"].reason
    assert fit.evaluation.verdict is not None
    assert fit.evaluation.verdict.lam == 0.5
