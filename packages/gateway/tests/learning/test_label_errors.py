"""The estimated error of each source of labels, on labels whose errors are known."""

import numpy as np
import pytest

from prefill_router_gateway.learning import estimated_error, label_sources
from prefill_router_gateway.receipts import AnswerLabel, Feedback


def build_labels(
    source: str, truth: list[bool], error: float, *, at: float = 0.0
) -> list[AnswerLabel]:
    random = np.random.default_rng([int(at), *source.encode()])
    is_wrong = random.random(len(truth)) < error
    return [
        AnswerLabel(id=f"pr_{i}", target="t", source=source, at=at + i, score=float(right != off))
        for i, (right, off) in enumerate(zip(truth, is_wrong.tolist(), strict=True))
    ]


TRUTH = [bool(i % 3) for i in range(1500)]


@pytest.mark.parametrize("error", [0.02, 0.1, 0.3])
def test_a_judge_is_measured_by_verifiers(error: float) -> None:
    labels = [
        *build_labels("verifier:function", TRUTH, 0.0),
        *build_labels("judge:j", TRUTH, error),
    ]
    sources = label_sources(labels, {})
    assert sources["judge:j"].error == pytest.approx(error, abs=0.025)
    assert sources["judge:j"].compared == 1500
    assert sources["verifier:function"].error == 0


def test_a_judge_is_measured_by_users_who_err_themselves() -> None:
    users = build_labels("user", TRUTH, 0.15)
    feedback = {
        (label.id, "t"): [Feedback(id=label.id, score=label.score, at=label.at)] for label in users
    }
    sources = label_sources(build_labels("judge:j", TRUTH, 0.1), feedback)
    assert sources["judge:j"].error == pytest.approx(0.1, abs=0.03)
    assert sources["judge:j"].by_users == 1500
    assert sources["judge:j"].user_agreement == pytest.approx(0.9 * 0.85 + 0.1 * 0.15, abs=0.03)
    assert sources["user"].to_dict()["user_agreement"] is None


def test_a_judge_is_measured_by_itself_where_nobody_else_scores() -> None:
    repeats = build_labels("judge:j", TRUTH, 0.1, at=10_000)
    sources = label_sources([*build_labels("judge:j", TRUTH, 0.1), *repeats], {})["judge:j"]
    assert sources.repeated == 1500
    assert sources.agreement == pytest.approx(0.82, abs=0.03)
    assert sources.error == pytest.approx(0.1, abs=0.02)


def test_both_orders_of_pairs_are_one_judge() -> None:
    reversed_ = build_labels("judge:j:reversed", TRUTH, 0.2, at=10_000)
    sources = label_sources([*build_labels("judge:j", TRUTH, 0.2), *reversed_], {})
    assert list(sources) == ["judge:j"]
    assert sources["judge:j"].error == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("bias", [0.0, 0.4, 1.0])
def test_a_judge_that_prefers_what_comes_first_is_told(bias: float) -> None:
    random = np.random.default_rng(0)
    labels = []
    for i, right in enumerate(TRUTH):
        is_biased = random.random(2) < bias  # it prefers the first answer of the pair
        scores = np.where(is_biased, [1, 0], right)
        for source, score in zip(("judge:j", "judge:j:reversed"), scores.tolist(), strict=True):
            labels.append(
                AnswerLabel(id=f"pr_{i}", target="t", source=source, at=float(i), score=score)
            )
    sources = label_sources(labels, {})["judge:j"]
    assert sources.first == pytest.approx(0.5 + bias / 2, abs=0.03)
    rubric_only = label_sources(build_labels("judge:j", TRUTH, 0.1), {})["judge:j"]
    assert rubric_only.to_dict()["first"] is None


def test_few_comparisons_say_little() -> None:
    def error_for(compared: int) -> float:
        return estimated_error(
            repeats=0,
            agreement=float("nan"),
            compared=compared,
            contradicted=0.3,
            theirs=0.0,
            assumed=0.05,
        )

    assert error_for(0) == 0.05
    assert error_for(2) < 0.1 < 0.28 < error_for(1000) <= 0.3
