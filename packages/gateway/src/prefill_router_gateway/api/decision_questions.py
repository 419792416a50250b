"""Choice questions whose options are targets, answered as a decision model would.

`/v1/systemone` has the System One protocol (TypeSafe, Laya, `docs/http-api.md`), `/v1/decisions`
that of OpenAI's Decisions. Routers that ask a decision model for a target get the router's choice.

The probability of a target is the softmax of the scores (Equation 2) of those that may answer, so
that a score that is higher by 0.05 makes it e times as probable. The highest is always that of the
target which the gateway would call; without a forecast all are the same, and the confidence is 0.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, final

import numpy as np
from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from prefill_router_gateway.api.decisions import DryRun, decide_alone
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard import KEY, ClientKey
from prefill_router_gateway.protocol import ROUTING_NAMES
from prefill_router_gateway.runtime import Gateway
from prefill_router.policy import score
from prefill_router.targets import Endpoint

TEMPERATURE: Final = 0.05
"""By how much a score must be higher to be e times as probable."""
_MODEL = "prefill-router"
_MOST = 64  # questions of one request, as many as hosted decision models take


@final
class SystemOneQuestion(BaseModel):
    """A question of the System One protocol.

    Attributes:
        type: Its kind; `choice` is answered.
        criteria: The options, with a description of each.
    """

    type: str
    criteria: dict[str, Any] | list[Any] = Field(default_factory=list)


@final
class SystemOneBody(BaseModel):
    """A request of the System One protocol.

    Attributes:
        state: What to decide on: a text, chat messages (one, a list, or a list in `messages`), or
            any other JSON.
        questions: The questions, by name.
        model: A name that routes, such as `prefill-router:0.7`; any other means `auto`.
    """

    state: str | list[Any] | dict[str, Any]
    questions: dict[str, SystemOneQuestion] = Field(min_length=1, max_length=_MOST)
    model: str = "auto"


@final
class DecisionChoice(BaseModel):
    """An option of a question of OpenAI's Decisions."""

    value: str | bool


@final
class DecisionQuestion(BaseModel):
    """A question of OpenAI's Decisions.

    Attributes:
        type: Its kind; `choice` is answered.
        name: Its name.
        choices: The options.
    """

    type: str
    name: str | None = None
    choices: list[DecisionChoice] = Field(default_factory=list)


@final
class DecisionsBody(BaseModel):
    """A request of OpenAI's Decisions.

    Attributes:
        input: What to decide on, as the Responses protocol has it.
        questions: The questions.
        model: As in `SystemOneBody`.
    """

    input: str | list[Any]
    questions: list[DecisionQuestion] = Field(min_length=1, max_length=_MOST)
    model: str = "auto"


class ChoiceAnswer(NamedTuple):
    """The answer to a choice question: an option, each one's probability, and a confidence."""

    choice: str
    probabilities: dict[str, float]

    @property
    def confidence(self) -> float:
        """1 - H / log k, with the entropy H of the probabilities of k options."""
        p = [value for value in self.probabilities.values() if value > 0]
        if len(self.probabilities) < 2:
            return 1.0
        entropy = -sum(value * math.log(value) for value in p)
        return min(max(1 - entropy / math.log(len(self.probabilities)), 0.0), 1.0)


async def answer_system_one(
    gateway: Gateway, request: Request, body: SystemOneBody
) -> JSONResponse:
    """Answer a request of the System One protocol, with exactly its fields.

    Raises:
        RefusalError: A question isn't a choice among targets, or as for `decide_alone`.
    """
    asked = [(name, one.type, list(one.criteria)) for name, one in body.questions.items()]
    given = _body(gateway, body.model, "messages", _turns(body.state))
    answers, tokens, headers = await _answers(gateway, request, "chat", given, asked)
    found = {
        name: {"type": "choice", **one._asdict(), "confidence": one.confidence}
        for name, one in zip(body.questions, answers, strict=True)
    }
    usage = {"input_tokens": tokens, "output_tokens": 0}
    reply = {"model": _MODEL, "answers": found, "usage": usage}
    return JSONResponse(reply, headers=dict(headers))


async def answer_decisions(gateway: Gateway, request: Request, body: DecisionsBody) -> JSONResponse:
    """Answer a request of OpenAI's Decisions, with exactly its fields.

    Raises:
        RefusalError: As `answer_system_one`.
    """
    asked = [
        (one.name or str(k), one.type, [choice.value for choice in one.choices])
        for k, one in enumerate(body.questions)
    ]
    given = _body(gateway, body.model, "input", body.input)
    answers, tokens, headers = await _answers(gateway, request, "responses", given, asked)
    found = [
        {
            "type": "choice",
            "name": question.name,
            "choice": one.choice,
            "probabilities": [{"value": n, "probability": p} for n, p in one.probabilities.items()],
            "confidence": one.confidence,
        }
        for question, one in zip(body.questions, answers, strict=True)
    ]
    usage = {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens,
    }
    reply = {"model": _MODEL, "answers": found, "usage": usage}
    return JSONResponse(reply, headers=dict(headers))


def _turns(state: str | list[Any] | dict[str, Any]) -> list[Any]:
    """The state as chat messages; clients send the latest one alone, or all beside other things."""
    given = [state] if isinstance(state, dict) and {"role", "content"} <= state.keys() else state
    turns = given.get("messages") if isinstance(given, dict) else given
    if isinstance(turns, list) and turns and all(map(_is_turn, turns)):
        return turns
    text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)
    return [{"role": "user", "content": text}]


def _is_turn(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and isinstance(value.get("content"), str | list | None)
    )


def _body(gateway: Gateway, model: str, field: str, value: object) -> bytes:
    known = model.partition(":")[0] in ROUTING_NAMES or model in gateway.live.settings.routing.names
    return json.dumps({"model": model if known else "auto", field: value}).encode()


async def _answers(
    gateway: Gateway,
    request: Request,
    endpoint: Endpoint,
    body: bytes,
    asked: Sequence[tuple[str, str, Sequence[object]]],
) -> tuple[list[ChoiceAnswer], int, Mapping[str, str]]:
    """The answers to names, types and options, the tokens read, and the gateway's own headers.

    Questions with the same targets, in whatever order, share one decision.
    """
    known = _options(gateway, request.scope.get(KEY))
    questions = [_targets(*one, known) for one in asked]
    made: dict[frozenset[str], DryRun] = {}
    for options in questions:
        among = frozenset(options.values())
        if among not in made:
            made[among] = await decide_alone(gateway, request, endpoint, body, among=among)
    answers = [_answer(made[frozenset(options.values())], options) for options in questions]
    last = [*made.values()][-1]
    return answers, sum(one.choice.input_tokens for one in made.values()), last.headers


def _options(gateway: Gateway, key: ClientKey | None) -> dict[str, str]:
    """The targets that a client may ask for, by name and by the names in the settings."""
    loaded = gateway.live.loaded
    names = loaded.light.pool.names
    allowed = names if key is None or key.targets is None else key.targets
    further = loaded.settings.routing.options
    both = {**{name: name for name in names}, **further}
    return {option: target for option, target in both.items() if target in allowed}


def _targets(
    name: str, kind: str, options: Sequence[object], known: Mapping[str, str]
) -> dict[str, str]:
    """The target of each option of a question, in the question's order."""
    if kind != "choice":
        raise RefusalError(
            f"question {name!r} is of type {kind[:40]!r}; only questions of type 'choice' whose "
            "options are targets are answered here",
            param="questions",
        )
    other = [option for option in options if not isinstance(option, str) or option not in known]
    if other or not options:
        raise RefusalError(
            f"question {name!r} has {len(other)} options that are no targets, of {len(options)}; "
            f"offer some of {', '.join(known)}, or name options in routing.options of the settings",
            param="questions",
        )
    return {str(option): known[str(option)] for option in options}


def _answer(made: DryRun, options: Mapping[str, str]) -> ChoiceAnswer:
    chances = _chances(made)
    shared = [*options.values()]
    found = {
        option: chances.get(target, 0.0) / shared.count(target)
        for option, target in options.items()
    }
    choice = next(option for option, target in options.items() if target == made.choice.target)
    return ChoiceAnswer(choice, found)


def _chances(made: DryRun) -> dict[str, float]:
    """The probability of each target that may answer, in the gateway's order of preference."""
    choice, order = made.choice, made.choice.order
    if choice.fallback is not None or choice.lam is None or len(order) < 2:
        return dict.fromkeys(order, 1 / len(order))
    p = np.array([[choice.correctness[name] for name in order]])
    dollars = np.array([[choice.estimated_cost.get(name, 0.0) for name in order]])
    scores = score(p, made.live.loaded.light.costs.scale.normalise(dollars), choice.lam)[0]
    weights = np.sort(np.exp((scores - scores.max()) / TEMPERATURE))[::-1]
    return dict(zip(order, (weights / weights.sum()).tolist(), strict=True))
