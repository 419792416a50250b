"""The fields in which a request asks for reasoning effort, in each protocol and dialect.

They give way to those of the target: the router has chosen it with its effort, or the client named
it so. Who names a model without an effort gets the one that these fields ask for.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, final

from prefill_router.targets import EFFORTS, Endpoint, Fields, is_budget
from prefill_router_gateway.protocol.envelope import Splicer, read_envelope, read_fields

_WHOLE: Mapping[Endpoint, frozenset[str]] = {
    "chat": frozenset(
        (
            "reasoning_effort",
            "enable_thinking",
            "thinking",
            "thinking_budget",
            "thinking_token_budget",
        )
    ),
    "messages": frozenset(("thinking",)),
}
"""Fields that say nothing else."""
_SWITCHES = frozenset(("enable_thinking", "thinking", "thinking_budget", "reasoning_effort"))
_REASONING = frozenset(("effort", "max_tokens", "enabled"))
_INNER: Mapping[Endpoint, Mapping[str, frozenset[str]]] = {
    "chat": {"chat_template_kwargs": _SWITCHES, "reasoning": _REASONING},
    "responses": {"reasoning": _REASONING},
    "messages": {"output_config": frozenset(("effort",))},
}
"""Fields that say other things too, with the names that are about effort."""


def read_effort(endpoint: Endpoint, value: Mapping[str, Any]) -> str | None:
    """The effort that a request asks for: a name, a budget, or `none`; None where it asks for none.

    A switch that is on doesn't say how much.
    """
    inner = (value.get(name) for name in ("thinking", *_INNER.get(endpoint, {})))
    parts = [part for part in inner if isinstance(part, Mapping)]
    for place, budgets in ((value, _BUDGETS), *((part, _INNER_BUDGETS) for part in parts)):
        fields = (place.get(name) for name in ("reasoning_effort", "effort", *budgets))
        efforts = [str(field) for field in fields if type(field) in (str, int)]
        effort = next((e for e in efforts if e in EFFORTS or is_budget(e)), None)
        if effort is not None:
            return effort
    places = (value, *parts)
    is_off = any(place.get(switch) is False for place in places for switch in _SWITCHED_OFF)
    return "none" if is_off or any(part.get("type") == "disabled" for part in parts) else None


_BUDGETS = ("thinking_budget", "thinking_token_budget")
_INNER_BUDGETS = ("thinking_budget", "budget_tokens", "max_tokens")
_SWITCHED_OFF = ("enable_thinking", "thinking", "enabled")


@final
@dataclass(frozen=True, kw_only=True)
class EffortRule:
    """How the effort of a target is said in a body.

    Attributes:
        fields: The fields that say it, by endpoint.
        refused: The fields of a client that a model with this effort refuses.
    """

    fields: Mapping[Endpoint, Fields]
    refused: Collection[str] = ()


def effort_splicer(endpoint: Endpoint, body: bytes, rule: EffortRule) -> Splicer:
    """Makes the bodies for a target with an effort.

    The values of other fields keep their bytes.

    Args:
        endpoint: The protocol, one that can say the effort.
        body: The body, which was read.
        rule: How the effort is said.
    """
    return read_envelope(endpoint, _with_effort(endpoint, body, rule)).splicer


def _with_effort(endpoint: Endpoint, body: bytes, rule: EffortRule) -> bytes:
    text = body.decode()
    fields = read_fields(text)
    rest = _without_effort(endpoint, fields.value)
    spans = {name: span for name, span in fields.spans.items() if name not in rule.refused}
    texts = {name: text[start:end] for name, (start, end) in spans.items()}
    for name, value in rest.items():
        if value is None:
            del texts[name]
        else:
            texts[name] = json.dumps(value)
    for name, value in rule.fields[endpoint].items():
        other = rest.get(name, fields.value.get(name))
        both = {**other, **value} if isinstance(other, dict) and isinstance(value, dict) else value
        texts[name] = json.dumps(_within_limit(both, fields.value.get("max_tokens")))
    return b"{%b}" % ",".join(f"{json.dumps(n)}:{v}" for n, v in texts.items()).encode()


def _within_limit(field: Any, most: Any) -> Any:
    """A budget of an earlier Claude within the client's limit of tokens.

    Where even the least budget doesn't fit, thinking is off.
    """
    budget = field.get("budget_tokens") if isinstance(field, Mapping) else None
    if budget is None or not isinstance(most, int) or budget < most:
        return field
    fitting = int(most * _MOST_THINKING)
    if fitting < _LEAST_BUDGET:
        return {"type": "disabled"}
    return {**field, "budget_tokens": fitting}


_MOST_THINKING = 0.8
"""The share of the client's limit that thinking may take; the rest is for the answer."""
_LEAST_BUDGET = 1024
"""The least budget that Anthropic takes."""


def _without_effort(endpoint: Endpoint, value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are about effort, without what is about it; None where nothing is left."""
    rest: dict[str, Any] = {name: None for name in _WHOLE.get(endpoint, ()) if name in value}
    for name, about in _INNER.get(endpoint, {}).items():
        inner = value.get(name)
        if isinstance(inner, Mapping) and not about.isdisjoint(inner):
            left = {key: other for key, other in inner.items() if key not in about}
            rest[name] = left or None
    return rest
