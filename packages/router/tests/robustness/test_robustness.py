"""Robustness: against plain sums over single decisions, and what isn't known is said."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest

from packages.router.tests.router.fixtures import SMALL, with_encoder
from prefill_router.activations import Site
from prefill_router.data import Query, RoutingDataset, split
from prefill_router.doctor.checkup import flip_finding
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import Estimate
from prefill_router.fitting import fit_router
from prefill_router.policy import Cascade
from prefill_router.reporting.report_files import render
from prefill_router.robustness import (
    RobustnessStudy,
    perturb,
    report_of,
    robustness_study,
)
from prefill_router.router import Router
from prefill_router.testing import FakeEncoder, make_routing_dataset

LAM = 0.8


@pytest.fixture(scope="module")
def router() -> Router:
    answers, encoder = make_routing_dataset(queries=160), FakeEncoder()
    states = encoder.encode(answers.queries, [Site(3, "last"), Site(3, "mean")])
    fit = fit_router(answers, [states], config=SMALL, split=split(answers))
    return with_encoder(fit.router, encoder)


@pytest.fixture(scope="module")
def judged() -> RoutingDataset:
    return make_routing_dataset(queries=60, missing=0.2, seed=4)


def harder(dataset: RoutingDataset, count: int = 40) -> list[Query]:
    """Some of the queries, out of order, as if they were of another difficulty."""
    return [
        dataclasses.replace(q, prompt=f"Other, of difficulty {0.1 + 0.8 * (i % 2):.2f}")
        for i, q in enumerate(dataset.queries[count - 1 :: -1])
    ]


def studied(
    router: Router, dataset: RoutingDataset, queries: Sequence[Query], *, lam: float = LAM
) -> RobustnessStudy:
    return robustness_study(router, dataset, {"paraphrases": queries}, lam=lam, resamples=100)


@pytest.mark.slow
def test_numbers_are_plain_sums_over_single_decisions(
    router: Router, judged: RoutingDataset
) -> None:
    others = harder(judged)
    [found] = studied(router, judged, others).kinds
    rows = judged.rows(query.id for query in others)
    before = router.route_many([judged.queries[row].prompt for row in rows], lam=LAM)
    after = router.route_many([query.prompt for query in others], lam=LAM)
    names = list(judged.pool.names)
    pairs = [
        (names.index(a.target), names.index(b.target)) for a, b in zip(before, after, strict=True)
    ]
    same = [one == other for one, other in pairs]
    assert 0 < sum(same) < len(same) == found.queries == 40
    assert found.kept_share.value == pytest.approx(np.mean(same))
    shares = [[np.mean([p[side] == k for p in pairs]) for k in range(3)] for side in (0, 1)]
    assert found.by_chance == pytest.approx(np.dot(*shares))
    moved = [
        abs(a.correctness[n] - b.correctness[n])
        for a, b in zip(before, after, strict=True)
        for n in names
    ]
    assert found.moved.value == pytest.approx(np.mean(moved))
    for table, estimate in ((judged.correct, found.accuracy), (judged.observed_cost, found.cost)):
        changes = [table[row, b] - table[row, a] for row, (a, b) in zip(rows, pairs, strict=True)]
        known = [change for change in changes if not math.isnan(change)]
        assert len(known) < len(changes)  # a missing label is neither right nor wrong
        assert estimate.value == pytest.approx(np.mean(known))
        assert estimate.lower < estimate.value < estimate.upper
    known_labels = [
        not np.isnan(judged.correct[r, list(p)]).any() for r, p in zip(rows, pairs, strict=True)
    ]
    assert found.labelled == sum(known_labels)


@pytest.mark.slow
def test_the_same_prompts_are_decided_the_same(router: Router, judged: RoutingDataset) -> None:
    [found] = studied(router, judged, judged.queries).kinds
    assert (found.kept_share.value, found.kept_share.lower, found.moved.value) == (1, 1, 0)
    assert (found.accuracy.value, found.cost.value) == (0, 0)
    assert found.by_chance < 1


def test_a_constant_router_keeps_all_and_would_by_chance(
    router: Router, judged: RoutingDataset
) -> None:
    study = studied(router, judged, harder(judged), lam=0)
    [found] = study.kinds
    assert (found.kept_share.value, found.by_chance) == (1, 1)
    assert study.shares == {"target-0": 1.0}


def test_only_prompts_that_change_count_and_kinds_that_change_none_are_told(
    router: Router, judged: RoutingDataset
) -> None:
    versions = {"options": [], "typos": perturb(judged.queries, "typos")}
    study = robustness_study(router, judged, versions, lam=LAM, resamples=0)
    assert study.unchanged == ("options",)
    assert [(one.kind, one.queries) for one in study.kinds] == [("typos", 60)]
    assert math.isnan(study.kinds[0].kept_share.lower)
    with pytest.raises(DataError, match="no prompt is changed by options"):
        robustness_study(router, judged, {"options": []}, lam=LAM)


def test_what_the_dataset_knows_of_tokens_decides_nothing(
    router: Router, judged: RoutingDataset
) -> None:
    longer = dataclasses.replace(judged, input_tokens=1000 * judged.input_tokens)
    one, other = (studied(router, data, harder(judged)) for data in (judged, longer))
    assert one.kinds[0].kept_share == other.kinds[0].kept_share
    assert one.shares == other.shares


def test_without_labels_the_flips_are_counted_all_the_same(
    router: Router, judged: RoutingDataset
) -> None:
    bare = RoutingDataset.of(judged.queries, judged.pool, np.full((60, 3), np.nan))
    study = studied(router, bare, harder(judged))
    [found] = study.kinds
    assert found.kept_share == studied(router, judged, harder(judged)).kinds[0].kept_share
    assert math.isnan(found.accuracy.value)
    assert found.labelled == 0
    assert "labels of both choices" in found.accuracy.reason
    assert "what flips cost isn't known" in report_of(study, title="T", facts={}).summary[1]
    assert "accuracy" not in flip_finding(study).result


def test_labels_that_had_no_chance_to_be_observed_tell_nothing(
    router: Router, judged: RoutingDataset
) -> None:
    correct, chance = judged.correct.copy(), np.full((60, 3), 0.5)
    correct[:, 1], chance[:, 1] = np.nan, 0.0
    selected = dataclasses.replace(judged, correct=correct, propensity=chance)
    [found] = studied(router, selected, harder(judged)).kinds
    assert math.isnan(found.accuracy.value)
    assert "lack overlap" in found.accuracy.reason


def test_a_seed_repeats_a_study_and_plain_values_have_all_of_it(
    router: Router, judged: RoutingDataset
) -> None:
    one, again = (studied(router, judged, harder(judged)) for _ in range(2))
    assert one.to_dict() == again.to_dict()
    told = one.to_dict()
    assert set(told["kinds"]["paraphrases"]) >= {"kept", "moved", "accuracy", "cost", "by_chance"}
    assert sum(told["shares"].values()) == pytest.approx(1)


def test_the_page_says_what_stays_and_draws_it(router: Router, judged: RoutingDataset) -> None:
    study = studied(router, judged, harder(judged))
    shown = report_of(study, title="T", facts={"data": "d"})
    kept = f"{100 * study.kinds[0].kept_share.value:.1f} % of the decisions stay"
    assert kept in shown.summary[1]
    assert shown.tables["robustness"][0]["kept"] == study.kinds[0].kept_share.value
    drawn = shown.figures["robustness"].rows
    assert [row["number"] for row in drawn] == ["kept", "by_chance", "accuracy"]
    assert drawn[1]["value"] == study.kinds[0].by_chance
    assert "P moves" in render(shown, {"robustness": "<svg></svg>"})


def test_a_cascade_is_refused(router: Router, judged: RoutingDataset) -> None:
    cascade = dataclasses.replace(router, policy=Cascade())
    with pytest.raises(ConfigError, match="a cascade decides after each answer"):
        studied(cascade, judged, harder(judged))
    with pytest.raises(ConfigError, match="lam is 2"):
        studied(router, judged, harder(judged), lam=2)


def test_the_doctor_fails_flips_only_where_they_lose_accuracy(
    router: Router, judged: RoutingDataset
) -> None:
    study = studied(router, judged, harder(judged))
    one = study.kinds[0]

    def found(low: float, high: float) -> str:
        accuracy = Estimate((low + high) / 2, low, high)
        kinds = (dataclasses.replace(one, accuracy=accuracy),)
        return flip_finding(dataclasses.replace(study, kinds=kinds)).sign

    assert found(-0.2, -0.1) == "bad"
    assert found(-0.2, 0.1) == found(0.1, 0.2) == "note"
    told = flip_finding(study)
    assert f"{100 * (1 - one.kept_share.value):.1f} % of 40 flip" in told.result
    assert told.numbers == study.to_dict()


@pytest.mark.slow
def test_the_turns_of_one_conversation_tell_no_interval(
    router: Router, judged: RoutingDataset
) -> None:
    rows = tuple(dataclasses.replace(query, conversation="c") for query in judged.queries)
    one = dataclasses.replace(judged, queries=rows)
    [together] = studied(router, one, harder(one)).kinds
    [alone] = studied(router, judged, harder(judged)).kinds
    assert together.kept_share.value == alone.kept_share.value
    assert math.isnan(together.kept_share.lower)
    assert alone.kept_share.lower < alone.kept_share.upper
