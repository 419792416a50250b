"""A whole gateway before targets that have odd names, and say what can't be."""

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from clients_world import CHATS, CHEAP, PRICES, Served, World, chat, served, world
from forwarding_target import ANSWER, DONE, chunked, framed

ODD = ("größe/模型", "two\nlines", 'quo"te, and more')


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    rows = {**PRICES, **dict.fromkeys(ODD, PRICES[CHEAP])}
    with world(tmp_path_factory.mktemp("odd"), rows) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(made: World) -> Iterator[Served]:
    with served(made) as gateway:
        yield gateway


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("path", [CHATS, "/v1/route"])
def test_names_that_headers_cannot_hold_are_percent_encoded(
    gateway: Served, path: str, name: str
) -> None:
    reply = gateway.ask(path, chat(name))
    assert reply.status == 200
    plain = name.isascii() and name.isprintable()
    assert reply.own("target") == (name if plain else quote(name))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "usage",
    [
        '{"prompt_tokens": -5, "completion_tokens": -3, "cost": -1}',
        '{"prompt_tokens": NaN, "completion_tokens": 1e999, "cost": 1e999}',
        '{"prompt_tokens": "5", "completion_tokens": [3], "prompt_tokens_details": 1}',
    ],
)
def test_counts_that_cannot_be_true_cost_no_answer(
    made: World, gateway: Served, usage: str, stream: bool
) -> None:
    answer = json.dumps({**ANSWER, "usage": "?"}).replace('"?"', usage).encode()
    made[CHEAP].then(chunked([b"data: %b\n\n" % answer, DONE]) if stream else framed(answer))
    reply = gateway.ask(body=chat(CHEAP, stream=stream))
    assert reply.status == 200
    (row,) = (r for r in made.made.rows() if r["id"] == reply.own("decision-id"))
    assert row["outcome"] == "answered"
    assert row["cost"] > 0
    assert row["cost_is_estimated"]
