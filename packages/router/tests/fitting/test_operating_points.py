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
DRAWN = split(ANSWERS)
MADE = {"features": {"kind": "prefill", "dim": 6}, "predictor": "logistic"}
CONFIG = FitConfig(recipe=recipe_from_dict(MADE), resamples=20)


def chosen(answers: object) -> OperatingPoints | None:
    return learn(answers, [STATES], DRAWN, config=CONFIG).record.chosen  # type: ignore[arg-type]


def test_no_number_is_chosen_on_the_test_questions() -> None:
    test = np.isin(ANSWERS.query_ids, DRAWN["test"])[:, None]
    found = chosen(ANSWERS)
    assert found is not None
    other = replace(
        ANSWERS,
        correct=np.where(test, 1 - ANSWERS.correct, ANSWERS.correct),
        output_tokens=np.where(test, 9999, ANSWERS.output_tokens),
    )
    assert chosen(other) == found
    turned = replace(ANSWERS, correct=np.where(test, ANSWERS.correct, 1 - ANSWERS.correct))
    assert chosen(turned) != found  # control


def test_a_fit_is_judged_at_what_was_chosen() -> None:
    fitted = fit_router(ANSWERS, [STATES], config=CONFIG, split=DRAWN)
    found, judged = fitted.router.record.chosen, fitted.evaluation
    assert found is not None
    assert judged is not None
    assert judged.chosen == found
    assert judged.verdict is not None
    assert judged.verdict.lam == found.setting == fitted.router.setting
    assert fitted.router.record.verdict == judged.verdict.to_dict()
    trial_rows = ANSWERS.select(DRAWN["test"])
    predictions = fitted.router.predict(trial_rows, stores=[STATES])
    choice = fitted.router.policy.choose(
        predictions.correctness, predictions.normalised_cost, found.accurate
    )
    label = trial_rows.correct[np.arange(len(choice)), choice]
    assert judged.headline["chosen_accuracy"].value == np.mean(label)


def test_points_are_chosen_whether_or_not_predictions_are_shrunk() -> None:
    plain = replace(CONFIG, recipe=recipe_from_dict({**MADE, "shrinkage": False}))
    router = learn(ANSWERS, [STATES], DRAWN, config=plain)
    assert router.shrinkage is None
    assert router.record.chosen is not None
    off = replace(CONFIG, recipe=recipe_from_dict({**MADE, "operating_points": False}))
    router = learn(ANSWERS, [STATES], DRAWN, config=off)
    assert router.shrinkage is not None
    assert router.record.chosen is None
    assert recipe_from_dict(off.recipe.to_dict()) == off.recipe


def test_without_predictions_out_of_fold_nothing_is_chosen() -> None:
    without = {"shrinkage": False, "operating_points": False}
    plain = replace(CONFIG, recipe=recipe_from_dict({**MADE, **without}))
    fitted = fit_router(ANSWERS, [STATES], config=plain, split=DRAWN)
    assert fitted.router.record.chosen is None
    assert fitted.evaluation is not None
    assert "fit the router on answers" in fitted.evaluation.headline["savings"].reason
    assert fitted.evaluation.verdict is not None
    assert fitted.evaluation.verdict.lam == 0.5
