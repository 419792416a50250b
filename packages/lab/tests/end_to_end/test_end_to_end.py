"""End-to-end cost and latency: against plain sums, the paper's arithmetic, and what can't be."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.evaluation.trials import random_system, system
from packages.router.tests.fakes.planted_signal import without_checks
from prefill_router.comparison import Charge
from prefill_router.data import Query, RoutingDataset
from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.evaluation import Trial, evaluate
from prefill_router.policy import Cascade
from prefill_router.reporting.report_files import render
from prefill_router_lab.end_to_end import (
    Contender,
    EndToEndOptions,
    Latency,
    Speed,
    answer_seconds,
    read_speeds,
    study_end_to_end,
    time_routing,
)


def contender(
    name: str = "router", *, encoder: float = 2e-4, routing: float = 0.5, seed: int = 0
) -> Contender:
    predictions, data = random_system(queries=80, seed=7)
    if seed:  # knows nothing
        order = np.random.default_rng(seed).permutation(len(predictions))
        predictions = dataclasses.replace(predictions, correctness=predictions.correctness[order])
    trial = Trial.join(predictions, data)
    seconds = np.random.default_rng(1).uniform(1, 9, trial.correct.shape)
    return Contender(
        name, trial, seconds, np.full(len(trial), encoder), Latency((routing,), "given")
    )


def test_numbers_are_plain_sums_over_the_chosen_targets() -> None:
    router, reference = contender(), contender("reference", encoder=0.0, routing=0.1, seed=3)
    study = study_end_to_end([router, reference], "t3", EndToEndOptions(resamples=0))
    argmax = study.points[0]
    chosen = router.trial.correctness.argmax(axis=1)
    rows = np.arange(len(chosen))
    cost = router.trial.observed_cost[rows, chosen].mean()
    numbers = argmax.systems["router"]
    assert (argmax.lam, study.points[1].lam) == (1.0, 0.5)
    assert numbers["target_cost"].value == pytest.approx(cost)
    assert numbers["total_cost"].value == pytest.approx(cost + 2e-4)
    assert numbers["encoder_share"].value == pytest.approx(2e-4 / (cost + 2e-4))
    waited = router.answer_seconds[rows, chosen].mean()
    assert numbers["answer_seconds"].value == pytest.approx(waited)
    assert numbers["routing_share"].value == pytest.approx(0.5 / (waited + 0.5))
    single = argmax.systems["t3 alone"]
    assert single["total_cost"].value == pytest.approx(router.trial.observed_cost[:, 3].mean())
    assert single["routing_share"].value == 0
    against = argmax.against["t3 alone"]
    saved = 1 - (cost + 2e-4) / single["total_cost"].value
    assert against["savings"].value == pytest.approx(saved)
    gain = numbers["accuracy"].value - argmax.systems["reference"]["accuracy"].value
    assert argmax.against["reference"]["accuracy_gain"].value == pytest.approx(gain)
    assert sum(argmax.shares["router"].values()) == pytest.approx(1)


def test_the_papers_table_follows_from_its_own_numbers() -> None:
    # 1,469 queries at $0.027115 of targets and 1,273.3 tokens at $0.1625 per million; $0.055674
    # for the best single target; 64.287 s of completion after 0.510 s of routing.
    correct = np.array([[1.0, 0.0], [0.0, 1.0]])
    cost = np.tile([0.027115, 0.055674], (2, 1))
    predictions, data = system(np.tile([0.9, 0.1], (2, 1)), cost, correct, cost)
    charge = Charge(per_million_tokens=0.1625).dollars(np.full(2, 1273.3))
    contender_of_paper = Contender(
        "router",
        Trial.join(predictions, data),
        np.tile([64.287, 61.967], (2, 1)),
        charge,
        Latency((0.510,), "given"),
    )
    numbers = study_end_to_end([contender_of_paper], "t1", EndToEndOptions(resamples=0)).points[0]
    router = numbers.systems["router"]
    assert round(router["total_cost"].value, 6) == 0.027322
    assert round(100 * router["encoder_share"].value, 2) == 0.76
    assert round(100 * router["routing_share"].value, 2) == 0.79
    assert round(100 * numbers.against["t1 alone"]["savings"].value, 1) == 50.9


def test_a_router_against_itself_differs_by_nothing() -> None:
    study = study_end_to_end([contender(), contender("copy")], "t0", EndToEndOptions(resamples=50))
    for point in study.points:
        for estimate in point.against["copy"].values():
            assert (estimate.value, estimate.lower, estimate.upper) == (0, 0, 0)
    assert all(difference.value == 0 for difference in study.area_difference.values())


def test_intervals_hold_their_value_and_come_with_the_seed() -> None:
    options = EndToEndOptions(resamples=60, seed=4)
    first, again = (study_end_to_end([contender()], "t1", options) for _ in range(2))
    assert first.to_dict() == again.to_dict()
    for point in first.points:
        for numbers in point.systems.values():
            for number in numbers.values():
                assert number.lower <= number.value + 1e-12
                assert number.value - 1e-12 <= number.upper


def test_area_is_that_of_an_evaluation_and_moves_as_the_plane_says() -> None:
    router = contender(encoder=5e-4)
    predictions, data = random_system(queries=80, seed=7)
    options = EndToEndOptions(resamples=0)
    area = study_end_to_end([router], "t1", options).areas["router"]
    plainly = evaluate(predictions, data, resamples=0)
    linear = evaluate(predictions, data, resamples=0, axis="linear")
    assert area["p_auccc"].value == pytest.approx(plainly.headline["p_auccc"].value)
    assert area["p_auccc_linear"].value == pytest.approx(linear.headline["p_auccc"].value)
    assert area["charged"].value < area["p_auccc"].value
    assert area["charged_linear"].value < area["p_auccc_linear"].value
    # Moved with its anchors, a plane of linear cost is the same plane.
    assert area["translated_linear"].value == pytest.approx(area["p_auccc_linear"].value)
    free = study_end_to_end([contender(encoder=0.0)], "t1", options).areas["router"]
    assert free["charged"].value == free["p_auccc"].value == free["translated"].value


def test_a_cascade_waits_for_everybody_it_asks() -> None:
    predictions, data = random_system(queries=30, seed=2)
    policy = Cascade()
    trial = Trial.join(predictions, data, policy=policy)
    seconds = np.ones(trial.correct.shape)
    silent = Contender("router", trial, seconds, np.zeros(30), None)
    last = (
        study_end_to_end([silent], "t0", EndToEndOptions(resamples=0)).points[0].systems["router"]
    )
    assert last["answer_seconds"].value > 1
    assert math.isnan(last["total_seconds"].value)
    assert "latency isn't known" in last["routing_seconds"].reason


def test_unknown_costs_and_times_are_said_and_not_made_up() -> None:
    base = contender()
    trial = dataclasses.replace(base.trial, observed_cost=np.full_like(base.answer_seconds, np.nan))
    silent = Contender(
        "router", trial, np.full_like(base.answer_seconds, np.nan), np.zeros(80), None
    )
    study = study_end_to_end([silent], "t1", EndToEndOptions(resamples=5))
    numbers = study.points[0].systems["router"]
    assert math.isnan(numbers["total_cost"].value)
    assert "prices" in numbers["total_cost"].reason
    assert "speed" in numbers["answer_seconds"].reason
    report = study.report(title="T", facts={})
    assert any("unknown" in text for text in report.summary)
    page = render(report, {"overhead": "<svg></svg>"})
    assert "nan" not in page.replace("Financ", "")


def test_the_page_says_what_was_found_and_draws_it() -> None:
    both = [contender(), contender("reference", encoder=0.0, seed=3)]
    charges = {"router": "$1 per million input tokens"}
    report = study_end_to_end(both, "t3", EndToEndOptions(resamples=30), charges=charges).report(
        title="T", facts={"data": "d"}
    )
    text = " ".join(report.summary)
    assert "of the total cost of a query" in text
    assert "than t3 alone" in text
    assert "order of the two routers" in text
    assert report.figures["overhead"].rows[0]["system"] == "router"
    assert {row["lam"] for row in report.tables["systems"]} == {1.0, 0.5}
    page = render(report, {"overhead": "<svg></svg>"})
    assert "Savings vs. reference" in page


def test_what_makes_no_sense_is_refused() -> None:
    router = contender()
    with pytest.raises(ConfigError, match="no target 'nobody'"):
        study_end_to_end([router], "nobody", EndToEndOptions(resamples=0))
    with pytest.raises(ConfigError, match="names"):
        study_end_to_end([router, router], "t1", EndToEndOptions(resamples=0))
    with pytest.raises(ConfigError, match=r"lam is \(2.0,\); it must be one setting or more"):
        EndToEndOptions(lam=(2.0,))
    with pytest.raises(ConfigError, match="nothing to study"):
        study_end_to_end([], "t1")
    few = Trial.join(*random_system(queries=20))
    other = Contender("x", few, few.correct, np.zeros(20), None)
    with pytest.raises(ConfigError, match="same queries"):
        study_end_to_end([router, other], "t1", EndToEndOptions(resamples=0))
    with without_checks(), pytest.raises(DataError, match="seconds have the shape"):
        Contender("x", router.trial, router.answer_seconds[:3], router.encoder_cost, None)


def test_charges() -> None:
    tokens = np.array([1e6, 5e5])
    assert Charge(per_million_tokens=2.0).dollars(tokens).tolist() == [2.0, 1.0]
    hourly = Charge(per_hour=3600.0)
    assert hourly.dollars(tokens, 0.2).tolist() == pytest.approx([0.2, 0.2])
    with pytest.raises(ConfigError, match="latency"):
        hourly.dollars(tokens)
    for bad in ({}, {"per_million_tokens": 1.0, "per_hour": 1.0}, {"per_hour": -1.0}):
        with pytest.raises(ConfigError, match="one price"):
            Charge(**bad)


def test_systems_take_turns_and_each_is_first_as_often() -> None:
    calls: list[str] = []
    routes = {name: lambda prompt, name=name: calls.append(f"{name}{prompt}") for name in "xy"}
    timings = time_routing(routes, ["1", "2"], rounds=2)
    assert calls[:4] == ["x1", "x2", "y1", "y2"]  # untimed
    assert calls[4:] == ["x1", "y1", "y2", "x2", "x1", "y1", "y2", "x2"]
    assert {(len(timing.seconds), timing.rounds) for timing in timings.values()} == {(4, 2)}
    with pytest.raises(ConfigError, match="routing latency"):
        time_routing(routes, [])
    with pytest.raises(ConfigError, match="0 rounds"):
        time_routing(routes, ["1"], rounds=0)
    with pytest.raises(ConfigError, match="routing latency"):
        Latency((math.nan,), "given")
    with pytest.raises(ConfigError, match="can't be 2 rounds"):
        Latency((1.0, 2.0, 3.0), rounds=2)


def test_intervals_of_latency_are_over_rounds_and_prompts() -> None:
    random = np.random.default_rng(0)
    table = 1 + random.normal(0, 0.1, (6, 1)) + random.normal(0, 0.02, (6, 50))  # rounds differ
    timed = Latency(tuple(table.ravel().tolist()), rounds=6)
    mean = timed.estimates(resamples=400, seed=0)["mean"]
    assert mean.lower < mean.value < mean.upper
    prompts_alone = 2 * 1.96 * table.std() / np.sqrt(table.size)
    assert mean.upper - mean.lower > 2 * prompts_alone
    given = Latency((0.5,), "given").estimates(resamples=400, seed=0)["p95"]
    assert given.value == 0.5
    assert math.isnan(given.lower)


@pytest.mark.slow
def test_the_study_says_how_sure_the_latency_is() -> None:
    noisy = Latency(tuple(np.random.default_rng(1).uniform(0.1, 0.9, 40).tolist()), rounds=4)
    noisy_contender = dataclasses.replace(contender(), latency=noisy)
    study = study_end_to_end(
        [noisy_contender, dataclasses.replace(noisy_contender, name="copy")],
        "t1",
        EndToEndOptions(resamples=200, seed=3),
    )
    routing = study.points[0].systems["router"]["routing_seconds"]
    assert routing.lower < routing.value < routing.upper
    share = study.points[0].systems["router"]["routing_share"]
    assert share.lower < share.value < share.upper
    waited = study.points[0].against["copy"]["seconds_difference"]
    assert (waited.value, waited.lower, waited.upper) == (0, 0, 0)  # the same rounds for both
    assert study.to_dict()["latency"]["router"]["mean_seconds"]["lower"] > 0
    page = render(study.report(title="T", facts={}), {"overhead": "<svg></svg>"})
    assert "10 prompts, 4 rounds" in page


def test_answers_take_ttft_and_their_output(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "targets:\n  a: {ttft_seconds: 0.5, tokens_per_second: 100}\n"
        "  b: {ttft_seconds: 2, tokens_per_second: 10}\n"
    )
    (tmp_path / "s.csv").write_text("target,ttft_seconds,tokens_per_second\na,0.5,100\nb,2,10\n")
    speeds = read_speeds(tmp_path / "s.yaml")
    assert speeds == read_speeds(tmp_path / "s.csv") == {"a": Speed(0.5, 100), "b": Speed(2, 10)}
    predictions, data = random_system(queries=4, targets=2)
    del predictions
    pool = type(data.pool)(
        tuple(dataclasses.replace(t, name=n) for t, n in zip(data.pool, ("a", "c"), strict=True))
    )
    output = np.array([[100.0, 1], [np.nan, 1], [0, 1], [50, 1]])
    rows = [Query(f"q{i}", f"p{i}") for i in range(4)]
    named = RoutingDataset.of(rows, pool, data.correct, output_tokens=output)
    seconds = answer_seconds(named, speeds)
    assert np.array_equal(seconds[:, 0], [1.5, np.nan, 0.5, 1.0], equal_nan=True)
    assert np.isnan(seconds[:, 1]).all()


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        ("targets: 3", "s.yaml", "must hold targets"),
        ("targets: {}", "s.yaml", "names no target"),
        ("targets: {a: {ttft_seconds: 1}}", "s.yaml", "'a' must have"),
        ("targets: {a: {ttft_seconds: x, tokens_per_second: 1}}", "s.yaml", "'a': could not"),
        ("targets: {a: {ttft_seconds: 1, tokens_per_second: 0}}", "s.yaml", "above 0"),
        ("targets: {a: {ttft_seconds: -1, tokens_per_second: 1}}", "s.yaml", "0 or more"),
        ("a: [", "s.yaml", "isn't a file of speeds"),
        ("target,ttft_seconds\na,1\n", "s.csv", "lacks the columns"),
        ("target,ttft_seconds,tokens_per_second\na,1,2\na,1,2\n", "s.csv", "repeated"),
        ("target,ttft_seconds,tokens_per_second\na,1\n", "s.csv", "'a'"),
        ("\xff", "s.csv", "lacks the columns"),
    ],
)
def test_speeds_that_cannot_be_read(tmp_path: Path, text: str, name: str, why: str) -> None:
    (tmp_path / name).write_text(text, encoding="latin-1" if text == "\xff" else "utf-8")
    with pytest.raises(FormatError, match="isn't a file of speeds" if text == "\xff" else why):
        read_speeds(tmp_path / name)


def test_no_file_of_speeds(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        read_speeds(tmp_path / "none.yaml")
