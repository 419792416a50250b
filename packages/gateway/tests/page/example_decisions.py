"""Made-up decisions of nine targets, as the page shows each."""

import random
from dataclasses import dataclass
from typing import Any

from packages.gateway.tests.page.example_targets import DOWN, INPUT, NAMES, OUTPUT
from prefill_router.agents import RequestKind
from prefill_router_gateway.page.shapes import DecisionDetail, DecisionRow, TargetView
from prefill_router_gateway.records import OutcomeKind, Reason

PERIOD = 14
"""After so many requests the same kinds of request come again."""
AGENT_KINDS: dict[int, RequestKind] = {2: "auxiliary", 6: "main", 7: "subagent"}


@dataclass(frozen=True)
class ExampleRequest:
    """A request whose kind follows from its number: some fail, fall back or break off.

    Attributes:
        number: How many requests came before.
        decision: The decision, as `Decision.to_dict` gives it.
        input_tokens: The prompt's tokens.
        output_tokens: The answer's tokens.
        at: The time, in seconds since 1970.
        lam: The lam.
    """

    number: int
    decision: dict[str, Any]
    input_tokens: int
    output_tokens: int
    at: float
    lam: float

    @property
    def kind(self) -> int:
        return self.number % PERIOD

    @property
    def order(self) -> list[str]:
        return [name for name in self.decision["order"] if name != DOWN]

    @property
    def is_retried(self) -> bool:
        """Whether the first target failed twice, and the second answered."""
        return self.kind == 5

    @property
    def is_named(self) -> bool:
        """Whether the client named the target."""
        return self.kind == 9

    @property
    def is_late(self) -> bool:
        """Whether the forecast took longer than its deadline."""
        return self.kind in (3, 12)

    @property
    def is_in_session(self) -> bool:
        return self.kind in (6, 7)

    @property
    def is_disconnected(self) -> bool:
        return self.kind == 11

    @property
    def has_forecast(self) -> bool:
        return not (self.is_named or self.is_late)

    @property
    def target(self) -> str:
        return self.order[1] if self.is_retried else self.order[0]

    @property
    def cost(self) -> float:
        """In US dollars."""
        place = NAMES.index(self.target)
        return (self.input_tokens * INPUT[place] + self.output_tokens * OUTPUT[place]) / 1e6

    @property
    def reason(self) -> Reason:
        if self.is_named:
            return "named"
        if self.is_late:
            return "fallback"
        return "session" if self.is_in_session else "policy"

    @property
    def agent_kind(self) -> RequestKind | None:
        """What an agent asked for; None where no agent asked."""
        return AGENT_KINDS.get(self.kind)

    @property
    def outcome(self) -> OutcomeKind:
        if self.is_disconnected:
            return "disconnected"
        return "cut" if self.kind == 13 else "answered"


def detail_of(
    number: int,
    decision: dict[str, Any],
    input_tokens: int,
    at: float,
    *,
    lam: float,
    chance: random.Random,
) -> DecisionDetail:
    """The detail of a decision.

    Args:
        number: How many decisions came before.
        decision: The decision, as `Decision.to_dict` gives it.
        input_tokens: The prompt's tokens.
        at: The time, in seconds since 1970.
        lam: The lam.
        chance: Draws the length and the duration of answers.
    """
    output_tokens = int(chance.gauss(340, 90)) + 40
    request = ExampleRequest(number, decision, input_tokens, output_tokens, at, lam)
    row = _decision_row(request, chance)
    forecast, kind = request.has_forecast, request.kind
    return {
        "decision": row,
        "targets": [*_ranked_targets(request), _target_down(request)],
        "attempts": _attempts(request),
        "path": decision["path"] if forecast else [],
        "below": _switch_point(decision["changes_below"]) if forecast else None,
        "above": _switch_point(decision["changes_above"]) if forecast else None,
        "tokens": {
            "input": input_tokens,
            "cached": input_tokens // 2 if kind == 6 else 0,
            "output": output_tokens,
            "reasoning": None,
            "estimated": request.is_disconnected,
        },
        "timings": {
            "decision": row["decision_seconds"],
            "forecast": 0.01 if forecast else None,
            "first_byte": 0.42,
            "total": row["total_seconds"],
        },
        "router": "9f3c1ab27d5e4c60b8aa",
        "version": None,
        "version_step": None,
        "policy": "lambda",
        "policy_target": request.order[0] if forecast else None,
        "lam_asked": row["lam"],
        "novelty": 0.44 if forecast else None,
        "scored": "last_user",
        "input_tokens": input_tokens,
        "in_session": request.is_in_session,
        "type": "Explore" if kind == 7 else None,
        "failing_steps": 2 if kind == 7 else 0,
        "key": "web",
        "instead": _baseline_cost(request) if forecast else None,
    }


def _decision_row(request: ExampleRequest, chance: random.Random) -> DecisionRow:
    number, target = request.number, request.target
    figures = request.decision["targets"][target]
    return {
        "id": f"pr_{int(1000 * request.at):012x}{number:020x}",
        "at": request.at,
        "requested": target
        if request.is_named
        else ("auto", "auto", "prefill-router:0.62")[number % 3],
        "target": target,
        "reason": request.reason,
        "fallback": "deadline" if request.is_late else None,
        "lam": None if request.is_named else request.lam,
        "probability": figures["correctness"] if request.has_forecast else None,
        "estimated_cost": figures["estimated_cost"],
        "cost": request.cost,
        "cost_is_estimated": request.is_disconnected,
        "decision_seconds": 0.0008 if request.is_named else chance.uniform(0.011, 0.028),
        "total_seconds": chance.uniform(0.6, 9.5),
        "outcome": request.outcome,
        "status": 200,
        "endpoint": ("chat", "chat", "responses")[number % 3],
        "stream": number % 4 != 0,
        "agent": "claude-code" if request.agent_kind else None,
        "kind": request.agent_kind,
    }


def _ranked_targets(request: ExampleRequest) -> list[TargetView]:
    figures = request.decision["targets"]
    return [
        {
            "target": name,
            "probability": figures[name]["correctness"] if request.has_forecast else None,
            "estimated_cost": figures[name]["estimated_cost"],
            "score": figures[name]["score"] if request.has_forecast else None,
            "place": place,
            "excluded": None,
        }
        for place, name in enumerate(request.order, 1)
    ]


def _target_down(request: ExampleRequest) -> TargetView:
    figures = request.decision["targets"][DOWN]
    return {
        "target": DOWN,
        "probability": figures["correctness"] if request.has_forecast else None,
        "estimated_cost": figures["estimated_cost"],
        "score": None,
        "place": None,
        "excluded": "its breaker is open",
    }


def _attempts(request: ExampleRequest) -> list[Any]:
    answer = {
        "target": request.target,
        "end": "answered",
        "status": 200,
        "seconds": 2.4,
        "failure": None,
    }
    if not request.is_retried:
        return [answer]
    overloaded = {
        "target": request.order[0],
        "end": "overloaded",
        "status": 503,
        "seconds": 0.21,
        "failure": "its endpoint is overloaded; try again later (HTTP 503)",
    }
    timeout = {
        "target": request.order[0],
        "end": "first_token_timeout",
        "status": None,
        "seconds": 4.0,
        "failure": "its endpoint sent no first token in time; try again later",
    }
    return [overloaded, timeout, answer]


def _baseline_cost(request: ExampleRequest) -> Any:
    cost = request.cost
    return {"baseline": NAMES[7], "cost": 3.1 * cost, "low": 1.2 * cost, "high": 6.4 * cost}


def _switch_point(change: dict[str, Any] | None) -> Any:
    return None if change is None else {"lam": change["lam"], "target": change["to"]}
