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
def dataset() -> RoutingDataset:
    return make_routing_dataset(queries=60, missing=0.2, seed=4)


def harder(dataset: RoutingDataset, count: int = 40) -> list[Query]:
    """Some of the queries, out of order, as if they were of another difficulty."""
    return [
        dataclasses.replace(q, prompt=f"Other, of difficulty {0.1 + 0.8 * (i % 2):.2f}")
        for i, q in enumerate(dataset.queries[count - 1 :: -1])
    ]


def run_study(
    router: Router, dataset: RoutingDataset, queries: Sequence[Query], *, lam: float = LAM
) -> RobustnessStudy:
    return robustness_study(router, dataset, {"paraphrases": queries}, lam=lam, resamples=100)


@pytest.mark.slow
def test_numbers_are_plain_sums_over_single_decisions(
    router: Router, dataset: RoutingDataset
) -> None:
    changed_queries = harder(dataset)
    [kind] = run_study(router, dataset, changed_queries).kinds
    rows = dataset.rows(query.id for query in changed_queries)
    before = router.route_many([dataset.queries[row].prompt for row in rows], lam=LAM)
    after = router.route_many([query.prompt for query in changed_queries], lam=LAM)
    names = list(dataset.pool.names)
    pairs = [
        (names.index(a.target), names.index(b.target)) for a, b in zip(before, after, strict=True)
    ]
    same = [first == second for first, second in pairs]
    assert 0 < sum(same) < len(same) == kind.queries == 40
    assert kind.kept_share.value == pytest.approx(np.mean(same))
    shares = [[np.mean([p[side] == k for p in pairs]) for k in range(3)] for side in (0, 1)]
    assert kind.by_chance == pytest.approx(np.dot(*shares))
    moved = [
        abs(a.correctness[n] - b.correctness[n])
        for a, b in zip(before, after, strict=True)
        for n in names
    ]
    assert kind.moved.value == pytest.approx(np.mean(moved))
    for table, estimate in ((dataset.correct, kind.accuracy), (dataset.observed_cost, kind.cost)):
        changes = [table[row, b] - table[row, a] for row, (a, b) in zip(rows, pairs, strict=True)]
        numbers = [change for change in changes if not math.isnan(change)]
        assert len(numbers) < len(changes)  # a missing label is neither right nor wrong
        assert estimate.value == pytest.approx(np.mean(numbers))
        assert estimate.lower < estimate.value < estimate.upper
    known_labels = [
        not np.isnan(dataset.correct[r, list(p)]).any() for r, p in zip(rows, pairs, strict=True)
    ]
    assert kind.labelled == sum(known_labels)


@pytest.mark.slow
def test_the_same_prompts_are_decided_the_same(router: Router, dataset: RoutingDataset) -> None:
    [kind] = run_study(router, dataset, dataset.queries).kinds
    assert (kind.kept_share.value, kind.kept_share.lower, kind.moved.value) == (1, 1, 0)
    assert (kind.accuracy.value, kind.cost.value) == (0, 0)
    assert kind.by_chance < 1


def test_a_constant_router_keeps_all_and_would_by_chance(
    router: Router, dataset: RoutingDataset
) -> None:
    study = run_study(router, dataset, harder(dataset), lam=0)
    [kind] = study.kinds
    assert (kind.kept_share.value, kind.by_chance) == (1, 1)
    assert study.shares == {"target-0": 1.0}


def test_only_prompts_that_change_count_and_kinds_that_change_none_are_told(
    router: Router, dataset: RoutingDataset
) -> None:
    versions = {"options": [], "typos": perturb(dataset.queries, "typos")}
    study = robustness_study(router, dataset, versions, lam=LAM, resamples=0)
    assert study.unchanged == ("options",)
    assert [(kind.kind, kind.queries) for kind in study.kinds] == [("typos", 60)]
    assert math.isnan(study.kinds[0].kept_share.lower)
    with pytest.raises(DataError, match="no prompt is changed by options"):
        robustness_study(router, dataset, {"options": []}, lam=LAM)


def test_what_the_dataset_knows_of_tokens_decides_nothing(
    router: Router, dataset: RoutingDataset
) -> None:
    longer = dataclasses.replace(dataset, input_tokens=1000 * dataset.input_tokens)
    before, after = (run_study(router, data, harder(dataset)) for data in (dataset, longer))
    assert before.kinds[0].kept_share == after.kinds[0].kept_share
    assert before.shares == after.shares


def test_without_labels_the_flips_are_counted_all_the_same(
    router: Router, dataset: RoutingDataset
) -> None:
    bare = RoutingDataset.of(dataset.queries, dataset.pool, np.full((60, 3), np.nan))
    study = run_study(router, bare, harder(dataset))
    [kind] = study.kinds
    assert kind.kept_share == run_study(router, dataset, harder(dataset)).kinds[0].kept_share
    assert math.isnan(kind.accuracy.value)
    assert kind.labelled == 0
    assert "labels of both choices" in kind.accuracy.reason
    assert "what flips cost isn't known" in report_of(study, title="T", facts={}).summary[1]
    assert "accuracy" not in flip_finding(study).result


def test_labels_that_had_no_chance_to_be_observed_tell_nothing(
    router: Router, dataset: RoutingDataset
) -> None:
    correct, chance = dataset.correct.copy(), np.full((60, 3), 0.5)
    correct[:, 1], chance[:, 1] = np.nan, 0.0
    selected = dataclasses.replace(dataset, correct=correct, propensity=chance)
    [kind] = run_study(router, selected, harder(dataset)).kinds
    assert math.isnan(kind.accuracy.value)
    assert "lack overlap" in kind.accuracy.reason


def test_a_seed_repeats_a_study_and_plain_values_have_all_of_it(
    router: Router, dataset: RoutingDataset
) -> None:
    first, again = (run_study(router, dataset, harder(dataset)) for _ in range(2))
    assert first.to_dict() == again.to_dict()
    content = first.to_dict()
    assert set(content["kinds"]["paraphrases"]) >= {
        "kept",
        "moved",
        "accuracy",
        "cost",
        "by_chance",
    }
    assert sum(content["shares"].values()) == pytest.approx(1)


def test_the_page_says_what_stays_and_draws_it(router: Router, dataset: RoutingDataset) -> None:
    study = run_study(router, dataset, harder(dataset))
    report = report_of(study, title="T", facts={"data": "d"})
    share = f"{100 * study.kinds[0].kept_share.value:.1f} % of the decisions stay"
    assert share in report.summary[1]
    assert report.tables["robustness"][0]["kept"] == study.kinds[0].kept_share.value
    rows = report.figures["robustness"].rows
    assert [row["number"] for row in rows] == ["kept", "by_chance", "accuracy"]
    assert rows[1]["value"] == study.kinds[0].by_chance
    assert "P moves" in render(report, {"robustness": "<svg></svg>"})


def test_a_cascade_is_refused(router: Router, dataset: RoutingDataset) -> None:
    cascade = dataclasses.replace(router, policy=Cascade())
    with pytest.raises(ConfigError, match="a cascade decides after each answer"):
        run_study(cascade, dataset, harder(dataset))
    with pytest.raises(ConfigError, match="lam is 2"):
        run_study(router, dataset, harder(dataset), lam=2)


def test_the_doctor_fails_flips_only_where_they_lose_accuracy(
    router: Router, dataset: RoutingDataset
) -> None:
    study = run_study(router, dataset, harder(dataset))
    kind = study.kinds[0]

    def sign_for(low: float, high: float) -> str:
        accuracy = Estimate((low + high) / 2, low, high)
        kinds = (dataclasses.replace(kind, accuracy=accuracy),)
        return flip_finding(dataclasses.replace(study, kinds=kinds)).sign

    assert sign_for(-0.2, -0.1) == "bad"
    assert sign_for(-0.2, 0.1) == sign_for(0.1, 0.2) == "note"
    finding = flip_finding(study)
    assert f"{100 * (1 - kind.kept_share.value):.1f} % of 40 flip" in finding.result
    assert finding.numbers == study.to_dict()


@pytest.mark.slow
def test_the_turns_of_one_conversation_tell_no_interval(
    router: Router, dataset: RoutingDataset
) -> None:
    rows = tuple(dataclasses.replace(query, conversation="c") for query in dataset.queries)
    renamed = dataclasses.replace(dataset, queries=rows)
    [together] = run_study(router, renamed, harder(renamed)).kinds
    [alone] = run_study(router, dataset, harder(dataset)).kinds
    assert together.kept_share.value == alone.kept_share.value
    assert math.isnan(together.kept_share.lower)
    assert alone.kept_share.lower < alone.kept_share.upper
