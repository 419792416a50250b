"""RouterArena's files: what its rules refuse is refused, and robustness is what it computes."""

import pytest

from prefill_router.data import Message, Query
from prefill_router.errors import ConfigError, DataError
from prefill_router.router import ArenaSubmission, Router, arena_name

QUESTIONS = [Query(f"Made-up_{i}", f"Question {i}?") for i in range(5)]
OTHERS = [Query(f"Made-up_{i}", f"Query {i}!") for i in (3, 1)]


def made(
    router: Router, questions: list[Query] = QUESTIONS, others: list[Query] = OTHERS
) -> ArenaSubmission:
    asked = [(query, "target-1") for query in questions]
    return ArenaSubmission.of("mine", router, asked, [(q, "target-2") for q in others])


def test_files_are_where_and_what_they_must_be(router: Router) -> None:
    found = made(router).files
    config, predictions, robustness = found.values()
    assert list(found) == [
        "router_inference/config/mine.json",
        "router_inference/predictions/mine.json",
        "router_inference/predictions/mine-robustness.json",
    ]
    names = ["target-0", "target-1", "target-2"]
    assert config == {"pipeline_params": {"router_name": "mine", "models": names}}
    assert predictions[4] == {
        "global index": "Made-up_4",
        "prompt": "Question 4?",
        "prediction": "target-1",
        "generated_result": None,
        "cost": None,
        "accuracy": None,
        "for_optimality": False,
    }
    assert [one["prompt"] for one in robustness] == ["Query 3!", "Query 1!"]


def test_robustness_is_one_minus_flips_over_matches(router: Router) -> None:
    def score(**reworded: str) -> float:
        asked = zip(
            QUESTIONS, ("target-0", "target-1", "target-0", "target-0", "target-2"), strict=True
        )
        others = [(Query(f"Made-up_{i[1:]}", "x"), target) for i, target in reworded.items()]
        return ArenaSubmission.of("mine", router, list(asked), others).robustness_score

    assert score(q0="target-0", q1="target-0", q2="target-0", q9="target-1") == pytest.approx(2 / 3)
    assert score(q2="target-0") == 1
    assert score(q1="target-2") == 0


def test_what_they_would_refuse_is_not_made(router: Router) -> None:
    fitted = router.split["train"][:4]
    with pytest.raises(DataError, match="fitted on 4 of the questions"):
        made(router, [*QUESTIONS, *(Query(i, "x") for i in fitted)])
    made(router, [*QUESTIONS, *(Query(i, "x") for i in router.split["test"][:4])])
    with pytest.raises(DataError, match="the prompt must be a text"):
        made(router, [*QUESTIONS, Query("chat", (Message("user", "x"),))])
    with pytest.raises(DataError, match="no reworded question has the index"):
        made(router, [Query("else", "x")])
    with pytest.raises(DataError, match="'Made-up_0' is no index, or is repeated"):
        made(router, [*QUESTIONS, QUESTIONS[0]])
    with pytest.raises(DataError, match="robustness, entry 2"):
        made(router, QUESTIONS, [*OTHERS[:1], Query("Made-up_1", "")])
    with pytest.raises(DataError, match="and 2 more"):
        made(router, [Query(f"chat{i}", (Message("user", "x"),)) for i in range(5)])


def test_names_that_cannot_be_files_are_refused() -> None:
    assert arena_name("My router-2.1") == "My router-2.1"
    for name in ("", ".hidden", "-x", "a/b", "mine-robustness", "a:b"):
        with pytest.raises(ConfigError, match="rename"):
            arena_name(name)
