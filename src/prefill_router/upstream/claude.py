"""Reasoning of Claude models behind Anthropic's OpenAI-compatible endpoint.

That endpoint ignores `reasoning_effort` and takes `thinking`. From Claude 4.6 on it is adaptive,
with an effort beside it; earlier models take a budget of tokens instead, which newer ones refuse.
The reasoning itself never comes back there.
"""

import re
from typing import Any

from prefill_router.errors import ConfigError
from prefill_router.targets import Target

_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_ADAPTIVE = (4, 6)
_SHARES = {"minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95, "max": 0.95}
"""Of max_tokens; those by which OpenRouter turns efforts into budgets."""
_LEAST_BUDGET = 1024


def reasoning(target: Target) -> dict[str, Any]:
    """The fields for the reasoning that a target's options ask for.

    Raises:
        ConfigError: An effort without a budget, or too few tokens for one.
    """
    options = target.request
    if options.enable_thinking is False:
        return {"thinking": {"type": "disabled"}}
    if options.enable_thinking is None and options.reasoning_effort is None:
        return {}
    if _version(target.model or target.name) >= _ADAPTIVE:
        effort = options.reasoning_effort
        depth = {} if effort is None else {"output_config": {"effort": effort}}
        return {"thinking": {"type": "adaptive"}, **depth}
    return {"thinking": {"type": "enabled", "budget_tokens": _budget(target)}}


def _budget(target: Target) -> int:
    effort = target.request.reasoning_effort or "high"
    if effort not in _SHARES:
        raise ConfigError(
            f"target {target.name!r} has the reasoning_effort {effort!r}; of Claude models it is "
            f"one of {', '.join(_SHARES)}"
        )
    if target.request.max_tokens <= _LEAST_BUDGET:
        raise ConfigError(
            f"target {target.name!r} has max_tokens {target.request.max_tokens}; reasoning needs "
            f"more than {_LEAST_BUDGET}"
        )
    return max(_LEAST_BUDGET, int(target.request.max_tokens * _SHARES[effort]))


def _version(model: str) -> tuple[int, int]:
    """Such as (4, 6); a name without a version is taken for a new model."""
    found = _VERSION.search(model.lower())
    return (int(found[1]), int(found[2] or 0)) if found else (99, 0)
