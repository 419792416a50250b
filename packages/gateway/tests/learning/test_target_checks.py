"""Targets, prices and traffic that change: the learner notices, follows, and pays once."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packages.gateway.tests.learning.traffic import (
    PRICE,
    QUICK_RECIPE,
    SKILL,
    START,
    answer,
    build_pools,
)
from packages.gateway.tests.receipts.example_receipts import example_receipt, receipt_id
from packages.gateway.tests.world import router_folder
from packages.router.tests.fakes.answering_server import serve_answers
from prefill_router.endpoints import Usage, cost_of
from prefill_router.errors import ConfigError
from prefill_router.router import EncoderSources, Router, VersionRegistry
from prefill_router.targets import Pool
from prefill_router.testing import FakeEncoder
from prefill_router_gateway.learning import (
    BudgetLimits,
    LearnerSettings,
    LearningBudget,
    LearningRound,
    TargetChecks,
    change_words,
    follow_changes,
    learn,
)
from prefill_router_gateway.receipts import (
    AnswerLabel,
    RecordedChange,
    SampledRequest,
    SideAnswer,
    insert_rows,
    open_learning,
    read_learning,
    write_learning,
)
from prefill_router_gateway.receipts.rows import to_row

pytestmark = pytest.mark.slow

CHANGING_TARGET = "strong-1"
"""The target that changes."""
NO_FIT = 1000
"""More labels than there are, so that nothing is fitted; fits are slow."""
TICKS = itertools.count()


class LearningSetup:
    """Requests to targets in turn, one a second, and a learner.

    Targets in `exchanged_targets` answer everything wrong.
    """

    def __init__(self, folder: Path, base_url: str, *, count: int = 0) -> None:
        self.url, self.folder, self.base_url = f"sqlite:///{folder}/r.sqlite", folder, base_url
        self.count, self.times = count, dict.fromkeys(SKILL, 1.0)
        self.exchanged_targets: set[str] = set()
        self.on_call: Callable[[str, str], None] = lambda *_: None
        self.pool, self.judges = build_pools(base_url)
        self.registry = VersionRegistry.at(folder / "versions")

    def answer(self, model: str, prompt: str) -> str:
        self.on_call(model, prompt)
        return "a wrong answer" if model in self.exchanged_targets else answer(model, prompt)

    def serve(self, count: int) -> None:
        """Serve `count` requests; each target bills its list price times `times`."""
        state, pairs = self.registry.state(), []
        router = "" if state.current is None else state[state.current].fingerprint
        for number in range(self.count, self.count + count):
            target = self.pool.targets[number % len(self.pool)]
            prompt = f"Question {number} of difficulty {number * 0.618034 % 1:.3f}?"
            usage = Usage(input_tokens=9, output_tokens=4)
            bill = {"cost": self.times[target.name] * (cost_of(usage, target) or 0.0)}
            choice = {
                "order": (target.name, *(name for name in SKILL if name != target.name)),
                "correctness": dict(SKILL),
                "estimated_cost": dict(PRICE),
                "policy_target": target.name,
            }
            outcome = {"usage": replace(usage, reported=bill)}
            receipt = example_receipt(number, choice=choice, outcome=outcome, router=router)
            sample = SampledRequest(
                id=receipt.choice.id,
                at=START + number,
                share=1.0,
                endpoint="chat",
                body={"messages": [{"role": "user", "content": prompt}]},
                answer=self.answer(target.name, prompt),
                prompt=prompt,
            )
            pairs.append((receipt, sample))
        self.count += count
        with closing(open_learning(self.url)) as store:
            insert_rows(store, [to_row(receipt) for receipt, _ in pairs], [])
            write_learning(store, [sample for _, sample in pairs])

    def learn(self, *, pool: Pool | None = None, **more: Any) -> LearningRound:
        settings = LearnerSettings(
            receipts=self.url,
            pool=pool or self.pool,
            judges=self.judges,
            versions=str(self.folder / "versions"),
            encoder="fake",
            recipe=QUICK_RECIPE,
            sources=EncoderSources(loaded=(FakeEncoder(),)),
            cache=self.folder / "cache",
            **{"limits": BudgetLimits(in_all=100), "anchors_every": 20, "least": 30, **more},
        )
        return learn(settings, clock=lambda: START + self.count + 1e-5 * next(TICKS))

    def spending(self) -> float:
        with closing(open_learning(self.url)) as store:
            return LearningBudget(store, BudgetLimits(in_all=100)).spending()

    def anchor_answers(self) -> list[SideAnswer]:
        """The answers to anchors."""
        return [
            answer for answer in read_learning(self.url, SideAnswer) if "(asked" in answer.target
        ]


SETUPS: list[LearningSetup] = []
"""The setups of running tests; the last answers calls to the targets."""


@pytest.fixture(scope="module")
def base_learning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearningSetup]:
    """A learner whose serving version has all targets."""
    with (
        pytest.MonkeyPatch.context() as patch,
        serve_answers(lambda model, prompt: SETUPS[-1].answer(model, prompt)) as (base_url, _),
    ):
        add_middle_target(patch)
        learning = LearningSetup(tmp_path_factory.mktemp("beginning"), base_url)
        SETUPS.append(learning)
        learning.serve(120)
        assert learning.learn().version == "0001"
        learning.registry.promote("0001", by="operator")
        patch.undo()
        yield learning


@pytest.fixture
def learning(
    base_learning: LearningSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LearningSetup]:
    """A copy of `base_learning`, for one test."""
    add_middle_target(monkeypatch)
    shutil.copytree(base_learning.folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    SETUPS.append(LearningSetup(tmp_path, base_learning.base_url, count=base_learning.count))
    yield SETUPS[-1]
    SETUPS.pop()


def add_middle_target(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(SKILL, "middle-1", 0.7)
    patch.setitem(PRICE, "middle-1", 0.5)


def test_an_exchanged_target_is_noticed_and_left_and_its_old_labels_are_not_fitted_on(
    learning: LearningSetup,
) -> None:
    learning.exchanged_targets.add(CHANGING_TARGET)
    learning.serve(30)
    result = learning.learn()
    (change,) = result.changes
    assert (change.kind, change.target, change.evidence["direction"]) == (
        "quality",
        CHANGING_TARGET,
        "worse",
    )
    assert change.evidence["observed"] < change.evidence["expected"] - 0.2
    assert START + 120 < change.since <= change.seen < START + 151
    assert f"{CHANGING_TARGET} is worse since 2026-" in change_words(change)
    state = learning.registry.state()
    assert state.current == result.followed is not None
    others = ("weak-1", "middle-1")
    assert Router.load(learning.registry.router(result.followed)).pool.names == others
    (step,) = (step for step in state.steps if (step.event, step.by) == ("promoted", "learner"))
    assert step.version == result.followed
    assert step.evidence["changes"][change.id]["observed"] == change.evidence["observed"]
    assert result.version is not None  # although fewer labels count than before
    assert Router.load(learning.registry.router(result.version)).pool.names == others
    assert result.to_dict()["changes"][0]["target"] == CHANGING_TARGET
    learning.registry.roll_back("0001")
    next_result = learning.learn()
    assert (next_result.changes, next_result.followed, next_result.version) == ((), None, None)
    assert learning.registry.state().current == "0001"


def test_without_a_change_there_is_no_alarm_and_anchors_are_asked_at_intervals(
    learning: LearningSetup,
) -> None:
    for turn in range(3):
        learning.serve(30)
        result = learning.learn(anchors_every=20, least=NO_FIT)
        assert (result.changes, result.followed) == ((), None)
        names = Counter(answer.target for answer in learning.anchor_answers())
        assert names["strong-1 (asked 2)"] == (40, 40, 50)[turn]
    label_counts = {
        source: source_state.labels for source, source_state in result.labelling.sources.items()
    }
    assert label_counts["judge:judge-1"] == 3 * learning.count + len(learning.anchor_answers())
    assert result.labels == {"judge:judge-1": 3 * learning.count}


def test_answers_to_anchors_take_at_most_a_fifth_of_what_may_be_spent(
    learning: LearningSetup,
) -> None:
    before = learning.spending()
    learning.learn(limits=BudgetLimits(in_all=before + 0.001), least=NO_FIT)
    costs = [answer.cost or 0.0 for answer in learning.anchor_answers()]
    assert 0 < len(costs) < 120
    assert sum(costs) <= 0.0002
    assert before < learning.spending() <= before + 0.001


def test_another_bill_and_another_list_price_are_taken_in_whenever_it_is_interrupted(
    learning: LearningSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    learning.times[CHANGING_TARGET] = 2.0
    learning.serve(15)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("prefill_router_gateway.learning.learner.follow_changes", interrupt)
        with pytest.raises(KeyboardInterrupt):
            learning.learn(anchors_every=0, least=NO_FIT)
    result = learning.learn(anchors_every=0, least=NO_FIT)
    (change,) = read_learning(learning.url, RecordedChange)
    assert result.step is None  # labels before the change don't count against it
    assert (change.kind, change.target) == ("price", CHANGING_TARGET)
    assert change.evidence["times the list"] == pytest.approx(2)
    assert change.since >= START + 120
    assert "costs 2 times its list price" in change_words(change)
    lineage = learning.registry.state()[str(result.followed)]
    assert (learning.registry.state().current, lineage.charged) == (
        result.followed,
        (CHANGING_TARGET,),
    )
    prices = [t.input_price for t in Router.load(learning.registry.router(lineage.name)).pool]
    assert prices == pytest.approx([0.1, 4.0, 0.5])
    learning.serve(15)
    next_result = learning.learn(anchors_every=0, least=NO_FIT)
    assert (next_result.changes, next_result.followed) == ((), None)
    repriced = tuple(replace(t, input_price=4.0, output_price=16.0) for t in learning.pool)
    learning.pool = replace(
        learning.pool, targets=(learning.pool.targets[0], repriced[1], learning.pool.targets[2])
    )
    learning.times[CHANGING_TARGET] = 1.0
    learning.serve(15)
    (change,) = learning.learn(anchors_every=0, least=NO_FIT).changes
    assert f"{CHANGING_TARGET} has other list prices" in change_words(change)
    assert learning.registry.state().current == lineage.name  # its prices are these


def test_a_learner_that_is_killed_while_anchors_are_asked_pays_once_and_goes_on(
    learning: LearningSetup,
) -> None:
    call_counts: Counter[tuple[str, str]] = Counter()
    learner: list[subprocess.Popen[bytes]] = []

    def kill(model: str, prompt: str) -> None:
        call_counts[model, prompt] += 1
        if len(learner) == 1 and len(call_counts) == 15:
            os.kill(learner[0].pid, signal.SIGKILL)

    learning.on_call = kill
    code = (
        "from pathlib import Path; "
        "from packages.gateway.tests.learning.test_target_checks import *; "
        "SKILL['middle-1'], PRICE['middle-1'] = 0.7, 0.5; "
        f"LearningSetup(Path({str(learning.folder)!r}), {learning.base_url!r}, count=120).learn()"
    )
    learner.append(subprocess.Popen([sys.executable, "-c", code]))
    assert learner[0].wait() == -signal.SIGKILL
    assert 0 < len(learning.anchor_answers()) < 15
    learner.clear()
    learning.learn(least=NO_FIT)
    learning.learn(least=NO_FIT)
    target_calls = {call: n for call, n in call_counts.items() if call[0] != "judge-1"}
    assert set(target_calls.values()) == {1}
    assert len(learning.anchor_answers()) == 3 * 40
    failures = [answer for answer in learning.anchor_answers() if answer.failure]
    assert {answer.failure for answer in failures} == {"interrupted"}
    rows = [*read_learning(learning.url, SideAnswer), *read_learning(learning.url, AnswerLabel)]
    assert sum(row.cost or 0.0 for row in rows) == pytest.approx(learning.spending(), abs=1e-9)


def check_twice(
    folder: Path, chances: Sequence[float], scores: Sequence[float], **more: Any
) -> tuple[RecordedChange, ...]:
    """The changes in requests with these predictions and labels; a second check adds none."""
    url, pool = f"sqlite:///{folder}/r.sqlite", build_pools("http://127.0.0.1:9/v1")[0]
    settings: dict[str, Any] = {"every": 20, "is_graded": True, **more}
    receipts = [
        example_receipt(n, choice={"correctness": {"weak-1": p, "strong-1": 0.9}})
        for n, p in enumerate(chances)
    ]
    samples = [
        SampledRequest(id=receipt_id(n), at=START + n, share=1, endpoint="chat", body={}, answer="")
        for n in range(len(scores))
    ]
    labels = [
        AnswerLabel(
            id=receipt_id(n), target="weak-1", source="verifier:x", at=START + n, score=score
        )
        for n, score in enumerate(scores)
    ]
    registry = VersionRegistry.at(folder / "versions")
    with closing(open_learning(url)) as store:
        insert_rows(store, [to_row(receipt) for receipt in receipts], [])
        write_learning(store, [*samples, *labels])
        changes = TargetChecks(url, store, pool, registry, **settings).record_changes()
        assert TargetChecks(url, store, pool, registry, **settings).record_changes() == ()
    assert tuple(read_learning(url, RecordedChange)) == changes
    return changes


def test_another_mix_of_requests_is_told_once(tmp_path: Path) -> None:
    draws = np.random.default_rng(0).beta(4, 2, 1600)
    draws[1300:] **= 2
    (change,) = check_twice(tmp_path, draws.tolist(), [])
    assert (change.kind, change.target) == ("mix", "")
    assert START + 1200 < change.since <= change.seen < START + 1600
    assert "weak-1 are lower" in change_words(change)


def test_the_same_mix_is_no_change(tmp_path: Path) -> None:
    assert check_twice(tmp_path, np.random.default_rng(0).beta(4, 2, 1600).tolist(), []) == ()


@pytest.mark.parametrize(("is_graded", "expected"), [(True, ["better"]), (False, [])])
def test_a_better_target_is_told_where_labels_grade(
    tmp_path: Path, is_graded: bool, expected: list[str]
) -> None:
    scores = [float(n % 2 or n >= 150) for n in range(300)]
    changes = check_twice(tmp_path, [0.5] * 300, scores, is_graded=is_graded)
    assert [change.evidence["direction"] for change in changes] == expected
    for change in changes:
        assert change.evidence["expected"] == pytest.approx(0.5)
        assert change.evidence["observed"] > 0.8
        assert START + 140 <= change.since <= START + 160


def worse_changes(*targets: str) -> list[RecordedChange]:
    times, evidence = {"at": 1.0, "since": 1.0, "seen": 1.0}, {"direction": "worse"}
    return [
        RecordedChange(
            id=name,
            target=name,
            kind="quality",
            evidence={**evidence, "observed": 0.1, "expected": 0.9, "labels": 9},
            **times,
        )
        for name in targets
    ]


def test_no_target_is_left_where_most_seem_worse_or_an_operator_took_it_back(
    tmp_path: Path,
) -> None:
    registry, router = VersionRegistry.at(tmp_path / "versions"), Router.load(router_folder())
    first, second, _ = router.pool.names
    assert follow_changes(registry, worse_changes(first), router.pool) is None  # no version serves
    registry.promote(registry.add(router, {}))
    assert follow_changes(registry, worse_changes(first, second), router.pool) is None
    assert follow_changes(registry, worse_changes(first), router.pool) == "0002"
    points, next_points = (Router.load(registry.router(n)).record.chosen for n in ("0001", "0002"))
    assert points is not None
    assert next_points is not None
    assert next_points.setting == points.setting
    assert next_points.best != first
    assert registry.state().current == "0002"
    registry.roll_back()
    assert follow_changes(registry, worse_changes(first), router.pool) is None
    registry.promote(registry.add(router, {"changes": (second,)}))
    assert (
        follow_changes(registry, worse_changes(second), router.pool) is None
    )  # it was fitted after the change


def test_an_interval_below_zero_is_refused(learning: LearningSetup) -> None:
    with pytest.raises(ConfigError, match="anchors_every is -1"):
        learning.learn(anchors_every=-1)
