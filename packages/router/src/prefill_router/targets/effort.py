"""Reasoning effort as part of a target: its names, and how a pair of model and effort is written.

A model that can think for longer or shorter is several targets: the router predicts, prices and
chooses each pair by itself. To a provider they are one model with one price list.

Efforts are named as providers name them, as of November 2026 (OpenAI's `reasoning_effort`,
Anthropic's `output_config.effort`, OpenRouter's `reasoning.effort`), or are a budget of thinking
tokens such as 4096.
"""

from prefill_router.errors import ConfigError

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The efforts that have a name, from the least to the most."""

_MOST_DIGITS = 10


def name_with_effort(name: str, effort: str) -> str:
    """How a model with an effort is written, such as `large:low`."""
    return f"{name}:{effort}"


def effort_in_name(name: str) -> str | None:
    """The effort that a target's name ends in; None where it ends in none of `EFFORTS`.

    A budget of tokens looks like the size of a model, so only names are read.
    """
    model, colon, effort = name.rpartition(":")
    return effort if model and colon and effort in EFFORTS else None


def is_budget(effort: str) -> bool:
    """Whether an effort is a budget of thinking tokens."""
    return len(effort) < _MOST_DIGITS and effort.isascii() and effort.isdigit() and int(effort) > 0


def check_effort(effort: str, whose: str) -> None:
    """Check that an effort has a name that is known, or is a budget.

    Args:
        effort: The effort.
        whose: The target, for the error.

    Raises:
        ConfigError: It is neither.
    """
    if effort not in EFFORTS and not is_budget(effort):
        raise ConfigError(
            f"{whose} has the effort {effort!r}; use one of {', '.join(EFFORTS)}, or a number of "
            "thinking tokens such as 4096"
        )
