"""Targets, prices and traffic that change beside a learner: noticed, followed, and paid once."""

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

from packages.gateway.tests.learning.traffic import PRICE, QUICK_RECIPE, SKILL, START, answer, pools
from packages.gateway.tests.receipts.receipts_made import made_receipt, name_of
from packages.gateway.tests.world import router_folder
from packages.router.tests.fakes.answering_server import answering
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

OTHER = "strong-1"
"""The target that changes."""
NO_FIT = 1000
"""More labels than there are; a fit is as expensive as all that is asked."""
TICKS = itertools.count()


class Work:
    """Requests to targets in turn, one a second, and a learner beside them.

    A target that is exchanged answers everything wrong.
    """

    def __init__(self, folder: Path, base_url: str, *, count: int = 0) -> None:
        self.url, self.folder, self.base_url = f"sqlite:///{folder}/r.sqlite", folder, base_url
        self.count, self.times = count, dict.fromkeys(SKILL, 1.0)
        self.exchanged: set[str] = set()
        self.asked: Callable[[str, str], None] = lambda *_: None
        self.pool, self.judges = pools(base_url)
        self.registry = VersionRegistry.at(folder / "versions")

    def answer(self, model: str, prompt: str) -> str:
        self.asked(model, prompt)
        return "a wrong answer" if model in self.exchanged else answer(model, prompt)

    def serve(self, count: int) -> None:
        """So many requests; each target bills its list price times `times`."""
        state, made = self.registry.state(), []
        router = "" if state.current is None else state[state.current].fingerprint
        for number in range(self.count, self.count + count):
            target = self.pool.targets[number % len(self.pool)]
            prompt = f"Question {number} of difficulty {number * 0.618034 % 1:.3f}?"
            usage = Usage(input_tokens=9, output_tokens=4)
            billed = {"cost": self.times[target.name] * (cost_of(usage, target) or 0.0)}
            choice = {
                "order": (target.name, *(name for name in SKILL if name != target.name)),
                "correctness": dict(SKILL),
                "estimated_cost": dict(PRICE),
                "policy_target": target.name,
            }
            outcome = {"usage": replace(usage, reported=billed)}
            receipt = made_receipt(number, choice=choice, outcome=outcome, router=router)
            sample = SampledRequest(
                id=receipt.choice.id,
                at=START + number,
                share=1.0,
                endpoint="chat",
                body={"messages": [{"role": "user", "content": prompt}]},
                answer=self.answer(target.name, prompt),
                prompt=prompt,
            )
            made.append((receipt, sample))
        self.count += count
        with closing(open_learning(self.url)) as store:
            insert_rows(store, [to_row(receipt) for receipt, _ in made], [])
            write_learning(store, [sample for _, sample in made])

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

    def spent(self) -> float:
        with closing(open_learning(self.url)) as store:
            return LearningBudget(store, BudgetLimits(in_all=100)).spending()

    def repeated(self) -> list[SideAnswer]:
        """The answers to anchors."""
        return [one for one in read_learning(self.url, SideAnswer) if "(asked" in one.target]


AT_WORK: list[Work] = []
"""What the tests run; the last one answers the calls to the targets."""


@pytest.fixture(scope="module")
def beginning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """A version of all targets serves."""
    with (
        pytest.MonkeyPatch.context() as patch,
        answering(lambda model, prompt: AT_WORK[-1].answer(model, prompt)) as (base_url, _),
    ):
        add_middle_target(patch)
        work = Work(tmp_path_factory.mktemp("beginning"), base_url)
        AT_WORK.append(work)
        work.serve(120)
        assert work.learn().version == "0001"
        work.registry.promote("0001", by="operator")
        patch.undo()
        yield work


@pytest.fixture
def work(beginning: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    """Goes on from there."""
    add_middle_target(monkeypatch)
    shutil.copytree(beginning.folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    AT_WORK.append(Work(tmp_path, beginning.base_url, count=beginning.count))
    yield AT_WORK[-1]
    AT_WORK.pop()


def add_middle_target(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(SKILL, "middle-1", 0.7)
    patch.setitem(PRICE, "middle-1", 0.5)


def test_an_exchanged_target_is_noticed_and_left_and_its_old_labels_are_not_fitted_on(
    work: Work,
) -> None:
    work.exchanged.add(OTHER)
    work.serve(30)
    found = work.learn()
    (change,) = found.changes
    assert (change.kind, change.target, change.evidence["direction"]) == ("quality", OTHER, "worse")
    assert change.evidence["observed"] < change.evidence["expected"] - 0.2
    assert START + 120 < change.since <= change.seen < START + 151
    assert f"{OTHER} is worse since 2026-" in change_words(change)
    state = work.registry.state()
    assert state.current == found.followed is not None
    others = ("weak-1", "middle-1")
    assert Router.load(work.registry.router(found.followed)).pool.names == others
    (step,) = (one for one in state.steps if (one.event, one.by) == ("promoted", "learner"))
    assert step.version == found.followed
    assert step.evidence["changes"][change.id]["observed"] == change.evidence["observed"]
    assert found.version is not None  # though there are fewer labels that count than before
    assert Router.load(work.registry.router(found.version)).pool.names == others
    assert found.to_dict()["changes"][0]["target"] == OTHER
    work.registry.roll_back("0001")
    later = work.learn()
    assert (later.changes, later.followed, later.version) == ((), None, None)
    assert work.registry.state().current == "0001"


def test_without_a_change_there_is_no_alarm_and_anchors_are_asked_at_intervals(work: Work) -> None:
    for turn in range(3):
        work.serve(30)
        found = work.learn(anchors_every=20, least=NO_FIT)
        assert (found.changes, found.followed) == ((), None)
        names = Counter(one.target for one in work.repeated())
        assert names["strong-1 (asked 2)"] == (40, 40, 50)[turn]
    counted = {source: one.labels for source, one in found.labelling.sources.items()}
    assert counted["judge:judge-1"] == 3 * work.count + len(work.repeated())
    assert found.labels == {"judge:judge-1": 3 * work.count}


def test_answers_to_anchors_take_at_most_a_fifth_of_what_may_be_spent(work: Work) -> None:
    before = work.spent()
    work.learn(limits=BudgetLimits(in_all=before + 0.001), least=NO_FIT)
    paid = [one.cost or 0.0 for one in work.repeated()]
    assert 0 < len(paid) < 120
    assert sum(paid) <= 0.0002
    assert before < work.spent() <= before + 0.001


def test_another_bill_and_another_list_price_are_taken_in_whenever_it_is_interrupted(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.times[OTHER] = 2.0
    work.serve(15)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("prefill_router_gateway.learning.learner.follow_changes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            work.learn(anchors_every=0, least=NO_FIT)
    found = work.learn(anchors_every=0, least=NO_FIT)
    (change,) = read_learning(work.url, RecordedChange)
    assert found.step is None  # labels from before don't speak against it
    assert (change.kind, change.target) == ("price", OTHER)
    assert change.evidence["times the list"] == pytest.approx(2)
    assert change.since >= START + 120
    assert "costs 2 times its list price" in change_words(change)
    lineage = work.registry.state()[str(found.followed)]
    assert (work.registry.state().current, lineage.charged) == (found.followed, (OTHER,))
    prices = [t.input_price for t in Router.load(work.registry.router(lineage.name)).pool]
    assert prices == pytest.approx([0.1, 4.0, 0.5])
    work.serve(15)
    later = work.learn(anchors_every=0, least=NO_FIT)
    assert (later.changes, later.followed) == ((), None)
    listed = tuple(replace(t, input_price=4.0, output_price=16.0) for t in work.pool)
    work.pool = replace(work.pool, targets=(work.pool.targets[0], listed[1], work.pool.targets[2]))
    work.times[OTHER] = 1.0
    work.serve(15)
    (change,) = work.learn(anchors_every=0, least=NO_FIT).changes
    assert f"{OTHER} has other list prices" in change_words(change)
    assert work.registry.state().current == lineage.name  # which has these prices


def test_a_learner_that_is_killed_while_anchors_are_asked_pays_once_and_goes_on(work: Work) -> None:
    asked: Counter[tuple[str, str]] = Counter()
    learner: list[subprocess.Popen[bytes]] = []

    def kill(model: str, prompt: str) -> None:
        asked[model, prompt] += 1
        if len(learner) == 1 and len(asked) == 15:
            os.kill(learner[0].pid, signal.SIGKILL)

    work.asked = kill
    code = (
        "from pathlib import Path; "
        "from packages.gateway.tests.learning.test_target_checks import *; "
        "SKILL['middle-1'], PRICE['middle-1'] = 0.7, 0.5; "
        f"Work(Path({str(work.folder)!r}), {work.base_url!r}, count=120).learn()"
    )
    learner.append(subprocess.Popen([sys.executable, "-c", code]))
    assert learner[0].wait() == -signal.SIGKILL
    assert 0 < len(work.repeated()) < 15
    learner.clear()
    work.learn(least=NO_FIT)
    work.learn(least=NO_FIT)
    again = {one: n for one, n in asked.items() if one[0] != "judge-1"}
    assert set(again.values()) == {1}
    assert len(work.repeated()) == 3 * 40
    failed = [one for one in work.repeated() if one.failure]
    assert {one.failure for one in failed} == {"interrupted"}
    rows = [*read_learning(work.url, SideAnswer), *read_learning(work.url, AnswerLabel)]
    assert sum(one.cost or 0.0 for one in rows) == pytest.approx(work.spent(), abs=1e-9)


def looked(
    folder: Path, chances: Sequence[float], scores: Sequence[float], **more: Any
) -> tuple[RecordedChange, ...]:
    """What two looks notice of requests with these predictions and labels; only the first may."""
    url, pool = f"sqlite:///{folder}/r.sqlite", pools("http://127.0.0.1:9/v1")[0]
    settings: dict[str, Any] = {"every": 20, "is_graded": True, **more}
    receipts = [
        made_receipt(n, choice={"correctness": {"weak-1": p, "strong-1": 0.9}})
        for n, p in enumerate(chances)
    ]
    samples = [
        SampledRequest(id=name_of(n), at=START + n, share=1, endpoint="chat", body={}, answer="")
        for n in range(len(scores))
    ]
    labels = [
        AnswerLabel(id=name_of(n), target="weak-1", source="verifier:x", at=START + n, score=score)
        for n, score in enumerate(scores)
    ]
    registry = VersionRegistry.at(folder / "versions")
    with closing(open_learning(url)) as store:
        insert_rows(store, [to_row(receipt) for receipt in receipts], [])
        write_learning(store, [*samples, *labels])
        found = TargetChecks(url, store, pool, registry, **settings).record_changes()
        assert TargetChecks(url, store, pool, registry, **settings).record_changes() == ()
    assert tuple(read_learning(url, RecordedChange)) == found
    return found


def test_another_mix_of_requests_is_told_once(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).beta(4, 2, 1600)
    drawn[1300:] **= 2
    (change,) = looked(tmp_path, drawn.tolist(), [])
    assert (change.kind, change.target) == ("mix", "")
    assert START + 1200 < change.since <= change.seen < START + 1600
    assert "weak-1 are lower" in change_words(change)


def test_the_same_mix_is_no_change(tmp_path: Path) -> None:
    assert looked(tmp_path, np.random.default_rng(0).beta(4, 2, 1600).tolist(), []) == ()


@pytest.mark.parametrize(("is_graded", "expected"), [(True, ["better"]), (False, [])])
def test_a_better_target_is_told_where_labels_grade(
    tmp_path: Path, is_graded: bool, expected: list[str]
) -> None:
    scores = [float(n % 2 or n >= 150) for n in range(300)]
    found = looked(tmp_path, [0.5] * 300, scores, is_graded=is_graded)
    assert [one.evidence["direction"] for one in found] == expected
    for one in found:
        assert one.evidence["expected"] == pytest.approx(0.5)
        assert one.evidence["observed"] > 0.8
        assert START + 140 <= one.since <= START + 160


def worse(*targets: str) -> list[RecordedChange]:
    times, told = {"at": 1.0, "since": 1.0, "seen": 1.0}, {"direction": "worse"}
    return [
        RecordedChange(
            id=name,
            target=name,
            kind="quality",
            evidence={**told, "observed": 0.1, "expected": 0.9, "labels": 9},
            **times,
        )
        for name in targets
    ]


def test_no_target_is_left_where_most_seem_worse_or_an_operator_took_it_back(
    tmp_path: Path,
) -> None:
    registry, router = VersionRegistry.at(tmp_path / "versions"), Router.load(router_folder())
    first, second, _ = router.pool.names
    assert follow_changes(registry, worse(first), router.pool) is None  # no version serves
    registry.promote(registry.add(router, {}))
    assert follow_changes(registry, worse(first, second), router.pool) is None
    assert follow_changes(registry, worse(first), router.pool) == "0002"
    points, kept = (Router.load(registry.router(n)).record.chosen for n in ("0001", "0002"))
    assert points is not None
    assert kept is not None
    assert kept.setting == points.setting
    assert kept.best != first
    assert registry.state().current == "0002"
    registry.roll_back()
    assert follow_changes(registry, worse(first), router.pool) is None
    registry.promote(registry.add(router, {"changes": (second,)}))
    assert follow_changes(registry, worse(second), router.pool) is None  # it was fitted since


def test_an_interval_below_zero_is_refused(work: Work) -> None:
    with pytest.raises(ConfigError, match="anchors_every is -1"):
        work.learn(anchors_every=-1)
