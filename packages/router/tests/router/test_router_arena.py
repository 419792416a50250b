"""RouterArena's files: what its rules refuse is refused, and robustness is what it computes."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from prefill_router.data import Message, Query
from prefill_router.errors import ConfigError, DataError
from prefill_router.router import (
    ArenaSubmission,
    Router,
    arena_errors,
    arena_name,
    arena_robustness,
)

QUESTIONS = [Query(f"Made-up_{i}", f"Question {i}?") for i in range(5)]
OTHERS = [Query(f"Made-up_{i}", f"Query {i}!") for i in (3, 1)]


def made(router: Router, questions: list[Query] = QUESTIONS) -> ArenaSubmission:
    asked = [(query, "target-1") for query in questions]
    return ArenaSubmission.of("mine", router, asked, [(q, "target-2") for q in OTHERS])


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


@dataclasses.dataclass
class Files:
    """The content of configuration, predictions and robustness file, to be damaged."""

    c: dict[str, Any]
    p: list[Any]
    r: list[Any]


Damage = Callable[[Files], object]
DAMAGES: dict[str, tuple[Damage, str]] = {
    "no models": (lambda f: f.c["pipeline_params"].update(models=[]), "names no models"),
    "twice": (lambda f: f.c["pipeline_params"]["models"].append("target-0"), "or one twice"),
    "no parameters": (lambda f: f.c.clear(), "names no models"),
    "too few": (lambda f: f.p.pop(), "predictions, 4 entries for 5 questions"),
    "too few reworded": (lambda f: f.r.pop(), "robustness, 1 entries for 2 questions"),
    "no index": (lambda f: f.p[2].pop("global index"), "entry 3: None is no index"),
    "another's index": (lambda f: f.p[0].update({"global index": "x"}), "'x' is no index"),
    "an index again": (lambda f: f.p[1].update(f.p[0]), "was there before"),
    "another prompt": (lambda f: f.p[1].update(prompt="Question 1? "), "isn't exactly that"),
    "reworded as asked": (lambda f: f.r[0].update(prompt="Question 3?"), "robustness, entry 1"),
    "no prompt": (lambda f: f.p[1].update(prompt=""), "must be a text that isn't empty"),
    "no target": (lambda f: f.p[3].update(prediction=None), "None isn't one of the models"),
    "another target": (lambda f: f.r[1].update(prediction="gpt"), "'gpt' isn't one of"),
    "extra alone": (lambda f: f.p[0].update(for_optimality=True), "4 entries for 5"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_their_check_refuses_is_found(damage: str, router: Router) -> None:
    whole = made(router)
    files = Files(*copy.deepcopy((whole.config, whole.predictions, whole.robustness)))
    prompts = [{q.id: q.prompt for q in queries} for queries in (QUESTIONS, OTHERS)]
    assert arena_errors(files.c, files.p, files.r, *prompts) == []
    how, reason = DAMAGES[damage]
    how(files)
    assert any(reason in found for found in arena_errors(files.c, files.p, files.r, *prompts))


def test_entries_for_optimality_are_extra(router: Router) -> None:
    whole = made(router)
    extra = {**whole.predictions[3], "prediction": "target-2", "for_optimality": True}
    prompts = [{q.id: q.prompt for q in queries} for queries in (QUESTIONS, OTHERS)]
    entries = [*whole.predictions, extra]
    assert arena_errors(whole.config, entries, whole.robustness, *prompts) == []
    assert arena_robustness(entries, whole.robustness) == 0


def test_robustness_is_one_minus_flips_over_matches() -> None:
    def entries(**targets: str) -> list[dict[str, Any]]:
        return [{"global index": index, "prediction": name} for index, name in targets.items()]

    asked = entries(a="x", b="y", c="x")
    assert arena_robustness(asked, entries(a="x", b="x", c="x", z="y")) == pytest.approx(2 / 3)
    assert arena_robustness(asked, entries(c="x")) == 1
    assert arena_robustness(asked, entries(z="x")) is None


def test_what_they_would_refuse_is_not_made(router: Router) -> None:
    fitted = router.split["train"][:4]
    with pytest.raises(DataError, match="fitted on 4 of the questions"):
        made(router, [*QUESTIONS, *(Query(i, "x") for i in fitted)])
    made(router, [*QUESTIONS, *(Query(i, "x") for i in router.split["test"][:4])])
    with pytest.raises(DataError, match="the prompt must be a text"):
        made(router, [*QUESTIONS, Query("chat", (Message("user", "x"),))])
    with pytest.raises(DataError, match="no reworded question has the index"):
        made(router, [Query("else", "x")])
    with pytest.raises(DataError, match="and 2 more"):
        made(router, [Query(f"chat{i}", (Message("user", "x"),)) for i in range(5)])


def test_names_that_cannot_be_files_are_refused() -> None:
    assert arena_name("My router-2.1") == "My router-2.1"
    for name in ("", ".hidden", "-x", "a/b", "mine-robustness", "a:b"):
        with pytest.raises(ConfigError, match="rename"):
            arena_name(name)
