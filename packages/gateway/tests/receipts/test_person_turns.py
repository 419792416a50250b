"""Which requests of a conversation are one turn, and which target gets its row."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packages.gateway.tests.receipts.example_receipts import START, example_receipt
from prefill_router.errors import DataError
from prefill_router_gateway import Receipt
from prefill_router_gateway.receipts import (
    DatasetExport,
    Feedback,
    export,
    insert_rows,
    open_store,
    scored_receipts,
    turns_by_request,
    turns_of,
)
from prefill_router_gateway.receipts.rows import to_row

PROMPT = "Why does it fail?"


def build_request(number: int, target: str | None = "small", **agent: Any) -> Receipt:
    """A request of an agent in the conversation `main`, a second after the one before."""
    session = agent.pop("session", "main")
    outcome = agent.pop("outcome", "answered")
    prompt = agent.pop("prompt", PROMPT)
    kind = agent.pop("kind", "main")
    return example_receipt(
        number,
        choice={"session": session, "order": ("small", "middle", "large")},
        outcome={"target": target, "kind": outcome},
        at=START + number,
        prompt=prompt,
        details={"agent": {"agent": "claude-code", "kind": kind, **agent}},
    )


def build_step(number: int, target: str | None = "small", **agent: Any) -> Receipt:
    return build_request(number, target, is_ongoing=True, **agent)


def build_subagent_request(number: int, target: str) -> Receipt:
    return build_request(
        number, target, session="main/sub", kind="subagent", parent="main", prompt="Look."
    )


def store_receipts(folder: Path, receipts: list[Receipt], *scores: Feedback) -> str:
    url = f"sqlite:///{folder}/r.sqlite"
    with closing(open_store(url)) as store:
        insert_rows(
            store, [to_row(receipt) for receipt in receipts], [score.row() for score in scores]
        )
    return url


def build_score(receipt: Receipt, score: float, *, after: float = 0, **more: Any) -> Feedback:
    return Feedback(id=receipt.choice.id, score=score, at=START + 100 + after, **more)


def export_turns(url: str) -> DatasetExport:
    return export(scored_receipts(url), turns=turns_by_request(url))


def test_a_turn_is_one_row_of_the_target_that_gave_all_answers(tmp_path: Path) -> None:
    first, *steps = [build_request(0, "middle"), build_step(1, "middle"), build_step(2, "middle")]
    second_turn = [build_request(3, "small", prompt="And on Sundays?"), build_step(4, "small")]
    url = store_receipts(
        tmp_path,
        [first, *steps, *second_turn],
        build_score(first, 1),
        build_score(second_turn[1], 0),
    )
    result = export_turns(url)
    dataset = result.dataset
    assert [query.prompt for query in dataset.queries] == [PROMPT, "And on Sundays?"]
    assert dataset.conversations is not None
    assert len(set(dataset.conversations)) == 1
    labels = {name: dataset.correct[:, k].tolist() for k, name in enumerate(dataset.pool.names)}
    np.testing.assert_array_equal(labels["middle"], [1, np.nan])
    np.testing.assert_array_equal(labels["small"], [np.nan, 0])
    assert result.receipts == 2
    assert result.sources == {"user": 2}
    place = dataset.pool.names.index("middle")
    assert dataset.input_tokens[0, place] == first.outcome.usage.input_tokens  # type: ignore[union-attr]


def test_the_latest_score_of_a_source_counts_whatever_request_of_the_turn_it_names(
    tmp_path: Path,
) -> None:
    first, step = build_request(0), build_step(1)
    scores = [
        build_score(step, 1),
        build_score(first, 0, after=1),
        build_score(step, 1, source="tests"),
    ]
    dataset = export_turns(store_receipts(tmp_path, [first, step], *scores)).dataset
    assert dataset.correct[0, dataset.pool.names.index("small")] == 0.5


def test_a_prompt_of_several_conversations_is_a_query_of_each() -> None:
    agents = [build_request(n, session=f"s{n // 2}", prompt="Go on.") for n in range(4)]
    single = replace(build_request(4, prompt="Go on."), details={})
    exported = export(
        (receipt, [build_score(receipt, n / 4)]) for n, receipt in enumerate([*agents, single])
    )
    assert [query.conversation for query in exported.dataset.queries] == ["s0", "s1", ""]
    small = exported.dataset.pool.names.index("small")
    assert exported.dataset.correct[:, small].tolist() == [0.125, 0.625, 1]
    assert len(set(exported.dataset.conversations or ())) == 3


SEVERAL_TARGETS = "turns that several targets answered"
NO_BEGINNING = "turns whose beginning isn't known"


def build_shared_session(number: int, target: str, **agent: Any) -> Receipt:
    """A subagent's request in the conversation of its main agent."""
    return build_request(number, target, kind="subagent", **{"prompt": "Look.", **agent})


@pytest.mark.parametrize(
    ("receipts", "why"),
    [
        ([build_request(0, "small"), build_step(1, "large")], SEVERAL_TARGETS),
        (
            [build_request(0, "small"), build_subagent_request(1, "large"), build_step(2, "small")],
            SEVERAL_TARGETS,
        ),
        (
            [build_request(0, "small", turn="p"), build_request(1, "large", turn="p")],
            SEVERAL_TARGETS,
        ),
        ([build_request(0, "small", outcome="cut"), build_step(1, "large")], SEVERAL_TARGETS),
        ([build_request(0, None, outcome="failed")], "turns that no target answered"),
        ([build_step(0), build_step(1)], NO_BEGINNING),
        ([build_step(0, session=None)], NO_BEGINNING),
        ([build_request(0, turn="p", prompt="Else?"), build_step(1, turn="q")], NO_BEGINNING),
        ([build_request(0), build_shared_session(1, "large"), build_step(2)], SEVERAL_TARGETS),
        (
            [build_request(0, kind="auxiliary", session=None)],
            "titles, topics and summaries of agents",
        ),
        ([build_request(0, kind="compaction")], "titles, topics and summaries of agents"),
    ],
)
def test_what_no_one_target_answered_is_not_credited(
    tmp_path: Path, receipts: list[Receipt], why: str
) -> None:
    url = store_receipts(tmp_path, receipts, *(build_score(receipt, 1) for receipt in receipts))
    other = build_request(9, session="other", prompt="Else?")
    with closing(open_store(url)) as store:
        insert_rows(store, [to_row(other)], [build_score(other, 1).row()])
    result = export_turns(url)
    assert result.left_out[why] == 1
    assert "Else?" in [query.prompt for query in result.dataset.queries]
    assert PROMPT not in [query.prompt for query in result.dataset.queries]


def test_help_before_a_turn_and_summaries_in_it_do_not_count(tmp_path: Path) -> None:
    receipts = [
        build_request(0, "small", prompt="Before."),
        build_subagent_request(1, "large"),
        build_request(2, "small"),
        build_step(3, "large", kind="compaction"),
        build_step(4, "small"),
        build_subagent_request(5, "small"),
    ]
    by_request = turns_by_request(store_receipts(tmp_path, receipts))
    assert by_request[receipts[2].choice.id].target == "small"
    assert by_request[receipts[0].choice.id].why == SEVERAL_TARGETS


def test_a_failure_within_the_first_request_is_credited_to_who_answered(tmp_path: Path) -> None:
    first = example_receipt(
        0,
        choice={"session": "main", "order": ("small", "large")},
        outcome={"target": "large"},
        prompt=PROMPT,
    )
    dataset = export_turns(
        store_receipts(tmp_path, [first, build_step(1, "large")], build_score(first, 1))
    ).dataset
    assert dataset.correct[0, dataset.pool.names.index("large")] == 1


def test_tools_of_any_client_make_a_turn(tmp_path: Path) -> None:
    def plain(number: int, target: str, *, loop: bool) -> Receipt:
        choice = {"session": "main", "tool_loop": loop}
        return example_receipt(number, choice=choice, outcome={"target": target}, prompt=PROMPT)

    receipts = [plain(0, "small", loop=False), plain(1, "large", loop=True)]
    url = store_receipts(tmp_path, receipts, *(build_score(receipt, 1) for receipt in receipts))
    with pytest.raises(DataError, match=SEVERAL_TARGETS):
        export_turns(url)


def test_tools_of_a_client_whose_target_is_not_kept_go_on_with_its_turn(tmp_path: Path) -> None:
    details = ({}, {"in_tool_loop": True})
    receipts = [
        example_receipt(n, choice={"session": "main"}, prompt=PROMPT, details=details[n])
        for n in (0, 1)
    ]
    assert [receipt.choice.target for receipt in receipts] == ["small", "large"]
    url = store_receipts(tmp_path, receipts, *(build_score(receipt, 1) for receipt in receipts))
    with pytest.raises(DataError, match=SEVERAL_TARGETS):
        export_turns(url)


def test_an_agent_and_its_subagent_may_share_the_name_of_a_conversation(tmp_path: Path) -> None:
    receipts = [
        build_request(0, "small"),
        build_shared_session(1, "small"),
        build_shared_session(2, "small", is_ongoing=True),
        build_step(3, "small"),
    ]
    names = [receipt.choice.id for receipt in receipts]
    url = store_receipts(tmp_path, receipts)
    assert [turn.ids for turn in turns_of(url, ["main"])] == [(names[0], names[3])]
    by_request = turns_by_request(url)
    assert by_request[names[2]].ids == (names[1], names[2])
    assert {by_request[name].target for name in names} == {"small"}


def test_turns_are_named_by_the_agent_or_by_being_the_last(tmp_path: Path) -> None:
    receipts = [build_request(0, turn="p1"), build_step(1, turn="p1"), build_request(2, turn="p2")]
    url = store_receipts(tmp_path, receipts)

    def find_ids(turn: str | None) -> list[tuple[str, ...]]:
        return [row.ids for row in turns_of(url, ["main"], turn=turn)]

    first, second, third = (receipt.choice.id for receipt in receipts)
    assert find_ids(None) == [(first, second), (third,)]
    assert find_ids("p1") == [(first, second)]
    assert find_ids("last") == [(third,)]
    assert find_ids("p9") == []
    assert turns_of(url, ["main"], key="someone") == []


def test_the_last_turn_is_the_last_that_has_an_answer(tmp_path: Path) -> None:
    receipts = [
        build_request(0),
        build_request(1, None, outcome="refused"),
        build_request(2, None, outcome="routed"),
    ]
    url = store_receipts(tmp_path, receipts)
    assert [turn.ids for turn in turns_of(url, ["main"], turn="last")] == [(receipts[0].choice.id,)]
    dry_run = build_request(9, None, outcome="routed", session="dry")
    with closing(open_store(url)) as store:
        insert_rows(store, [to_row(dry_run)], [])
    assert [turn.ids for turn in turns_of(url, ["dry"], turn="last")] == [(dry_run.choice.id,)]


def test_no_name_has_no_turns(tmp_path: Path) -> None:
    assert turns_of(store_receipts(tmp_path, [build_request(0)]), []) == []
