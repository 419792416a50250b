import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from prefill_router.cost import CostScale
from prefill_router.errors import ConfigError, DataError, PromptError
from prefill_router.policy import Lambda
from prefill_router.router import Decision, Router, as_prompt
from prefill_router.router.decision import decide

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c", "d")
unit = st.floats(0, 1)
four = st.tuples(unit, unit, unit, unit)


def decision(p: tuple[float, ...], cost: tuple[float, ...], lam: float) -> Decision:
    names = NAMES[: len(p)]
    scale = CostScale(0.0, 1.0)
    return decide(
        names,
        np.array(p),
        np.array(cost),
        scale,
        policy=Lambda(),
        lam=lam,
        input_tokens=3,
        truncated=False,
    )


@given(four, four, unit)
def test_order_starts_with_the_target_and_holds_each_once(
    p: tuple[float, ...], cost: tuple[float, ...], lam: float
) -> None:
    got = decision(p, cost, lam)
    assert got.order[0] == got.target
    assert sorted(got.order) == list(NAMES)
    assert got.score[got.target] >= max(got.score.values()) - 1e-12


@given(four, four, unit)
def test_path_covers_all_lam_and_holds_the_decision(
    p: tuple[float, ...], cost: tuple[float, ...], lam: float
) -> None:
    got = decision(p, cost, lam)
    assert got.path[0].lam_from == 0
    assert got.path[-1].lam_to == 1
    assert all(s.lam_to == t.lam_from for s, t in zip(got.path, got.path[1:], strict=False))
    mine = next(s for s in got.path if s.target == got.target)
    assert mine.lam_from <= lam <= mine.lam_to


@given(four, four, unit)
def test_just_beyond_the_change_the_other_target_wins(
    p: tuple[float, ...], cost: tuple[float, ...], lam: float
) -> None:
    got = decision(p, cost, lam)
    above = got.changes_above
    if above is not None and above.lam_to - above.lam_from > 1e-6:
        beyond = (above.lam_from + above.lam_to) / 2
        assert decision(p, cost, beyond).target == above.target


def test_dearer_and_worse_target_is_never_chosen() -> None:
    for lam in np.linspace(0, 1, 101):
        assert decision((0.6, 0.5), (0.1, 0.2), float(lam)).target == "a"


def test_decision_as_json(router: Router) -> None:
    value = json.loads(json.dumps(router.route("Question 1 of difficulty 0.10: why?").to_dict()))
    assert list(value["targets"]) == value["order"]
    assert value["target"] == value["order"][0]
    assert set(value["targets"][value["target"]]) == {"correctness", "estimated_cost", "score"}


def test_easy_request_looks_easier_than_a_hard_one(router: Router) -> None:
    easy = router.route("Question 1 of difficulty 0.05: why?").correctness["target-0"]
    hard = router.route("Question 1 of difficulty 0.95: why?").correctness["target-0"]
    assert easy > hard + 0.2


def test_lam_zero_takes_the_cheapest_and_one_the_most_probable(router: Router) -> None:
    request = "Question 5 of difficulty 0.50: why?"
    cheap, best = router.route(request, lam=0), router.route(request, lam=1)
    assert cheap.target == min(cheap.estimated_cost, key=cheap.estimated_cost.__getitem__)
    assert best.target == max(best.correctness, key=best.correctness.__getitem__)


def test_requests_together_equal_requests_alone(router: Router) -> None:
    requests = [f"Question {i} of difficulty 0.{i}1: why?" for i in range(6)]
    together = router.route_many(requests, lam=0.7)
    alone = [router.route(request, lam=0.7) for request in requests]
    assert [d.target for d in together] == [d.target for d in alone]
    for in_batch, by_itself in zip(together, alone, strict=True):
        assert in_batch.correctness == pytest.approx(by_itself.correctness, abs=1e-6)


def test_only_restricts_the_choice(router: Router) -> None:
    request = "Question 5 of difficulty 0.50: why?"
    got = router.route(request, lam=1, only=["target-1", "target-0"])
    assert set(got.order) == {"target-0", "target-1"}
    with pytest.raises(ConfigError, match="unknown targets"):
        router.route(request, only=["nobody"])
    with pytest.raises(ConfigError, match="no target"):
        router.route(request, only=[])


@pytest.mark.parametrize("lam", [-0.1, 1.1, float("nan")])
def test_lam_outside_is_refused(router: Router, lam: float) -> None:
    with pytest.raises(ConfigError, match=r"must be in \[0, 1\]"):
        router.route("why?", lam=lam)


def test_chat_messages_are_read(router: Router) -> None:
    turns = [{"role": "user", "content": "Question 1 of difficulty 0.10: why?"}]
    assert router.route(turns).input_tokens > 0
    with pytest.raises(DataError, match="role and a content"):
        router.route([{"role": "user"}])
    with pytest.raises(DataError, match="no messages"):
        as_prompt([])


def test_unusable_prompts_are_refused_by_name_and_never_quoted(router: Router) -> None:
    with pytest.raises(PromptError, match="request 2") as error:
        router.route_many(["why?", "secret \ud800"])
    assert "secret" not in str(error.value)


def test_long_request_is_cut_and_says_so(router: Router) -> None:
    got = router.route("Question 1 of difficulty 0.10: " + "why " * 1000)
    assert got.truncated
    assert got.input_tokens > 4000
