"""The estimated error of each source of labels, on labels whose errors are known."""

import numpy as np
import pytest

from prefill_router_gateway.learning import estimated_error, label_sources
from prefill_router_gateway.receipts import AnswerLabel, Feedback


def made(source: str, truth: list[bool], error: float, *, at: float = 0.0) -> list[AnswerLabel]:
    random = np.random.default_rng([int(at), *source.encode()])
    wrong = random.random(len(truth)) < error
    return [
        AnswerLabel(id=f"pr_{i}", target="t", source=source, at=at + i, score=float(right != off))
        for i, (right, off) in enumerate(zip(truth, wrong.tolist(), strict=True))
    ]


TRUTH = [bool(i % 3) for i in range(1500)]


@pytest.mark.parametrize("error", [0.02, 0.1, 0.3])
def test_a_judge_is_measured_by_verifiers(error: float) -> None:
    labels = [*made("verifier:function", TRUTH, 0.0), *made("judge:j", TRUTH, error)]
    found = label_sources(labels, {})
    assert found["judge:j"].error == pytest.approx(error, abs=0.025)
    assert found["judge:j"].compared == 1500
    assert found["verifier:function"].error == 0


def test_a_judge_is_measured_by_users_who_err_themselves() -> None:
    users = made("user", TRUTH, 0.15)
    feedback = {(one.id, "t"): [Feedback(id=one.id, score=one.score, at=one.at)] for one in users}
    found = label_sources(made("judge:j", TRUTH, 0.1), feedback)
    assert found["judge:j"].error == pytest.approx(0.1, abs=0.03)
    assert found["judge:j"].by_users == 1500
    assert found["judge:j"].user_agreement == pytest.approx(0.9 * 0.85 + 0.1 * 0.15, abs=0.03)
    assert found["user"].to_dict()["user_agreement"] is None


def test_a_judge_is_measured_by_itself_where_nobody_else_scores() -> None:
    again = made("judge:j", TRUTH, 0.1, at=10_000)
    found = label_sources([*made("judge:j", TRUTH, 0.1), *again], {})["judge:j"]
    assert found.repeated == 1500
    assert found.agreement == pytest.approx(0.82, abs=0.03)
    assert found.error == pytest.approx(0.1, abs=0.02)


def test_both_orders_of_pairs_are_one_judge() -> None:
    reversed_ = made("judge:j:reversed", TRUTH, 0.2, at=10_000)
    found = label_sources([*made("judge:j", TRUTH, 0.2), *reversed_], {})
    assert list(found) == ["judge:j"]
    assert found["judge:j"].error == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("bias", [0.0, 0.4, 1.0])
def test_a_judge_that_prefers_what_comes_first_is_told(bias: float) -> None:
    random = np.random.default_rng(0)
    labels = []
    for i, right in enumerate(TRUTH):
        is_biased = random.random(2) < bias  # it then takes the first, which is the judged one once
        scores = np.where(is_biased, [1, 0], right)
        for source, score in zip(("judge:j", "judge:j:reversed"), scores.tolist(), strict=True):
            labels.append(
                AnswerLabel(id=f"pr_{i}", target="t", source=source, at=float(i), score=score)
            )
    found = label_sources(labels, {})["judge:j"]
    assert found.first == pytest.approx(0.5 + bias / 2, abs=0.03)
    alone = label_sources(made("judge:j", TRUTH, 0.1), {})["judge:j"]
    assert alone.to_dict()["first"] is None


def test_few_comparisons_say_little() -> None:
    def told(compared: int) -> float:
        return estimated_error(
            repeats=0,
            agreement=float("nan"),
            compared=compared,
            contradicted=0.3,
            theirs=0.0,
            assumed=0.05,
        )

    assert told(0) == 0.05
    assert told(2) < 0.1 < 0.28 < told(1000) <= 0.3
