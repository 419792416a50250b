"""The fields in which a request asks for reasoning effort, in each protocol.

The effort of the target that a request goes to replaces the effort in the request. The rest of such
a field is kept.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

from prefill_router.targets import EFFORTS, Endpoint, Fields, is_budget

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
_CLAUDE = frozenset(("effort",))
_INNER: Mapping[Endpoint, Mapping[str, frozenset[str]]] = {
    "chat": {
        "chat_template_kwargs": _SWITCHES,
        "reasoning": _REASONING,
        "output_config": _CLAUDE,
    },
    "responses": {"reasoning": _REASONING},
    "messages": {"output_config": _CLAUDE},
}
"""Fields that say other things too, with the names that are about effort."""


def read_effort(endpoint: Endpoint, value: Mapping[str, Any]) -> str | None:
    """The effort that a request asks for: a name, a budget, or `none`; None where it asks for none.

    A switch that is on doesn't say how much.
    """
    return next(read_efforts(endpoint, value), None)


def read_efforts(endpoint: Endpoint, value: Mapping[str, Any]) -> Iterator[str]:
    """All efforts that a request asks for, as it may give a name beside a budget; see above."""
    inner = (value.get(name) for name in ("thinking", *_INNER.get(endpoint, {})))
    parts = [part for part in inner if isinstance(part, Mapping)]
    for place, budgets in ((value, _BUDGETS), *((part, _INNER_BUDGETS) for part in parts)):
        fields = (place.get(name) for name in ("reasoning_effort", "effort", *budgets))
        efforts = [str(field) for field in fields if type(field) in (str, int)]
        yield from (effort for effort in efforts if effort in EFFORTS or is_budget(effort))
    places = (value, *parts)
    is_off = any(place.get(switch) is False for place in places for switch in _SWITCHED_OFF)
    if is_off or any(part.get("type") == "disabled" for part in parts):
        yield "none"


_BUDGETS = ("thinking_budget", "thinking_token_budget")
_INNER_BUDGETS = ("thinking_budget", "budget_tokens", "max_tokens")
_SWITCHED_OFF = ("enable_thinking", "thinking", "enabled")


def effort_changes(
    endpoint: Endpoint,
    request: Mapping[str, Any],
    fields: Fields,
    refused_fields: Collection[str] = (),
) -> Fields:
    """What changes in a request so that it asks for a target's effort, and for no other.

    Args:
        endpoint: The protocol of the request.
        request: The request.
        fields: The fields that say the target's effort, as `reasoning_fields` gives them.
        refused_fields: Fields that the target's model refuses with this effort.

    Returns:
        The new values of fields; None for a field that leaves.
    """
    changes: Fields = {name: None for name in refused_fields if name in request}
    changes |= _without_effort(endpoint, request)
    return changes | merge_fields({**request, **changes}, fields)


def merge_fields(request: Mapping[str, Any], fields: Fields) -> Fields:
    """Fields as a request gets them: objects keep what else the request says in them."""
    merged: Fields = {}
    for name, value in fields.items():
        other = request.get(name)
        are_objects = isinstance(other, dict) and isinstance(value, dict)
        merged_value = cast("Fields", other) | value if are_objects else value
        merged[name] = _within_limit(merged_value, request.get("max_tokens"))
    return merged


def _without_effort(endpoint: Endpoint, request: Mapping[str, Any]) -> Fields:
    """The fields of a request that are about effort, without it; None where nothing is left."""
    rest: Fields = {name: None for name in _WHOLE.get(endpoint, ()) if name in request}
    for name, about in _INNER.get(endpoint, {}).items():
        inner = request.get(name)
        if isinstance(inner, Mapping) and not about.isdisjoint(inner):
            rest[name] = {key: value for key, value in inner.items() if key not in about} or None
    return rest


def _within_limit(field: Any, most: Any) -> Any:
    """A budget of an earlier Claude within the request's limit of tokens.

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
"""The share of a request's limit that thinking may take; the rest is for the answer."""
_LEAST_BUDGET = 1024
"""The least budget that Anthropic takes."""
