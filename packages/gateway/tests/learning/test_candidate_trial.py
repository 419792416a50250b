"""A candidate is tried on labelled traffic that came after it was fitted."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packages.gateway.tests.learning.traffic import (
    SKILL,
    START,
    build_pools,
    build_sample,
    is_right,
)
from prefill_router.activations import MemoryActivations, Site
from prefill_router.data import RoutingDataset
from prefill_router.fitting import FitConfig, add_target, fit_router, recipe_from_dict
from prefill_router.progress import SilentProgress
from prefill_router.router import EncoderSources, Router, VersionRegistry
from prefill_router.targets import Pool
from prefill_router.testing import FakeEncoder
from prefill_router_gateway import Receipt
from prefill_router_gateway.learning import CandidateTrial
from prefill_router_gateway.receipts import (
    AnswerLabel,
    SideQuestions,
    export,
    insert_rows,
    labelled_samples,
    open_learning,
    scored_receipts,
    write_learning,
)
from prefill_router_gateway.receipts.rows import to_row

pytestmark = pytest.mark.slow

ENCODER = FakeEncoder()
SITES = [Site(4, "mean")]


def states(dataset: RoutingDataset) -> MemoryActivations:
    return ENCODER.encode(dataset.queries, SITES)


def write_requests(
    url: str,
    numbers: range,
    *,
    router: str = "",
    right: Callable[[str, str], bool] = is_right,
    label_targets: Sequence[str] = tuple(SKILL),
    turns: int = 0,
) -> None:
    """Write requests with labels of `label_targets`; the strong target answered most of them.

    If `turns` is not 0, they are turns of that many conversations with an agent.
    """
    pairs = [build_sample(n, routed="weak-1" if n % 10 == 0 else "strong-1") for n in numbers]
    labels = [
        AnswerLabel(
            id=sample.id,
            target=target,
            source="verifier:truth",
            at=sample.at + 1,
            score=float(right(target, sample.body["messages"][0]["content"])),
        )
        for _, sample in pairs
        for target in label_targets
    ]
    questions = [
        SideQuestions(
            id=sample.id,
            at=sample.at,
            propensity=dict.fromkeys(SKILL, 1.0),
            drawn=tuple(SKILL),
        )
        for _, sample in pairs
    ]
    with closing(open_learning(url)) as store:
        insert_rows(
            store,
            [
                to_row(assign_conversation(replace(receipt, router=router), n, turns))
                for n, (receipt, _) in zip(numbers, pairs, strict=True)
            ],
            [],
        )
        write_learning(store, [*(sample for _, sample in pairs), *questions, *labels])


def assign_conversation(receipt: Receipt, number: int, count: int) -> Receipt:
    """Make the request an agent's in one of `count` conversations; unchanged if `count` is 0."""
    if not count:
        return receipt
    agent = {"agent": "claude-code", "kind": "main", "turn": None, "parent": None}
    choice = replace(receipt.choice, session=f"s{number % count}")
    return replace(receipt, choice=choice, details={"agent": {**agent, "is_ongoing": False}})


@pytest.fixture
def trial(tmp_path: Path) -> CandidateTrial:
    """A shadow candidate that was fitted on 400 requests."""
    url, pool = f"sqlite:///{tmp_path}/receipts.sqlite", build_pools("http://127.0.0.1:9/v1")[0]
    write_requests(url, range(380))
    write_requests(url, range(380, 400), turns=10)
    labels_export = export(scored_receipts(url), pool=pool, samples=labelled_samples(url))
    config = FitConfig(test=0.15, recipe=recipe_from_dict({"predictor": "logistic"}), resamples=20)
    fit = fit_router(labels_export.dataset, [states(labels_export.dataset)], config=config)
    points = fit.router.record.chosen
    assert points is not None
    record_fields = {
        "chosen": replace(points, setting=0.6)
    }  # prefers the weak target for easy requests
    router = replace(fit.router, record=fit.router.record.model_copy(update=record_fields))
    registry = VersionRegistry.at(tmp_path / "versions")
    name = registry.add(router, {"traffic": (START, START + 399)})
    registry.shadow(name)
    return CandidateTrial(
        receipts=url,
        pool=pool,
        registry=registry,
        errors={},
        states=states,
        sources=EncoderSources(loaded=(ENCODER,)),
    )


def test_it_waits_for_later_labels_then_gets_a_share_where_cheaper_ones_do(
    trial: CandidateTrial,
) -> None:
    first_step = trial.step(SilentProgress())
    assert first_step is not None
    assert (first_step.decision.action, first_step.is_taken) == ("wait", False)
    write_requests(trial.receipts, range(400, 1000), right=lambda *_: True)
    step = trial.step(SilentProgress())
    assert step is not None
    assert (step.decision.action, step.is_taken) == ("share", True)
    assert step.decision.evidence["requests"] == 600
    assert step.decision.evidence["differ"] > 100
    state = trial.registry.state()
    assert (state.stage, state.candidate) == ("share", step.version)
    assert state.steps[-1].evidence["e_values"]["not far worse"] > 120
    next_step = trial.step(SilentProgress())
    assert next_step is not None
    assert not next_step.is_taken


def test_conversations_that_began_before_it_was_fitted_are_left_out(trial: CandidateTrial) -> None:
    write_requests(trial.receipts, range(400, 500), turns=10)
    first_step = trial.step(SilentProgress())
    assert first_step is not None
    assert "conversations that it was fitted on" in first_step.decision.why
    write_requests(trial.receipts, range(500, 600), turns=50)
    next_step = trial.step(SilentProgress())
    assert next_step is not None
    assert next_step.decision.evidence["requests"] == 80
    assert next_step.decision.evidence["pairs"] == 40


def test_labels_that_were_drawn_and_never_came_prove_nothing(trial: CandidateTrial) -> None:
    write_requests(
        trial.receipts, range(400, 1000), right=lambda *_: True, label_targets=["strong-1"]
    )
    step = trial.step(SilentProgress())
    assert step is not None
    assert (step.decision.action, step.is_taken) == ("wait", False)
    assert step.decision.evidence["without_overlap"] == step.decision.evidence["differ"] > 100


def test_one_is_tried_against_a_version_with_other_targets(trial: CandidateTrial) -> None:
    registry, url = trial.registry, trial.receipts
    candidate = registry.state().versions[0].name
    router = Router.load(registry.router(candidate), sources=trial.sources)
    data = export(
        scored_receipts(url), pool=trial.pool, samples=labelled_samples(url), errors={}
    ).dataset
    new = Pool((replace(trial.pool["weak-1"], name="third"),), providers=trial.pool.providers)

    def ask(names: Sequence[str]) -> RoutingDataset:
        queries = data.select(list(names)).queries
        return RoutingDataset.of(queries, new, np.zeros((len(names), 1)))

    wider = add_target(router, new, data, ask, labels=20, stores=[states(data)]).router
    registry.promote(registry.add(wider, {}))
    registry.shadow(candidate)
    write_requests(url, range(400, 500))
    first_step = trial.step(SilentProgress())
    assert first_step is not None
    assert first_step.decision.why == "the pool lacks targets of 0002: third"
    pool = replace(trial.pool, targets=(*trial.pool.targets, *new))
    step = replace(trial, pool=pool).step(SilentProgress())
    assert step is not None
    assert step.decision.evidence["requests"] == 100


def test_one_that_saves_at_the_cost_of_quality_is_withdrawn(trial: CandidateTrial) -> None:
    write_requests(trial.receipts, range(400, 1000))
    step = trial.step(SilentProgress())
    assert step is not None
    assert (step.decision.action, step.is_taken) == ("withdraw", True)
    state = trial.registry.state()
    assert (state.candidate, state.steps[-1].event) == (None, "withdrawn")
    assert state.steps[-1].evidence["quality"] < 0


def test_one_that_serves_and_is_surely_worse_than_before_is_rolled_back(
    trial: CandidateTrial,
) -> None:
    trial.registry.promote()
    version = trial.registry.state().versions[0]
    write_requests(trial.receipts, range(400, 420))
    write_requests(
        trial.receipts,
        range(420, 720),
        router=version.fingerprint,
        right=lambda target, _: target == "strong-1",
    )
    step = trial.step(SilentProgress())
    assert step is not None
    assert (step.decision.action, step.is_taken) == ("withdraw", True)
    state = trial.registry.state()
    assert (state.current, state.steps[-1].event) == (None, "rolled back")


def test_without_a_version_there_is_nothing_to_try(trial: CandidateTrial, tmp_path: Path) -> None:
    trial_without_versions = replace(trial, registry=VersionRegistry.at(tmp_path / "none"))
    assert trial_without_versions.step(SilentProgress()) is None
