"""Bodies of very many items are refused before they are read; others are not."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard.admission import check_items

MOST = 50_000
TURN = {"role": "user", "content": "x"}


def build_turns(content: Any) -> bytes:
    return json.dumps(
        {"model": "auto", "messages": [{"role": "user", "content": content}]}
    ).encode()


# Built within the tests; otherwise every process that collects them would build them.
MANY_ITEMS: dict[str, Callable[[], Any]] = {
    "messages": lambda: {"model": "auto", "messages": [TURN] * 230_000},
    "keys": lambda: {"model": "auto", "x": {f"k{n}": n for n in range(700_000)}},
    "lists": lambda: {"x": [[]] * (MOST + 1)},
    "objects": lambda: {"x": [{}] * (MOST + 1)},
    "numbers": lambda: {"x": list(range(11 * MOST))},
    "backslashes": lambda: {"x": ["\\"] * (MOST + 1)},
    "quotes": lambda: {"x": ['"'] * (MOST + 1)},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MANY_ITEMS)
def test_a_body_of_very_many_pieces_is_refused(kind: str) -> None:
    with pytest.raises(RefusalError, match="body_items") as caught:
        check_items(json.dumps(MANY_ITEMS[kind]()).encode(), most=MOST)
    assert (caught.value.status, caught.value.code) == (413, "body_too_many_items")


LONG_BODIES: dict[str, Callable[[], bytes]] = {
    "commas": lambda: build_turns("a, b, {c} [d], " * 100_000),
    "JSON in a text": lambda: build_turns(json.dumps([{"a": '"\\'}] * 100_000)),
    "messages": lambda: json.dumps({"model": "auto", "messages": [TURN] * 9_000}).encode(),
    "tokens": lambda: json.dumps({"model": "auto", "prompt": list(range(300_000))}).encode(),
    "no JSON": lambda: b"no JSON " * 100_000,
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("kind", LONG_BODIES)
def test_long_texts_and_many_tokens_are_let_through(kind: str) -> None:
    check_items(LONG_BODIES[kind](), most=MOST)


def count_pieces(value: Any) -> int:
    if isinstance(value, str):
        return 1
    if isinstance(value, list):
        return 1 + sum(map(count_pieces, value))
    if isinstance(value, dict):
        return 1 + sum(1 + count_pieces(item) for item in value.values())
    return 0


@pytest.mark.slow
@given(
    st.recursive(
        st.text('a"\\,[{', max_size=4) | st.integers(0, 9),
        lambda inner: st.lists(inner) | st.dictionaries(st.text('a"\\,:', max_size=3), inner),
        max_leaves=40,
    ),
    st.booleans(),
)
def test_count_is_of_texts_objects_and_lists(value: Any, spaced: bool) -> None:
    body = json.dumps(value, separators=None if spaced else (",", ":")).encode()
    count = count_pieces(value)
    numbers = body.count(b",") // 10
    check_items(body, most=max(1, 2 * (count + numbers) + 2))
    if count > 1:
        with pytest.raises(RefusalError):
            check_items(body, most=count // 3)
