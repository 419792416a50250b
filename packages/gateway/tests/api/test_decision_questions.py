"""Choice questions among targets, as clients of decision models ask them."""

import json
import math
from collections.abc import Iterator
from hashlib import sha256
from itertools import permutations
from pathlib import Path
from typing import Any

import openai
import pytest

from prefill_router.errors import ConfigError
from prefill_router_gateway.api.decision_questions import TEMPERATURE
from prefill_router.router import Router
from packages.gateway.tests.api.bodies import called
from packages.gateway.tests.scripted_target import whole
from packages.gateway.tests.world import (
    CHEAP,
    DEAR,
    MIDDLE,
    PATIENCE,
    PRICES,
    Reply,
    Served,
    World,
    router_folder,
    served,
    world,
)

pytestmark = pytest.mark.slow

PATH = "/v1/systemone"
QUESTION = "Which of the numbers below 100 has the most divisors, and why?"
KEYS = [
    {"name": "ann", "sha256": sha256(b"pr-ann").hexdigest(), "admin": True},
    {"name": "bob", "sha256": sha256(b"pr-bob").hexdigest(), "targets": [CHEAP, MIDDLE]},
]
ROUTING = {
    "lam": 0.7,
    "deadline_seconds": PATIENCE,
    "options": {"SIMPLE": CHEAP, "MEDIUM": CHEAP, "COMPLEX": DEAR},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("decisions")
    rows = {name: {**PRICES[name], "accepts": ["tools"]} for name in PRICES}
    with world(folder, rows, settings={"routing": ROUTING}, keys=KEYS) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(made: World) -> Iterator[Served]:
    with served(made) as run:
        yield run


def choice(*options: str) -> dict[str, Any]:
    told = {name: f"Best for what {name} does well." for name in options}
    return {"type": "choice", "instructions": "Which model fits best?", "criteria": told}


def ask(gateway: Served, who: str = "ann", state: Any = QUESTION, **questions: Any) -> Reply:
    body = {"state": state, "model": "jev-latest", "questions": questions}
    return gateway.ask(PATH, body, authorization=f"Bearer pr-{who}")


def answer(reply: Reply, name: str = "q") -> dict[str, Any]:
    assert reply.status == 200, reply.body
    found: dict[str, Any] = json.loads(reply.body)["answers"][name]
    return found


def test_the_reply_has_the_protocols_fields_and_the_routers_choice(
    made: World, gateway: Served
) -> None:
    made.forget()
    reply = ask(gateway, q=choice(CHEAP, MIDDLE, DEAR))
    body, found = json.loads(reply.body), answer(reply)
    assert list(body) == ["model", "answers", "usage"]
    assert list(body["usage"]) == ["input_tokens", "output_tokens"]
    assert body["usage"]["input_tokens"] > 0
    assert list(found) == ["type", "choice", "probabilities", "confidence"]
    router = Router.load(router_folder())
    decided = router.route(QUESTION, lam=ROUTING["lam"])
    assert found["choice"] == decided.target
    p = found["probabilities"]
    low, high = router.costs.scale.low, router.costs.scale.high
    dollars = {name: decided.estimated_cost[name] or 0.0 for name in p}
    scores = {
        name: 0.7 * decided.correctness[name] - 0.3 * (dollars[name] - low) / (high - low)
        for name in p
    }
    weights = {name: math.exp(value / TEMPERATURE) for name, value in scores.items()}
    expected = {name: value / sum(weights.values()) for name, value in weights.items()}
    assert p == pytest.approx(expected, abs=1e-4)
    entropy = -sum(value * math.log(value) for value in p.values())
    assert found["confidence"] == pytest.approx(1 - entropy / math.log(3), abs=1e-9)
    assert made.asked() == []
    assert gateway.receipts[-1].choice.target == found["choice"]


def test_orders_of_the_options_give_one_decision_and_the_same_probabilities(
    gateway: Served,
) -> None:
    """Clients ask the same question in several orders at once, and average."""
    before = len(gateway.receipts)
    orders: dict[str, Any] = {
        f"order{k}": choice(*o) for k, o in enumerate(permutations((CHEAP, MIDDLE, DEAR)))
    }
    reply = ask(gateway, **orders)
    first = answer(reply, "order0")
    for name, question in orders.items():
        found = answer(reply, name)
        assert found == first
        assert list(found["probabilities"]) == list(question["criteria"])
    assert len(gateway.receipts) == before + 1


def test_some_targets_alone_may_be_offered(gateway: Served) -> None:
    for pair in permutations((CHEAP, MIDDLE, DEAR), 2):
        found = answer(ask(gateway, q=choice(*pair)))
        assert found["choice"] in pair
        assert sum(found["probabilities"].values()) == pytest.approx(1)
        assert found["choice"] == max(
            found["probabilities"], key=found["probabilities"].__getitem__
        )
    assert answer(ask(gateway, q=choice(DEAR)))["probabilities"] == {DEAR: 1.0}


def test_options_that_the_settings_name(gateway: Served) -> None:
    p = answer(ask(gateway, q=choice("SIMPLE", "MEDIUM", "COMPLEX")))["probabilities"]
    pair = answer(ask(gateway, q=choice(CHEAP, DEAR)))["probabilities"]
    assert p["SIMPLE"] == p["MEDIUM"] == pytest.approx(pair[CHEAP] / 2)
    assert p["COMPLEX"] == pytest.approx(pair[DEAR])


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ({"type": "noul", "instructions": "Is it hard?"}, "'q' is of type 'noul'"),
        ({"type": "score", "criteria": ["calm", "angry"]}, "'q' is of type 'score'"),
        (choice(CHEAP, "nobody"), "1 options that are no targets, of 2"),
        (choice(), "0 options that are no targets, of 0"),
        ({"type": "choice", "criteria": [CHEAP, 3]}, "1 options that are no targets, of 2"),
    ],
)
def test_other_questions_are_refused_by_name(
    gateway: Served, question: dict[str, Any], told: str
) -> None:
    reply = ask(gateway, fine=choice(CHEAP, DEAR), q=question)
    assert reply.status == 400
    assert told in json.loads(reply.body)["error"]["message"]
    assert "nobody" not in reply.body.decode()


@pytest.mark.parametrize("body", [{}, {"state": "hi"}, {"state": "hi", "questions": {}}, [], None])
def test_what_is_no_request_is_refused(gateway: Served, body: Any) -> None:
    reply = gateway.ask(PATH, json.dumps(body).encode(), authorization="Bearer pr-ann")
    assert reply.status == 400


def test_a_key_learns_nothing_of_other_targets(gateway: Served) -> None:
    reply = ask(gateway, "bob", q=choice(CHEAP, DEAR))
    assert reply.status == 400
    assert DEAR not in reply.body.decode()
    assert answer(ask(gateway, "bob", q=choice(CHEAP, MIDDLE)))["choice"] in (CHEAP, MIDDLE)


def test_a_state_of_messages_or_json_is_read(gateway: Served) -> None:
    turns = [{"role": "user", "content": QUESTION}]
    asked = choice(CHEAP, MIDDLE, DEAR)
    assert answer(ask(gateway, state=turns, q=asked)) == answer(ask(gateway, q=asked))
    document = {"subject": "Refund", "body": QUESTION}
    text = json.dumps(document)
    assert answer(ask(gateway, state=document, q=asked)) == answer(
        ask(gateway, state=text, q=asked)
    )


@pytest.mark.parametrize(
    "state",
    [
        {"role": "user", "content": [{"text": QUESTION}]},
        {"messages": [{"role": "user", "content": QUESTION}], "tool": None},
        [{"role": "assistant", "tool_calls": []}, {"role": "user", "content": QUESTION}],
    ],
    ids=["Genkit's latest message", "messages beside other things", "a turn without content"],
)
def test_messages_are_read_in_the_forms_that_clients_send(gateway: Served, state: Any) -> None:
    asked = choice(CHEAP, MIDDLE, DEAR)
    assert answer(ask(gateway, state=state, q=asked)) == answer(ask(gateway, q=asked))


@pytest.mark.parametrize("state", [{"role": "admin"}, {"messages": [{"role": 1}]}, [{"role": 1}]])
def test_what_only_looks_like_messages_is_read_as_json(gateway: Served, state: Any) -> None:
    asked = choice(CHEAP, MIDDLE, DEAR)
    as_text = ask(gateway, state=json.dumps(state), q=asked)
    assert answer(ask(gateway, state=state, q=asked)) == answer(as_text)


def test_a_request_in_the_form_of_switchyards_client(gateway: Served) -> None:
    """Its instructions and descriptions may be null or JSON; it knows the answers by name."""
    body = {
        "model": "jev-latest",
        "state": {"task": QUESTION, "turns": []},
        "questions": {
            f"order{k}": {
                "type": "choice",
                "instructions": None,
                "criteria": {a: None, b: {"x": 1}},
            }
            for k, (a, b) in enumerate(permutations((CHEAP, DEAR)))
        },
    }
    reply = gateway.ask(PATH, body, authorization="Bearer pr-ann")
    assert set(json.loads(reply.body)["answers"]) == set(body["questions"])  # type: ignore[call-overload]
    assert answer(reply, "order0") == answer(reply, "order1")


def test_a_tool_loop_of_another_target_does_not_answer(made: World, gateway: Served) -> None:
    """A decision among some targets stands apart from the conversation that it is about."""
    made[DEAR].then(whole(called("call_9")))
    turns = [{"role": "user", "content": QUESTION}]
    first = gateway.ask(body={"model": DEAR, "messages": turns}, authorization="Bearer pr-ann")
    assert first.own("target") == DEAR
    said = json.loads(first.body)["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": "call_9", "content": "12"}
    found = ask(gateway, state=[*turns, said, result], q=choice(CHEAP, MIDDLE))
    assert answer(found)["choice"] in (CHEAP, MIDDLE)


def test_lam_is_that_of_the_model_or_the_header(gateway: Served) -> None:
    asked = {"q": choice(CHEAP, MIDDLE, DEAR)}
    body = {"state": QUESTION, "questions": asked, "model": "prefill-router:0.0"}
    cheapest = answer(gateway.ask(PATH, body, authorization="Bearer pr-ann"))
    assert cheapest["choice"] == CHEAP
    by_header = gateway.ask(PATH, body | {"model": "x"}, authorization="Bearer pr-ann", lam="0")
    assert answer(by_header) == cheapest


def test_without_a_forecast_the_confidence_is_zero(tmp_path: Path) -> None:
    body = {"state": QUESTION, "questions": {"q": choice(CHEAP, DEAR)}}
    settings = {"routing": {"novelty": 0.0}}
    with world(tmp_path, PRICES, settings=settings) as strange, served(strange) as run:
        found = answer(run.ask(PATH, body))
    assert found["probabilities"] == {CHEAP: 0.5, DEAR: 0.5}
    assert found["confidence"] == 0


def test_an_option_of_no_target_in_the_settings_is_an_error(tmp_path: Path) -> None:
    settings = {"routing": {"options": {"SIMPLE": "nobody"}}}
    with (
        pytest.raises(ConfigError, match=r"routing\.options has"),
        world(tmp_path, PRICES, settings=settings) as wrong,
        served(wrong),
    ):
        pass


def test_the_openai_sdk_asks_for_decisions(gateway: Served) -> None:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="pr-ann", max_retries=0)
    asked: Any = {
        "type": "choice",
        "name": "model",
        "instructions": "Which model?",
        "choices": [{"value": name, "description": name} for name in (DEAR, CHEAP, MIDDLE)],
    }
    found = client.decisions.create(model="gpt-6-luna", input=QUESTION, questions=[asked])
    (one,) = found.answers
    assert one.type == "choice"
    assert one.name == "model"
    other = answer(ask(gateway, q=choice(CHEAP, MIDDLE, DEAR)))
    assert one.choice == other["choice"]
    assert {p.value: p.probability for p in one.probabilities} == pytest.approx(
        other["probabilities"]
    )
    assert one.confidence == pytest.approx(other["confidence"])
    assert found.usage.total_tokens == found.usage.input_tokens > 0
    turns: Any = [{"role": "user", "content": QUESTION, "type": "message"}]
    again = client.decisions.create(model="gpt-6-luna", input=turns, questions=[asked])
    assert again.answers == found.answers
    with pytest.raises(openai.BadRequestError, match="'0' is of type 'predicate'"):
        client.decisions.create(
            model="m", input="x", questions=[{"type": "predicate", "instructions": "?"}]
        )
