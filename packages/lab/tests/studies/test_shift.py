"""Distribution shift: planted harm is found, there is none where there is none, nothing leaks."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packages.router.tests.fakes.planted_signal import relabel, shuffle_labels, states_of
from prefill_router.data import WITH_CALIBRATION, RoutingDataset, split
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import Estimate
from prefill_router.evaluation.scores import NOTHING
from prefill_router.fitting import FitConfig, Recipe, learn, recipe_from_dict
from prefill_router.reporting.report_files import write_report_files
from prefill_router.testing import make_routing_dataset
from prefill_router_lab.studies.shift import (
    PRESETS,
    Shift,
    ShiftOptions,
    ShiftStudy,
    arms,
    paper_rows,
    shift_study,
    summary,
)

pytestmark = pytest.mark.slow

ANSWERS = make_routing_dataset(queries=420, seed=8)
STATES = states_of(ANSWERS)
SPLIT = split(ANSWERS)
ELSEWHERE = ("domain-0", "domain-1")
TEST_DOMAINS = ("domain-2",)
SHIFT = Shift(ELSEWHERE, TEST_DOMAINS)
FEATURES: dict[str, Any] = {"kind": "prefill", "dim": 6}
RECIPES = {
    "neighbours": recipe_from_dict(
        {"features": FEATURES, "predictor": {"kind": "knn_score", "k": 15}}
    )
}


def turn_labels() -> RoutingDataset:
    """Hard queries are a domain of their own, in which wrong is right and right is wrong."""
    hard = np.array([float(q.prompt.split("difficulty ")[1][:4]) > 0.6 for q in ANSWERS.queries])
    domains = np.where(hard, "domain-2", [f"domain-{i % 2}" for i in range(len(hard))]).tolist()
    queries = tuple(
        dataclasses.replace(query, domain=domain)
        for query, domain in zip(ANSWERS.queries, domains, strict=True)
    )
    correct = np.where(hard[:, None], 1 - ANSWERS.correct, ANSWERS.correct)
    return dataclasses.replace(ANSWERS, queries=queries, correct=correct)


def run_study(dataset: RoutingDataset, *, folder: Path | None = None, **given: int) -> ShiftStudy:
    options = ShiftOptions(**{"resamples": 200, **given})
    return shift_study(dataset, RECIPES, [STATES], split(dataset), SHIFT, options, folder=folder)


@pytest.fixture(scope="module")
def harmed() -> ShiftStudy:
    return run_study(turn_labels())


def test_planted_harm_is_found(harmed: ShiftStudy) -> None:
    [router] = harmed.routers
    assert router.loss["argmax_accuracy"].upper < -0.2
    assert router.loss_of_shift["argmax_accuracy"].upper < -0.2
    accuracy = {arm: numbers["argmax_accuracy"] for arm, numbers in router.numbers.items()}
    assert accuracy["equal"].lower > accuracy["shifted"].upper
    assert accuracy["equal"].value == pytest.approx(accuracy["reference"].value, abs=0.05)
    text = " ".join(summary(harmed))
    assert "at lam = 1: neighbours" in text
    assert "not above 0.5): neighbours" in text


def test_no_harm_where_the_domain_makes_no_difference() -> None:
    study = run_study(ANSWERS)
    [router] = study.routers
    assert router.numbers["shifted"]["auc_mean"].lower > 0.8
    assert router.loss_of_shift["auc_mean"].value > -0.03
    assert "at lam = 1: none" in " ".join(summary(study))


def test_no_harm_is_claimed_on_shuffled_labels() -> None:
    noise = dataclasses.replace(ANSWERS, correct=shuffle_labels(turn_labels()).correct)
    [router] = run_study(noise).routers
    for name in ("auc_mean", "argmax_accuracy"):
        assert router.loss_of_shift[name].lower <= 0 <= router.loss_of_shift[name].upper
    assert not router.numbers["reference"]["auc_mean"].lower > 0.6


def test_differences_are_of_the_numbers(harmed: ShiftStudy) -> None:
    [one] = harmed.routers
    for name, loss in one.loss.items():
        here, there = (one.numbers[arm][name].value for arm in ("shifted", "reference"))
        assert loss.value == pytest.approx(here - there)
        assert loss.lower <= loss.value <= loss.upper
    [row] = paper_rows(harmed)
    assert row["delta"] == pytest.approx(row["shifted"] - row["iid"])


def test_arms_share_the_test_rows_and_nothing_leaks() -> None:
    shift_arms = arms(ANSWERS, SPLIT, SHIFT)
    domain = {query.id: query.domain for query in ANSWERS.queries}
    tests = {part["test"] for part in shift_arms.splits.values()}
    assert tests == {tuple(i for i in SPLIT["test"] if domain[i] in TEST_DOMAINS)}
    assert {domain[i] for i in shift_arms.splits["shifted"]["train"]} == set(ELSEWHERE)
    assert shift_arms.splits["reference"]["train"] == SPLIT["train"]
    equal = shift_arms.splits["equal"]["train"]
    assert abs(len(equal) - shift_arms.sizes["shifted"]) <= 2
    assert set(equal) < set(SPLIT["train"])
    shares = [
        sum(domain[i] in TEST_DOMAINS for i in ids) / len(ids) for ids in (equal, SPLIT["train"])
    ]
    assert shares[0] == pytest.approx(shares[1], abs=0.03)
    assert arms(ANSWERS, SPLIT, SHIFT, seed=1).splits["equal"]["train"] != equal


def test_labels_of_what_is_tested_on_do_not_reach_the_shifted_router() -> None:
    shift_arms = arms(ANSWERS, SPLIT, SHIFT)
    correct = ANSWERS.correct.copy()
    rows = [i for i, query in enumerate(ANSWERS.queries) if query.domain in TEST_DOMAINS]
    correct[rows] = 1 - correct[rows]
    other = dataclasses.replace(ANSWERS, correct=correct)
    for arm, same in (("shifted", True), ("reference", False)):
        config = FitConfig(recipe=RECIPES["neighbours"])
        parts = shift_arms.splits[arm]  # type: ignore[index]
        first, second = (learn(d, [STATES], parts, config=config) for d in (ANSWERS, other))
        pairs = [(t, second.predictor.tensors()[n]) for n, t in first.predictor.tensors().items()]
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in pairs) == same


def test_calibration_is_refitted_elsewhere_too() -> None:
    parts = split(ANSWERS, fractions=WITH_CALIBRATION)
    shift_arms = arms(ANSWERS, parts, SHIFT)
    domain = {query.id: query.domain for query in ANSWERS.queries}
    assert {domain[i] for i in shift_arms.splits["shifted"]["calibration"]} == set(ELSEWHERE)
    sizes = [len(shift_arms.splits[arm]["calibration"]) for arm in ("shifted", "equal")]  # type: ignore[index]
    assert abs(sizes[0] - sizes[1]) <= 2
    recipe = recipe_from_dict({**RECIPES["neighbours"].to_dict(), "calibration": "platt"})
    study = shift_study(ANSWERS, {"x": recipe}, [STATES], parts, SHIFT, ShiftOptions(resamples=20))
    assert study.routers[0].name == "x"


def test_benchmarks_can_be_held_out() -> None:
    shift = Shift.hold_out(ANSWERS, ("benchmark-1",))
    assert shift == Shift(("benchmark-0",), ("benchmark-1",))
    made = arms(ANSWERS, SPLIT, shift)
    benchmark_of = {query.id: query.benchmark for query in ANSWERS.queries}
    assert {benchmark_of[i] for i in made.splits["shifted"]["train"]} == {"benchmark-0"}
    both = arms(ANSWERS, SPLIT, Shift(("benchmark-0",), ("benchmark-1/domain-2",)))
    assert both.domains == {"benchmark-1/domain-2": len(both.splits["shifted"]["test"])}
    # What counts for both sides is only tested on.
    crossed = arms(ANSWERS, SPLIT, Shift(("benchmark-0",), ("domain-2",)))
    domain = {query.id: query.domain for query in ANSWERS.queries}
    assert {domain[i] for i in crossed.splits["shifted"]["train"]} == set(ELSEWHERE)


def test_the_preset_names_categories_of_mmlu_pro(mmlu_pro: Path) -> None:
    from prefill_router.data import read_dataset

    domains = {query.domain for query in read_dataset(mmlu_pro).queries}
    train_on, test_on = PRESETS["mmlu-pro-stem"]
    assert domains - set(train_on) - set(test_on) == {"business", "health", "other"}
    assert set(train_on) | set(test_on) < domains


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shift((), TEST_DOMAINS), "name at least one of each"),
        (lambda: Shift(TEST_DOMAINS, TEST_DOMAINS), "none in both"),
        (lambda: Shift.preset("arts"), "no preset 'arts'"),
        (
            lambda: Shift.hold_out(ANSWERS, ("poetry",)),
            r"no benchmarks and no domains \['poetry'\]",
        ),
        (
            lambda: Shift.hold_out(ANSWERS, (*ELSEWHERE, *TEST_DOMAINS)),
            "nothing is left to train on",
        ),
        (
            lambda: arms(ANSWERS, SPLIT, Shift(("poetry",), TEST_DOMAINS)),
            r"no query is of \['poetry'\]",
        ),
    ],
)
def test_names_that_are_none_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_too_few_queries_are_refused() -> None:
    few = ANSWERS.select([*SPLIT["test"][:4], *SPLIT["train"][:40]])
    kinds = {q.domain for q in few.select(few.query_ids[:4]).queries}
    absent = relabel(few, few.correct)
    parts = dataclasses.replace(SPLIT, parts={"train": few.query_ids[4:], "test": ()})
    assert kinds
    with pytest.raises(DataError, match="0 of the test part to test on"):
        arms(absent, parts, SHIFT)
    with pytest.raises(ConfigError, match="no router"):
        shift_study(ANSWERS, {}, [STATES], SPLIT, SHIFT)


def test_it_goes_on_where_it_was_and_tells_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harmed: ShiftStudy
) -> None:
    first = run_study(turn_labels(), folder=tmp_path)
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("router.json")}
    assert len(stamps) == 3
    assert (
        run_study(turn_labels(), folder=tmp_path).to_dict() == first.to_dict() == harmed.to_dict()
    )
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    monkeypatch.setitem(__import__("sys").modules, "xgboost", None)
    trees: dict[str, Recipe] = {
        "trees": recipe_from_dict({"features": FEATURES, "predictor": "xgboost"})
    }
    none = shift_study(ANSWERS, trees, [STATES], SPLIT, SHIFT, ShiftOptions(resamples=0))
    assert not none.routers
    assert none.failures[0].why.startswith("reference: ")
    write_report_files(none.report(title="Shift", facts={}), tmp_path / "none")


def test_the_page_names_what_was_trained_and_tested_on(harmed: ShiftStudy, tmp_path: Path) -> None:
    write_report_files(harmed.report(title="Shift", facts={"dataset": "x"}), tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert "domain-0 and domain-1" in page
    assert f"domain-2 ({harmed.queries})" in page
    output = json.loads((tmp_path / "shift.json").read_text())
    assert output["trained_on"]["shifted"] == harmed.arms.sizes["shifted"]
    loss = harmed.routers[0].loss["argmax_accuracy"]
    difference = output["routers"]["neighbours"]["shifted_minus_reference"]["argmax_accuracy"]
    assert difference == loss.to_dict()


def test_a_loss_that_is_not_known_is_said_with_its_reason(harmed: ShiftStudy) -> None:
    [one] = harmed.routers
    unknown = Estimate(np.nan, np.nan, np.nan, 1, "no query has all outcomes")
    lost = dataclasses.replace(one, loss={**one.loss, "argmax_accuracy": unknown})
    text = summary(dataclasses.replace(harmed, routers=(lost,)))[0]
    assert "isn't known: no query has all outcomes" in text
    assert NOTHING not in text
