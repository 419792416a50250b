"""Which requests of a conversation are one turn, which target is credited, and its one row."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packages.gateway.tests.receipts.receipts_made import START, made_receipt
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

ASK = "Why does it fail?"


def asked(number: int, target: str | None = "small", **agent: Any) -> Receipt:
    """A request of an agent in the conversation `main`, a second after the one before."""
    session = agent.pop("session", "main")
    outcome = agent.pop("outcome", "answered")
    prompt = agent.pop("prompt", ASK)
    kind = agent.pop("kind", "main")
    return made_receipt(
        number,
        choice={"session": session, "order": ("small", "middle", "large")},
        outcome={"target": target, "kind": outcome},
        at=START + number,
        prompt=prompt,
        details={"agent": {"agent": "claude-code", "kind": kind, **agent}},
    )


def goes_on(number: int, target: str | None = "small", **agent: Any) -> Receipt:
    return asked(number, target, is_ongoing=True, **agent)


def helper(number: int, target: str) -> Receipt:
    return asked(number, target, session="main/sub", kind="subagent", parent="main", prompt="Look.")


def stored(folder: Path, receipts: list[Receipt], *scores: Feedback) -> str:
    url = f"sqlite:///{folder}/r.sqlite"
    with closing(open_store(url)) as store:
        insert_rows(store, [to_row(one) for one in receipts], [one.row() for one in scores])
    return url


def said(receipt: Receipt, score: float, *, after: float = 0, **more: Any) -> Feedback:
    return Feedback(id=receipt.choice.id, score=score, at=START + 100 + after, **more)


def learned(url: str) -> DatasetExport:
    return export(scored_receipts(url), turns=turns_by_request(url))


def test_a_turn_is_one_row_of_the_target_that_gave_all_answers(tmp_path: Path) -> None:
    first, *steps = [asked(0, "middle"), goes_on(1, "middle"), goes_on(2, "middle")]
    later = [asked(3, "small", prompt="And on Sundays?"), goes_on(4, "small")]
    url = stored(tmp_path, [first, *steps, *later], said(first, 1), said(later[1], 0))
    found = learned(url)
    made = found.dataset
    assert [query.prompt for query in made.queries] == [ASK, "And on Sundays?"]
    assert made.conversations is not None
    assert len(set(made.conversations)) == 1
    labels = {name: made.correct[:, k].tolist() for k, name in enumerate(made.pool.names)}
    np.testing.assert_array_equal(labels["middle"], [1, np.nan])
    np.testing.assert_array_equal(labels["small"], [np.nan, 0])
    assert found.receipts == 2
    assert found.sources == {"user": 2}
    place = made.pool.names.index("middle")
    assert made.input_tokens[0, place] == first.outcome.usage.input_tokens  # type: ignore[union-attr]


def test_the_latest_score_of_a_source_counts_whatever_request_of_the_turn_it_names(
    tmp_path: Path,
) -> None:
    first, step = asked(0), goes_on(1)
    scores = [said(step, 1), said(first, 0, after=1), said(step, 1, source="tests")]
    made = learned(stored(tmp_path, [first, step], *scores)).dataset
    assert made.correct[0, made.pool.names.index("small")] == 0.5


def test_a_prompt_of_several_conversations_is_a_query_of_each() -> None:
    agents = [asked(n, session=f"s{n // 2}", prompt="Go on.") for n in range(4)]
    alone = replace(asked(4, prompt="Go on."), details={})
    exported = export((one, [said(one, n / 4)]) for n, one in enumerate([*agents, alone]))
    assert [query.conversation for query in exported.dataset.queries] == ["s0", "s1", ""]
    small = exported.dataset.pool.names.index("small")
    assert exported.dataset.correct[:, small].tolist() == [0.125, 0.625, 1]
    assert len(set(exported.dataset.conversations or ())) == 3


SEVERAL = "turns that several targets answered"
NO_BEGINNING = "turns whose beginning isn't known"


def shared_name(number: int, target: str, **agent: Any) -> Receipt:
    """A subagent's request in the conversation of its main agent."""
    return asked(number, target, kind="subagent", **{"prompt": "Look.", **agent})


@pytest.mark.parametrize(
    ("receipts", "why"),
    [
        ([asked(0, "small"), goes_on(1, "large")], SEVERAL),
        ([asked(0, "small"), helper(1, "large"), goes_on(2, "small")], SEVERAL),
        ([asked(0, "small", turn="p"), asked(1, "large", turn="p")], SEVERAL),
        ([asked(0, "small", outcome="cut"), goes_on(1, "large")], SEVERAL),
        ([asked(0, None, outcome="failed")], "turns that no target answered"),
        ([goes_on(0), goes_on(1)], NO_BEGINNING),
        ([goes_on(0, session=None)], NO_BEGINNING),
        ([asked(0, turn="p", prompt="Else?"), goes_on(1, turn="q")], NO_BEGINNING),
        ([asked(0), shared_name(1, "large"), goes_on(2)], SEVERAL),
        ([asked(0, kind="auxiliary", session=None)], "titles, topics and summaries of agents"),
        ([asked(0, kind="compaction")], "titles, topics and summaries of agents"),
    ],
)
def test_what_no_one_target_answered_is_not_credited(
    tmp_path: Path, receipts: list[Receipt], why: str
) -> None:
    url = stored(tmp_path, receipts, *(said(one, 1) for one in receipts))
    kept = asked(9, session="other", prompt="Else?")
    with closing(open_store(url)) as store:
        insert_rows(store, [to_row(kept)], [said(kept, 1).row()])
    found = learned(url)
    assert found.left_out[why] == 1
    assert "Else?" in [query.prompt for query in found.dataset.queries]
    assert ASK not in [query.prompt for query in found.dataset.queries]


def test_help_before_a_turn_and_summaries_in_it_do_not_count(tmp_path: Path) -> None:
    receipts = [
        asked(0, "small", prompt="Before."),
        helper(1, "large"),
        asked(2, "small"),
        goes_on(3, "large", kind="compaction"),
        goes_on(4, "small"),
        helper(5, "small"),
    ]
    by_request = turns_by_request(stored(tmp_path, receipts))
    assert by_request[receipts[2].choice.id].target == "small"
    assert by_request[receipts[0].choice.id].why == SEVERAL


def test_a_failure_within_the_first_request_is_credited_to_who_answered(tmp_path: Path) -> None:
    first = made_receipt(
        0,
        choice={"session": "main", "order": ("small", "large")},
        outcome={"target": "large"},
        prompt=ASK,
    )
    made = learned(stored(tmp_path, [first, goes_on(1, "large")], said(first, 1))).dataset
    assert made.correct[0, made.pool.names.index("large")] == 1


def test_tools_of_any_client_make_a_turn(tmp_path: Path) -> None:
    def plain(number: int, target: str, *, loop: bool) -> Receipt:
        choice = {"session": "main", "tool_loop": loop}
        return made_receipt(number, choice=choice, outcome={"target": target}, prompt=ASK)

    receipts = [plain(0, "small", loop=False), plain(1, "large", loop=True)]
    url = stored(tmp_path, receipts, *(said(one, 1) for one in receipts))
    with pytest.raises(DataError, match=SEVERAL):
        learned(url)


def test_tools_of_a_client_whose_target_is_not_kept_go_on_with_its_turn(tmp_path: Path) -> None:
    details = ({}, {"in_tool_loop": True})
    receipts = [
        made_receipt(n, choice={"session": "main"}, prompt=ASK, details=details[n]) for n in (0, 1)
    ]
    assert [one.choice.target for one in receipts] == ["small", "large"]
    url = stored(tmp_path, receipts, *(said(one, 1) for one in receipts))
    with pytest.raises(DataError, match=SEVERAL):
        learned(url)


def test_an_agent_and_its_subagent_may_share_the_name_of_a_conversation(tmp_path: Path) -> None:
    receipts = [
        asked(0, "small"),
        shared_name(1, "small"),
        shared_name(2, "small", is_ongoing=True),
        goes_on(3, "small"),
    ]
    names = [one.choice.id for one in receipts]
    url = stored(tmp_path, receipts)
    assert [one.ids for one in turns_of(url, ["main"])] == [(names[0], names[3])]
    by_request = turns_by_request(url)
    assert by_request[names[2]].ids == (names[1], names[2])
    assert {by_request[name].target for name in names} == {"small"}


def test_turns_are_named_by_the_agent_or_by_being_the_last(tmp_path: Path) -> None:
    receipts = [asked(0, turn="p1"), goes_on(1, turn="p1"), asked(2, turn="p2")]
    url = stored(tmp_path, receipts)

    def ids(turn: str | None) -> list[tuple[str, ...]]:
        return [one.ids for one in turns_of(url, ["main"], turn=turn)]

    one, two, three = (receipt.choice.id for receipt in receipts)
    assert ids(None) == [(one, two), (three,)]
    assert ids("p1") == [(one, two)]
    assert ids("last") == [(three,)]
    assert ids("p9") == []
    assert turns_of(url, ["main"], key="someone") == []


def test_the_last_turn_is_the_last_that_has_an_answer(tmp_path: Path) -> None:
    receipts = [asked(0), asked(1, None, outcome="refused"), asked(2, None, outcome="routed")]
    url = stored(tmp_path, receipts)
    assert [one.ids for one in turns_of(url, ["main"], turn="last")] == [(receipts[0].choice.id,)]
    dry = asked(9, None, outcome="routed", session="dry")
    with closing(open_store(url)) as store:
        insert_rows(store, [to_row(dry)], [])
    assert [one.ids for one in turns_of(url, ["dry"], turn="last")] == [(dry.choice.id,)]


def test_no_name_has_no_turns(tmp_path: Path) -> None:
    assert turns_of(stored(tmp_path, [asked(0)]), []) == []
