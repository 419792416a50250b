"""What a fit tries by itself: chosen on train rows, within its time, and nothing from noise."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from packages.router.tests.fakes.planted_signal import shuffle_labels, states_of, without_checks
from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset, split
from prefill_router.errors import ConfigError
from prefill_router.features.prefill import JointConfig
from prefill_router.fitting import (
    FitConfig,
    Recipe,
    RouterFit,
    choose_recipe,
    effort as effort_module,
    fit_chosen,
)
from prefill_router.fitting.effort import EffortChoice, recipes_for
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

ANSWERS = make_routing_dataset(queries=400, seed=2)
STATES: Sequence[Activations] = (states_of(ANSWERS),)
SPLIT = split(ANSWERS, seed=0)


@contextmanager
def few_are_enough() -> Iterator[None]:
    """Lower the limits, so that these few rows and networks are enough."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(effort_module, "ENOUGH", 100)
        patched.setattr(effort_module, "_FOLDS", 2)
        patched.setitem(effort_module._NETWORK, "seeds", 1)
        yield


@pytest.fixture
def few() -> Iterator[None]:
    with few_are_enough():
        yield


@pytest.fixture(scope="module")
def fit_and_choice() -> tuple[RouterFit, EffortChoice]:
    with few_are_enough():
        return fit_chosen(ANSWERS, STATES, config=FitConfig(resamples=0), split=SPLIT)


def test_few_rows_take_the_papers_recipe_without_a_trial() -> None:
    choice = choose_recipe(ANSWERS, STATES, SPLIT)
    assert (choice.name, choice.recipe, choice.trials) == ("paper", Recipe(), ())


def test_the_best_out_of_fold_is_fitted_and_what_was_tried_is_told(
    fit_and_choice: tuple[RouterFit, EffortChoice],
) -> None:
    fit, choice = fit_and_choice
    finished = {trial.name: trial.mean("choice") for trial in choice.trials if not trial.why}
    assert {trial.name for trial in choice.trials} == {"layers", "layer", "paper"}
    assert finished[choice.name] == max(finished.values())
    record = fit.router.record
    assert record.options["effort"] == "normal"
    assert record.options["recipe"] == choice.recipe.to_dict()
    assert [row["recipe"] for row in record.training["recipes"]] == ["layers", "layer", "paper"]
    assert record.notes[0] == choice.words
    assert repr(choice.name) in choice.words
    assert fit.evaluation.headline["auc_mean"].value > 0.8


@pytest.mark.usefixtures("few")
def test_test_rows_have_no_part_in_the_choice(
    fit_and_choice: tuple[RouterFit, EffortChoice],
) -> None:
    is_test = np.isin(ANSWERS.query_ids, SPLIT["test"])
    labels = np.where(is_test[:, None], 1 - ANSWERS.correct, ANSWERS.correct)
    other = RoutingDataset.of(ANSWERS.queries, ANSWERS.pool, labels)
    everything = RoutingDataset.of(ANSWERS.queries, ANSWERS.pool, 1 - ANSWERS.correct)
    first, second = (
        choose_recipe(other, STATES, SPLIT),
        choose_recipe(everything, STATES, SPLIT, minutes=0),
    )
    scores = [trial.scores for trial in fit_and_choice[1].trials]
    assert [trial.scores for trial in first.trials] == scores
    assert second.trials[0].scores
    assert second.trials[0].scores != scores[0]


@pytest.mark.usefixtures("few")
def test_when_the_time_is_over_the_first_that_finished_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(effort_module, "MINUTES", {"normal": 0.0})
    choice = choose_recipe(ANSWERS, STATES, SPLIT)
    assert choice.name == "layers"
    assert [trial.why for trial in choice.trials] == ["", *["the time was over"] * 2]


@pytest.mark.usefixtures("few")
def test_without_signal_it_ends_at_the_fixed_mix(
    fit_and_choice: tuple[RouterFit, EffortChoice],
) -> None:
    noise = shuffle_labels(make_routing_dataset(queries=600, seed=5))
    states, noise_split = (states_of(noise),), split(noise, seed=0)
    config = FitConfig(resamples=0, assumed_output_tokens=100)
    fit, _ = fit_chosen(noise, states, config=config, split=noise_split)
    headline = fit.evaluation.headline
    gain = headline["argmax_accuracy"].value - headline["best_single_accuracy"].value
    assert gain == pytest.approx(0, abs=0.01)
    assert fit_and_choice[0].evaluation.headline["mix_gain"].value > 0.02  # the control


def test_a_block_is_bounded_by_layers_that_are_evenly_spread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden = STATES[0].provenance.hidden_size
    read = []
    for layers in (9, 2, 1):
        monkeypatch.setattr(effort_module, "_WIDEST", layers * hidden)
        [joint, *_] = recipes_for(STATES, "quick")["layers"].features
        assert isinstance(joint, JointConfig)
        read.append(joint.sites["fake"])
    assert read == [("mean.2", "mean.3", "mean.4"), ("mean.2", "mean.4"), ("mean.3",)]


@pytest.mark.usefixtures("few")
def test_quick_tries_nothing_and_an_unknown_effort_is_refused() -> None:
    choice = choose_recipe(ANSWERS, STATES, SPLIT, effort="quick")
    assert (choice.name, choice.trials) == ("layers", ())
    with (
        without_checks(),
        pytest.raises(ConfigError, match="the effort is 'much'; it must be one of"),
    ):
        choose_recipe(ANSWERS, STATES, SPLIT, effort="much")  # type: ignore[arg-type]
