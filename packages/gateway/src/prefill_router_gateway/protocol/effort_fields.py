"""The fields in which a request asks for reasoning effort, in each protocol and dialect.

Where the router chooses the effort, these fields give way to those of the target. A client that
names its target keeps its own.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, final

from prefill_router.targets import EFFORTS, Endpoint, Fields
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
    """The effort that a request asks for by name; None where it asks for none."""
    inner = (value.get(name) for name in _INNER.get(endpoint, {}))
    places = [value, *(place for place in inner if isinstance(place, Mapping))]
    asked = [place.get(name) for place in places for name in ("reasoning_effort", "effort")]
    return next((effort for effort in asked if effort in EFFORTS), None)


@final
@dataclass(frozen=True, kw_only=True)
class EffortRule:
    """How the effort of a target is said in a body.

    Attributes:
        effort: The effort.
        fields: The fields that say it, by endpoint.
        refused: The fields of a client that a model with this effort refuses.
    """

    effort: str
    fields: Mapping[Endpoint, Fields]
    refused: Collection[str] = ()


def effort_splicer(
    endpoint: Endpoint, body: bytes, rule: EffortRule, *, is_routed: bool
) -> Splicer:
    """Makes the bodies for a target with an effort.

    The values of other fields keep their bytes.

    Args:
        endpoint: The protocol, one that can say the effort.
        body: The body, which was read.
        rule: How the effort is said.
        is_routed: Whether the router chose the target. Where the client named it, another effort
            that the client asks for is kept.
    """
    return read_envelope(endpoint, _with_effort(endpoint, body, rule, is_routed)).splicer


def _with_effort(endpoint: Endpoint, body: bytes, rule: EffortRule, is_routed: bool) -> bytes:
    text = body.decode()
    fields = read_fields(text)
    rest = _without_effort(endpoint, fields.value)
    if rest and not is_routed and read_effort(endpoint, fields.value) != rule.effort:
        return body
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
        texts[name] = json.dumps(both)
    return b"{%b}" % ",".join(f"{json.dumps(n)}:{v}" for n, v in texts.items()).encode()


def _without_effort(endpoint: Endpoint, value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are about effort, without what is about it; None where nothing is left."""
    rest: dict[str, Any] = {name: None for name in _WHOLE.get(endpoint, ()) if name in value}
    for name, about in _INNER.get(endpoint, {}).items():
        inner = value.get(name)
        if isinstance(inner, Mapping) and not about.isdisjoint(inner):
            left = {key: other for key, other in inner.items() if key not in about}
            rest[name] = left or None
    return rest
