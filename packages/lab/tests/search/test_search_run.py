import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from packages.lab.tests.search.searching import (
    ANSWERS,
    CONFIG,
    GUESSES,
    KNOWS,
    STATES,
    run_search,
    seal_test,
    small_space,
    without_times,
)
from packages.router.tests.fakes.planted_signal import shuffle_labels
from prefill_router.calibration import fit_calibrator
from prefill_router.errors import ConfigError, CorruptError, FitError, MissingExtraError
from prefill_router.evaluation import evaluate
from prefill_router.fitting import FoldScore, FoldScorer
from prefill_router.policy import Predictions
from prefill_router_lab.search import SearchConfig, choose
from prefill_router_lab.search.trial_loop import Proposer, chosen_on_other_folds
from prefill_router_lab.search.trials import SearchTrial, rank_candidates

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trials() -> list[SearchTrial]:
    return run_search()


def test_it_finds_the_features_that_know(trials: list[SearchTrial]) -> None:
    verdict = choose(trials, small_space(), CONFIG)
    assert (verdict.winner.features, verdict.winner.predictor) == (KNOWS, "clusters")
    assert verdict.winner.mean("auc") > 0.7
    assert verdict.honest > 0.7
    guesses = [row.mean("auc") for row in verdict.ranking if row.features == GUESSES]
    assert max(guesses) < 0.65


def test_on_shuffled_labels_there_is_nothing_to_find() -> None:
    noise = shuffle_labels(ANSWERS)
    verdict = choose(run_search(dataset=noise), small_space(), CONFIG)
    assert verdict.honest < 0.6
    assert verdict.winner.mean("auc") < 0.65


def test_first_everything_is_looked_at(trials: list[SearchTrial]) -> None:
    first = [(trial.candidate.features, trial.candidate.predictor) for trial in trials[:3]]
    assert first == [(GUESSES, "clusters"), (GUESSES, "constant"), (KNOWS, "clusters")]
    assert {trial.candidate.calibrated for trial in trials} == {False, True}


def test_no_candidate_is_tried_twice_and_all_are_in_the_end() -> None:
    trials = run_search(config=dataclasses.replace(CONFIG, trials=1000))
    assert len(trials) == len({trial.candidate for trial in trials}) == small_space().candidates


def test_what_is_hopeless_is_stopped_and_cannot_win(trials: list[SearchTrial]) -> None:
    stopped = [trial for trial in trials if trial.state == "stopped"]
    assert stopped
    assert all(trial.folds < CONFIG.folds for trial in stopped)
    ranking = choose(trials, small_space(), CONFIG).ranking
    places = [row.rank for row in ranking if row.state == "stopped"]
    assert min(places) > max(row.rank for row in ranking if row.state == "finished")
    best = max(row.mean("auc") for row in ranking if row.state == "finished")
    assert ranking[0].mean("auc") == best


def test_nothing_is_stopped_where_the_margin_is_wide() -> None:
    trials = run_search(config=dataclasses.replace(CONFIG, margin=1.0))
    assert {trial.state for trial in trials} == {"finished"}


def test_interrupted_anywhere_it_ends_as_if_it_had_not_been(
    trials: list[SearchTrial], tmp_path: Path
) -> None:
    run_search(tmp_path)
    files = sorted((tmp_path / "trials").iterdir())
    last = max(trial.number for trial in trials if trial.state == "finished")
    for file in files[last + 1 :]:
        file.unlink()
    broken = json.loads(files[last].read_text())
    scores = {kind: values[:1] for kind, values in broken["scores"].items()}
    files[last].write_text(json.dumps({**broken, "scores": scores, "state": "running"}))
    assert without_times(run_search(tmp_path)) == without_times(trials)


def test_more_trials_go_on_from_the_ones_before(trials: list[SearchTrial], tmp_path: Path) -> None:
    run_search(tmp_path, config=dataclasses.replace(CONFIG, trials=3))
    before = {p.name: p.read_bytes() for p in (tmp_path / "trials").iterdir()}
    assert without_times(run_search(tmp_path)) == without_times(trials)
    assert all((tmp_path / "trials" / name).read_bytes() == b for name, b in before.items())


def test_a_spoilt_trial_is_told(tmp_path: Path) -> None:
    run_search(tmp_path, config=dataclasses.replace(CONFIG, trials=2))
    (tmp_path / "trials" / "00001.json").write_text("{}")
    with pytest.raises(CorruptError, match=r"00001.json isn't what was written; remove it"):
        run_search(tmp_path)


def test_a_spoilt_cache_is_made_again(trials: list[SearchTrial], tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    run_search(tmp_path, config=dataclasses.replace(CONFIG, trials=1))
    for file in (tmp_path / "cache").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    assert without_times(run_search(tmp_path)) == without_times(trials)


def test_two_processes_score_as_one_does() -> None:
    config = dataclasses.replace(CONFIG, jobs=2, margin=1.0, trials=4)
    scores_of = {trial.candidate: trial.to_dict()["scores"] for trial in run_search(config=config)}
    alone = run_search(config=dataclasses.replace(config, jobs=1))
    assert len(scores_of) == 4
    for trial in alone:
        if trial.candidate in scores_of:
            assert scores_of[trial.candidate] == trial.to_dict()["scores"]
    assert {trial.candidate for trial in alone[:3]} <= set(scores_of)


def test_a_fold_is_scored_as_evaluate_does(tmp_path: Path) -> None:
    train, _ = seal_test(tmp_path)
    bench = FoldScorer(train, (STATES,), 3, 0, "headroom")
    space = small_space()
    [candidate] = [
        c
        for c in space.all_candidates()
        if (c.features, c.predictor, c.places, c.calibrated)
        == (KNOWS, "clusters", ((0,), (0,)), True)
    ]
    recipe = space.recipe(candidate)
    scores, _ = bench.score(recipe, ["platt"], 1)
    rows = bench.rows(1, calibrated=True)
    parts = [set(part.query_ids) for part in (rows.fit, rows.calibration, rows.judged)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == len(train.dataset)
    fit, calibration_features, judged = bench._read_features(recipe, rows, 1)
    from prefill_router.predictors import Examples

    examples = Examples(fit, rows.fit.correct, ANSWERS.pool.names, ("",) * len(fit))
    predictor = recipe.predictor.fit(examples, seed=0).predictor
    names = ANSWERS.pool.names
    platt = fit_calibrator(
        "platt", predictor.correctness(calibration_features), rows.calibration.correct, names
    )
    predictions: Predictions = bench._make_predictions(
        rows, platt.calibrator.calibrate(predictor.correctness(judged)), recipe, fit, judged
    )
    headline = evaluate(predictions, rows.judged, resamples=0).headline
    score = scores["platt"]
    assert score.auc == pytest.approx(headline["auc_mean"].value, abs=1e-12)
    assert score.brier == pytest.approx(headline["brier_mean"].value, abs=1e-12)
    assert score.headroom == pytest.approx(headline["headroom_captured"].value, abs=1e-12)


@pytest.mark.parametrize("objective", ["choice", "brier", "headroom"])
def test_other_objectives(objective: str) -> None:
    config = SearchConfig(trials=6, folds=3, objective=objective)  # type: ignore[arg-type]
    trials = run_search(config=config)
    verdict = choose(trials, small_space(), config)
    assert verdict.winner.features == KNOWS
    values = [row.mean(config.objective) for row in verdict.ranking if row.state == "finished"]
    better = min if objective == "brier" else max
    assert verdict.winner.mean(config.objective) == pytest.approx(better(values), abs=1e-6)


def test_equal_ones_go_by_the_brier_score() -> None:
    score = FoldScore(0.7, 0.2, float("nan"), (0.7,))
    better = dataclasses.replace(score, brier=0.1)
    space = small_space()
    candidate = next(c for c in space.all_candidates() if c.calibrated)
    trial = SearchTrial(
        0, candidate, {"platt": (score, score), "isotonic": (better, score)}, 1.0, "finished"
    )
    assert [r.calibration for r in rank_candidates(space, [trial], "auc")] == ["isotonic", "platt"]


def test_the_choice_on_other_folds_by_hand() -> None:
    def trial(number: int, *aucs: float) -> SearchTrial:
        scores = tuple(FoldScore(auc, 0.2, float("nan"), (auc,)) for auc in aucs)
        candidate = next(small_space().all_candidates())
        return SearchTrial(number, candidate, {"none": scores}, 1.0, "finished")

    lucky = [trial(0, 0.9, 0.5, 0.5), trial(1, 0.6, 0.6, 0.6)]
    # fold 0: 0.6 is better elsewhere, and gets 0.6; folds 1 and 2: 0.7 is, and gets 0.5.
    assert chosen_on_other_folds(lucky, "auc", 3) == pytest.approx((0.6 + 0.5 + 0.5) / 3)
    assert np.isnan(chosen_on_other_folds([], "auc", 3))


def test_a_candidate_that_cannot_be_fitted_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    space = small_space(predictors={"trees": "xgboost", "constant": "constant"})
    trials = run_search(space=space)
    failed = [trial for trial in trials if trial.state == "failed"]
    assert failed
    assert all("xgboost" in trial.why for trial in failed)
    assert choose(trials, space, CONFIG).winner.predictor == "constant"
    with pytest.raises(FitError, match="no candidate could be fitted"):
        run_search(space=small_space(predictors={"trees": "xgboost"}))


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"prefill-router-lab\[search\]"):
        Proposer(small_space(), "auc", 0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"trials": 0}, "trials is 0"),
        ({"folds": 1}, "folds is 1"),
        ({"jobs": 0}, "jobs is 0"),
        ({"minutes": 0.0}, "minutes is 0"),
        ({"margin": float("nan")}, "margin is nan"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        SearchConfig(**options)  # type: ignore[arg-type]


def test_too_short_a_time_is_told() -> None:
    config = dataclasses.replace(CONFIG, minutes=1e-9)
    with pytest.raises(FitError, match="time"):
        choose(run_search(config=config), small_space(), config)


def test_processes_end_with_the_one_that_began_them() -> None:
    root = Path(__file__).parents[4]
    job = subprocess.Popen(
        [sys.executable, "-m", "packages.lab.tests.search.search_job"],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
    )
    with job:
        assert job.stdout is not None
        pids = [int(pid) for pid in job.stdout.readline().split()]
        job.kill()
    assert len(pids) == 2
    for _ in range(600):
        if not any(map(_lives, pids)):
            return
        time.sleep(0.1)
    for pid in filter(_lives, pids):
        os.kill(pid, signal.SIGKILL)
    pytest.fail("they wait for work for ever")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"
