"""Made-up decisions of nine targets, as the page shows each."""

import random
from typing import Any

from packages.gateway.tests.page.example_targets import DOWN, INPUT, NAMES, OUTPUT
from prefill_router_gateway.page.shapes import DecisionDetail, DecisionRow


def detail_of(
    number: int,
    decision: dict[str, Any],
    input_tokens: int,
    at: float,
    *,
    lam: float,
    chance: random.Random,
) -> DecisionDetail:
    """The detail of a decision; some requests fail, fall back or break off.

    Args:
        number: How many decisions came before.
        decision: The decision, as `Decision.to_dict` gives it.
        input_tokens: The prompt's tokens.
        at: The time, in seconds since 1970.
        lam: The lam.
        chance: Draws the length and the duration of answers.
    """
    kind = number % 14
    order = [name for name in decision["order"] if name != DOWN]
    first_target = order[0]
    failed = kind == 5
    target = order[1] if failed else first_target
    named, plain = kind == 9, kind in (3, 12)
    by_agent = kind in (2, 6, 7)
    output_tokens = int(chance.gauss(340, 90)) + 40
    place = NAMES.index(target)
    cost = (input_tokens * INPUT[place] + output_tokens * OUTPUT[place]) / 1e6
    row: DecisionRow = {
        "id": f"pr_{int(1000 * at):012x}{number:020x}",
        "at": at,
        "requested": target if named else ("auto", "auto", "prefill-router:0.62")[number % 3],
        "target": target,
        "reason": "named"
        if named
        else "fallback"
        if plain
        else "session"
        if kind in (6, 7)
        else "policy",
        "fallback": "deadline" if plain else None,
        "lam": None if named else lam,
        "probability": None if named or plain else decision["targets"][target]["correctness"],
        "estimated_cost": decision["targets"][target]["estimated_cost"],
        "cost": cost,
        "cost_is_estimated": kind == 11,
        "decision_seconds": 0.0008 if named else chance.uniform(0.011, 0.028),
        "total_seconds": chance.uniform(0.6, 9.5),
        "outcome": "disconnected" if kind == 11 else "cut" if kind == 13 else "answered",
        "status": 200,
        "endpoint": ("chat", "chat", "responses")[number % 3],
        "stream": number % 4 != 0,
        "agent": "claude-code" if by_agent else None,
        "kind": ("subagent" if kind == 7 else "auxiliary" if kind == 2 else "main")
        if by_agent
        else None,
    }
    attempts: list[Any] = [
        {
            "target": first_target,
            "end": "overloaded",
            "status": 503,
            "seconds": 0.21,
            "failure": "its endpoint is overloaded; try again later (HTTP 503)",
        },
        {
            "target": first_target,
            "end": "first_token_timeout",
            "status": None,
            "seconds": 4.0,
            "failure": "its endpoint sent no first token in time; try again later",
        },
    ]
    answer = {
        "target": target,
        "end": "answered",
        "status": 200,
        "seconds": 2.4,
        "failure": None,
    }
    has_forecast = not (named or plain)
    return {
        "decision": row,
        "targets": [
            *(
                {
                    "target": name,
                    "probability": decision["targets"][name]["correctness"]
                    if has_forecast
                    else None,
                    "estimated_cost": decision["targets"][name]["estimated_cost"],
                    "score": decision["targets"][name]["score"] if has_forecast else None,
                    "place": i + 1,
                    "excluded": None,
                }
                for i, name in enumerate(order)
            ),
            {
                "target": DOWN,
                "probability": decision["targets"][DOWN]["correctness"] if has_forecast else None,
                "estimated_cost": decision["targets"][DOWN]["estimated_cost"],
                "score": None,
                "place": None,
                "excluded": "its breaker is open",
            },
        ],
        "attempts": [*attempts, answer] if failed else [answer],
        "path": decision["path"] if has_forecast else [],
        "below": _switch_point(decision["changes_below"]) if has_forecast else None,
        "above": _switch_point(decision["changes_above"]) if has_forecast else None,
        "tokens": {
            "input": input_tokens,
            "cached": input_tokens // 2 if kind == 6 else 0,
            "output": output_tokens,
            "reasoning": None,
            "estimated": kind == 11,
        },
        "timings": {
            "decision": row["decision_seconds"],
            "forecast": 0.01 if has_forecast else None,
            "first_byte": 0.42,
            "total": row["total_seconds"],
        },
        "router": "9f3c1ab27d5e4c60b8aa",
        "version": None,
        "version_step": None,
        "policy": "lambda",
        "policy_target": order[0] if has_forecast else None,
        "lam_asked": row["lam"],
        "novelty": 0.44 if has_forecast else None,
        "scored": "last_user",
        "input_tokens": input_tokens,
        "in_session": kind in (6, 7),
        "type": "Explore" if kind == 7 else None,
        "failing_steps": 2 if kind == 7 else 0,
        "key": "web",
        "instead": None
        if not has_forecast
        else {
            "baseline": NAMES[7],
            "cost": 3.1 * cost,
            "low": 1.2 * cost,
            "high": 6.4 * cost,
        },
    }


def _switch_point(change: dict[str, Any] | None) -> Any:
    return None if change is None else {"lam": change["lam"], "target": change["to"]}
