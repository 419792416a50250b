"""The oracle without the luck of single runs, against plain enumeration and pools of pure luck."""

import dataclasses
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.evaluation.trials import random_system
from prefill_router.data import merge, read_dataset, write_dataset
from prefill_router.errors import DataError
from prefill_router.evaluation import Trial, evaluate

Runs = np.ndarray


def make_trial(outcomes: Runs) -> Trial:
    """A trial whose labels are the means of these runs, [run, query, target]."""
    trial = Trial.join(*random_system(queries=outcomes.shape[1], targets=outcomes.shape[2]))
    count = (~np.isnan(outcomes)).sum(axis=0).astype(np.float64)
    correct = np.where(count > 0, np.nansum(outcomes, axis=0) / np.maximum(count, 1), np.nan)
    return dataclasses.replace(trial, correct=correct, runs=np.where(count > 0, count, np.nan))


def plain(outcomes: Runs) -> float:
    """The mean over every way to leave one run of each target out; one query, [run, target]."""
    total, ways = 0.0, 0
    for runs_left in product(range(len(outcomes)), repeat=outcomes.shape[1]):
        means = [np.delete(outcomes[:, k], run).mean() for k, run in enumerate(runs_left)]
        best = [k for k, value in enumerate(means) if abs(value - max(means)) < 1e-9]
        total += np.mean([outcomes[runs_left[k], k] for k in best])
        ways += 1
    return total / ways


@pytest.mark.parametrize("shape", [(2, 6, 3), (3, 6, 4), (4, 4, 2)])
def test_it_is_the_mean_over_all_ways_to_leave_one_run_out(shape: tuple[int, ...]) -> None:
    outcomes = np.random.default_rng(sum(shape)).integers(0, 2, shape).astype(np.float64)
    got = make_trial(outcomes).held_out_label
    assert got == pytest.approx([plain(outcomes[:, q]) for q in range(shape[1])])


def test_of_pure_luck_nothing_is_left() -> None:
    outcomes = np.random.default_rng(0).integers(0, 2, (3, 2000, 6)).astype(np.float64)
    trial = make_trial(outcomes)
    assert np.nanmean(trial.held_out_label) == pytest.approx(0.5, abs=0.03)
    assert outcomes[0].max(axis=1).mean() > 0.97  # the plain oracle of one run


def test_of_certain_knowledge_all_is_kept() -> None:
    sure = np.random.default_rng(0).integers(0, 2, (200, 4)).astype(np.float64)
    trial = make_trial(np.stack([sure, sure, sure]))
    assert trial.held_out_label == pytest.approx(sure.max(axis=1))


def test_queries_without_repeats_are_left_out_and_missing_targets_never_chosen() -> None:
    outcomes = np.random.default_rng(0).integers(0, 2, (3, 40, 3)).astype(np.float64)
    outcomes[:, 0, 1] = np.nan  # never asked
    outcomes[1:, 1, 0] = np.nan  # asked once
    trial = make_trial(outcomes)
    got = trial.held_out_label
    assert got[0] == pytest.approx(plain(outcomes[:, 0][:, [0, 2]]))
    assert np.isnan(got[1])
    assert np.isfinite(got[2:]).all()
    scored = dataclasses.replace(trial, correct=np.full((40, 3), 0.37))  # no share of three runs
    assert np.isnan(scored.held_out_label).all()


def test_runs_reach_the_evaluation_through_a_folder(tmp_path: Path) -> None:
    predictions, data = random_system(queries=120, seed=5)
    random = np.random.default_rng(1)
    single = [
        dataclasses.replace(data, correct=random.integers(0, 2, (120, 4)).astype(np.float64))
        for _ in range(3)
    ]
    shuffled = single[1].select(single[1].query_ids[::-1], targets=data.pool.names[::-1])
    runs = {"1": single[0], "2": shuffled, "3": single[2]}
    write_dataset(merge(runs, repeats="mean"), tmp_path / "runs")
    together = read_dataset(tmp_path / "runs")
    assert together.correct == pytest.approx(
        np.mean([dataset.correct for dataset in single], axis=0)
    )
    assert together.runs is not None
    assert (together.runs == 3).all()
    headline = evaluate(predictions, together, resamples=30).headline
    assert headline["oracle_held_out"].lower < 0.5 < headline["oracle_held_out"].upper + 0.05
    assert headline["oracle_accuracy"].value > headline["oracle_held_out"].upper
    once = evaluate(predictions, single[0], resamples=0).headline["oracle_held_out"]
    assert np.isnan(once.value)
    assert "single runs" in once.reason
    write_dataset(single[0], tmp_path / "one")
    assert read_dataset(tmp_path / "one").runs is None


def test_runs_that_make_no_sense_are_refused() -> None:
    _, data = random_system(queries=5)
    with pytest.raises(DataError, match="runs holds"):
        dataclasses.replace(data, runs=np.full((5, 4), 1.5))
