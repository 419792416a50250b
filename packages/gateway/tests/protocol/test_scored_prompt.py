"""What of a request the encoder reads."""

import pytest

from packages.gateway.tests.protocol.bodies import (
    COMPLETION,
    EMBEDDING,
    IMAGE,
    MESSAGES,
    chat,
    read_body,
    user,
)
from prefill_router.data import Message
from prefill_router_gateway.protocol import scored_prompt
from prefill_router_gateway.records import SCORED, Scored


@pytest.mark.parametrize("scored", SCORED)
def test_a_lone_text_is_scored_as_text(scored: Scored) -> None:
    assert scored_prompt(chat(user("hi")), scored) == "hi"
    assert scored_prompt(read_body("completions", COMPLETION), scored) == "Once upon"
    assert scored_prompt(read_body("embeddings", {**EMBEDDING, "input": ["a"]}), scored) == "a"
    assert scored_prompt(read_body("embeddings", EMBEDDING), scored) is None
    assert scored_prompt(chat(user([IMAGE])), scored) is None
    assert scored_prompt(chat(user(" \n")), scored) is None
    assert scored_prompt(chat(), scored) is None


def test_what_is_scored_of_a_conversation() -> None:
    system, first = Message("system", "Be brief."), Message("user", "Is it raining in Bern?")
    last = Message("user", "Quickly, please.")
    envelope = read_body("messages", MESSAGES)
    assert scored_prompt(envelope, "last_user") == last.content
    assert scored_prompt(envelope, "last_user_with_system") == (system, last)
    whole = scored_prompt(envelope, "conversation_with_system")
    assert isinstance(whole, tuple)
    assert (whole[:2], whole[-1]) == ((system, first), last)
    assert scored_prompt(envelope, "conversation") == whole[1:]


def test_only_a_system_prompt() -> None:
    envelope = chat({"role": "system", "content": "Tell a joke."})
    assert scored_prompt(envelope, "last_user_with_system") is None
    assert scored_prompt(envelope, "conversation") is None
    messages = (Message("system", "Tell a joke."),)
    assert scored_prompt(envelope, "conversation_with_system") == messages


def test_the_last_turn_of_the_user_with_text_is_scored() -> None:
    assert scored_prompt(chat(user("one"), user("two"), user([IMAGE])), "last_user") == "two"
