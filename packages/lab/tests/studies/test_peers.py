"""The study of peers: assignments of targets to tiers, and systems at equal cost."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from prefill_router.cost import CostScale
from prefill_router.data import Message, Query, RoutingDataset
from prefill_router.errors import DataError
from prefill_router.evaluation import JudgedPart, References, Trial
from prefill_router.policy import OperatingPoints, Predictions
from prefill_router.targets import Pool, Target
from prefill_router_lab.studies import (
    PeerPart,
    PeerStudy,
    classify_prompts,
    study_peers,
)
from prefill_router_lab.studies.peers import TierChoice

COSTS = np.array([1.0, 2.0, 4.0])
POINTS = OperatingPoints(1.0, None, 0.5, "t2")


def make_answers(size: int, seed: int) -> tuple[RoutingDataset, np.ndarray]:
    """Answers of three targets to queries of four tiers, and the chance of each to be right."""
    random = np.random.default_rng(seed)
    own = random.normal(0, 1.5, (size, 3))
    tier = np.arange(size) % 4
    easy = np.array([2.0, 0.5, -0.5, -1.5])[tier][:, None] * [1.5, 1.0, 0.1]
    chance = 1 / (1 + np.exp(-(own + easy + [0.0, 0.3, 0.6])))
    correct = (random.random((size, 3)) < chance).astype(np.float64)
    cost = COSTS * random.lognormal(0, 0.1, (size, 3))
    queries = [Query(f"q{seed}-{i}", f"prompt {i}") for i in range(size)]
    pool = Pool(tuple(Target(name=f"t{k}") for k in range(3)))
    return RoutingDataset.of(queries, pool, correct, recorded_cost=cost), chance


def make_part(*, size: int = 3000, lacking: bool = False) -> tuple[PeerPart, dict[str, int]]:
    """A router that knows each target's chance, and the tier of every query."""
    train, _ = make_answers(size, 1)
    judged, chance = make_answers(size, 2)
    names = judged.pool.names
    predictions = Predictions(
        query_ids=judged.query_ids,
        targets=names,
        correctness=chance,
        estimated_cost=np.tile(COSTS, (size, 1)),
        scale=CostScale(1.0, 4.0),
    )
    trial = Trial.join(predictions, judged)
    if lacking:
        trial = replace(trial, observed_cost=np.full(trial.correct.shape, np.nan))
    references = References.fit(train, np.tile([0.0, 1 / 3, 1.0], (size, 1)))
    tiers = {name: i % 4 for data in (train, judged) for i, name in enumerate(data.query_ids)}
    return PeerPart(JudgedPart(trial, references, POINTS), train), tiers


def measure(tiers: Mapping[str, int], part: PeerPart) -> PeerStudy:
    return study_peers([part], {"heuristic": tiers})


def test_no_assignment_is_better_at_its_cost() -> None:
    part, tiers = make_part(size=800)
    rule = TierChoice.fit(part.train, tiers)
    tier = np.array([tiers[name] for name in part.train.query_ids])
    rows = np.arange(len(tier))

    def spend(assignment: tuple[int, ...]) -> tuple[float, float]:
        choice = np.array(assignment)[tier]
        tables = (part.train.observed_cost, part.train.correct)
        cost, right = (float(table[rows, choice].mean()) for table in tables)
        return cost, right

    corners = [spend(corner) for corner in rule.corners]
    assert [cost for cost, _ in corners] == pytest.approx(list(rule.costs))
    cost, right = np.array(corners).T
    for assignment in product(range(3), repeat=4):
        paid, got = spend(assignment)
        assert got <= np.interp(paid, cost, right) + 1e-9


@pytest.mark.slow
def test_a_router_that_knows_more_than_tiers_is_above_them() -> None:
    part, tiers = make_part()
    result = measure(tiers, part)
    assert result.best == "t2"
    assert result.queries == 3000
    names = ["best fixed mix", "price alone", "LiteLLM heuristic", "router"]
    assert list(result.points) == names
    at_half = {name: {p.share: p for p in each}[0.5] for name, each in result.points.items()}
    assert at_half["best fixed mix"].over_mix.value == pytest.approx(0, abs=1e-9)
    assert at_half["LiteLLM heuristic"].over_mix.lower > 0.02
    assert at_half["router"].over_mix.lower > at_half["LiteLLM heuristic"].over_mix.upper
    assert 0.2 not in {p.share for p in result.points["router"]}  # nothing is so cheap
    json.dumps(result.to_dict(), allow_nan=False)


@pytest.mark.slow
def test_tiers_that_mean_nothing_gain_nothing() -> None:
    part, tiers = make_part()
    shuffled = np.random.default_rng(0).permutation(list(tiers.values()))
    result = measure(dict(zip(tiers, shuffled.tolist(), strict=True)), part)
    for point in result.points["LiteLLM heuristic"]:
        assert point.over_mix.lower < 0.005
        assert abs(point.over_mix.value) < 0.03


@pytest.mark.slow
def test_assignments_by_hand_and_the_setting_are_single_points() -> None:
    part, tiers = make_part()
    result = measure(tiers, part)
    steps = result.setups["LiteLLM heuristic, three steps"]
    choice = np.array([0, 1, 2, 2])[np.arange(3000) % 4]
    trial = part.judged.trial
    assert steps.accuracy == pytest.approx(trial.of_choice(trial.correct, choice).mean())
    own = result.setups["router at its setting"]
    at = trial.path.at(0.5)
    paid = trial.of_choice(trial.observed_cost, at).mean() / trial.observed_cost[:, 2].mean()
    assert own.share == pytest.approx(paid)
    assert own.over_price.lower > 0


@pytest.mark.slow
def test_the_folds_of_a_cross_fit_are_judged_together() -> None:
    part, tiers = make_part(size=900)
    trial = part.judged.trial
    names = ("query_ids", "correctness", "cost", "correct", "observed_cost", "domains")
    halves = [
        replace(trial, **{name: getattr(trial, name)[rows] for name in names})
        for rows in (slice(450), slice(450, None))
    ]
    parts = [replace(part, judged=replace(part.judged, trial=half)) for half in halves]
    whole, folds = measure(tiers, part), study_peers(parts, {"heuristic": tiers})
    for name, points in whole.points.items():
        assert [p.accuracy for p in folds.points[name]] == pytest.approx(
            [p.accuracy for p in points]
        )


def test_without_costs_nothing_can_be_compared() -> None:
    part, tiers = make_part(size=200, lacking=True)
    with pytest.raises(DataError, match="give the targets prices"):
        measure(tiers, part)


@pytest.mark.slow
def test_the_page_says_what_each_system_gains() -> None:
    part, tiers = make_part(size=900)
    report = measure(tiers, part).report(title="Peers", facts={})
    assert any("LiteLLM heuristic" in line for line in report.summary)
    assert {row["system"] for row in report.tables["peers"]} >= {"router", "price alone"}


@pytest.mark.slow
def test_litellm_reads_the_last_user_message() -> None:
    easy, hard = "Hi", "Think step by step and prove the theorem; then derive its corollary."
    chat = (Message("user", easy), Message("assistant", "Hello!"), Message("user", hard))
    tiers = classify_prompts([easy, hard, chat], "heuristic")
    assert tiers[0] < tiers[1] == tiers[2]
    assert len(classify_prompts([easy, hard], "heuristic_v2")) == 2
