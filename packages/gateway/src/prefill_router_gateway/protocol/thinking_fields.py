"""What a request says of thinking, as fields of the chat that it is translated to.

Only for targets that accept `thinking` and have no effort of their own: those get what the client
asks for. Where the dialect has no field for it, nothing is sent.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

from prefill_router.endpoints import read_efforts, reasoning_fields
from prefill_router.errors import ConfigError
from prefill_router.targets import Dialect, Endpoint, Fields, Target, is_budget
from prefill_router_gateway.protocol.turns import asks_to_think

THINKING_HINTS: Final = frozenset(("thinking", "output_config.effort", "reasoning"))
"""The hints of `left_out_hints` that say how much to think."""


@final
@dataclass(frozen=True, kw_only=True)
class ThinkingRule:
    """A target that gets hints on thinking, and the dialect of its provider."""

    target: Target
    dialect: Dialect


@final
@dataclass(frozen=True, kw_only=True)
class ThinkingHint:
    """The hint on thinking for one target.

    Attributes:
        name: The effort, `budget` for any number of tokens, or `on`.
        fields: The fields of its chat.
    """

    name: str
    fields: Fields

    @property
    def thinks(self) -> bool:
        """Whether it asks the target to think."""
        return self.name != "none"


def thinking_hints(
    rules: Mapping[str, ThinkingRule], endpoint: Endpoint, value: Mapping[str, Any]
) -> dict[str, ThinkingHint]:
    """What a request says of thinking, for each target that can get it.

    Args:
        rules: The targets and deployments that can get hints, by name.
        endpoint: The endpoint, one of `TRANSLATED`.
        value: The fields of the request.
    """
    efforts = tuple(read_efforts(endpoint, value))
    is_on = asks_to_think(value)
    hints = {name: _hint_for(rule, efforts, is_on=is_on) for name, rule in rules.items()}
    return {name: hint for name, hint in hints.items() if hint is not None}


def _hint_for(rule: ThinkingRule, efforts: tuple[str, ...], *, is_on: bool) -> ThinkingHint | None:
    for name, target in _list_efforts(rule.target, efforts, is_on=is_on):
        try:
            fields = reasoning_fields(target, rule.dialect)
        except ConfigError:  # the dialect has no field for it
            continue
        if fields:
            return ThinkingHint(name=name, fields=fields)
    return None


def _list_efforts(
    target: Target, efforts: tuple[str, ...], *, is_on: bool
) -> Iterator[tuple[str, Target]]:
    """The target with each effort that is asked for, the first that can be sent first."""
    for effort in efforts:
        yield "budget" if is_budget(effort) else effort, target.with_effort(effort)
    if is_on:
        yield "on", replace(target, request=replace(target.request, enable_thinking=True))
