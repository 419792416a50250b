"""A whole gateway before targets that have odd names, and say what can't be."""

import json
import threading
from collections.abc import Iterator
from urllib.parse import quote

import httpx2
import pytest
from clients_world import CHATS, CHEAP, PRICES, Served, World, chat, world
from forwarding_target import ANSWER, DONE, chunked, framed

ODD = ("größe/模型", "two\nlines", 'quo"te, and more')


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    rows = {**PRICES, **dict.fromkeys(ODD, PRICES[CHEAP])}
    few = {"limits": {"streams": 1}}
    with world(tmp_path_factory.mktemp("odd"), rows, settings=few) as made:
        yield made


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


def test_more_streams_than_may_be_are_refused_and_other_requests_are_not(
    made: World, gateway: Served
) -> None:
    go_on = threading.Event()
    head, first, *rest = chunked([b"data: %b\n\n" % json.dumps(ANSWER).encode(), DONE])
    made[CHEAP].then([head, first, go_on, *rest])
    body = chat(CHEAP, stream=True)
    with httpx2.stream("POST", gateway.url + CHATS, json=body, timeout=60) as stream:
        refused = gateway.ask(body=body)
        assert (refused.status, refused.error["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"] == "1"
        assert gateway.ask(body=chat(CHEAP)).status == 200
        go_on.set()
        assert stream.read().endswith(DONE)
    gateway.until(lambda: gateway.gateway.streams == 0)
    made[CHEAP].then(chunked([b"data: %b\n\n" % json.dumps(ANSWER).encode(), DONE]))
    assert gateway.ask(body=body).status == 200


def test_feedback_on_what_was_never_decided_is_refused(gateway: Served) -> None:
    reply = gateway.ask("/v1/feedback", {"id": "pr_" + "0" * 32, "score": 1})
    assert (reply.status, reply.error["code"]) == (404, "unknown_decision")


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_load_balancers_may_ask_for_the_head_alone(gateway: Served, path: str) -> None:
    reply = httpx2.head(gateway.url + path, timeout=60)
    assert (reply.status_code, reply.content) == (200, b"")


def test_what_is_refused_undecided_is_counted(gateway: Served) -> None:
    def counted() -> float:
        text, _ = gateway.gateway.metrics.render()
        rows = [row for row in text.decode().splitlines() if 'refusals_total{status="404"}' in row]
        return sum(float(row.split()[-1]) for row in rows)

    before = counted()
    assert gateway.ask(body=chat("nobody")).status == 404
    assert counted() == before + 1
