"""What the makers of open families recommend for their models, by the model's name.

Sampling is from the model cards: Qwen3 and Qwen3.5 (general tasks), Nemotron 3 Nano and Super, and
the earlier reasoning Nemotrons (also NVIDIA NIM's page on reasoning models). The system prompts
that switch the earlier Nemotrons are from that page.
"""

import re
from typing import Any

_QWEN_3_5 = re.compile(r"qwen-?3\.[5-9]")
_QWEN_3 = re.compile(r"qwen-?3")
_NEMOTRON_3_NANO = re.compile(r"nemotron-3-nano|nemotron-nano.*v3")
_NEMOTRON_3 = re.compile(r"nemotron-3-|nemotron-(super|ultra).*v3")
_NEMOTRON = re.compile(r"nemotron")
_SLASHED = re.compile(r"nemotron.*(v1[._]5|nano-9b-v2|nano-12b-v2)")

_SAMPLING: tuple[tuple[re.Pattern[str], dict[str, Any], dict[str, Any]], ...] = (
    (
        _QWEN_3_5,
        {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "presence_penalty": 1.5},
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "presence_penalty": 1.5},
    ),
    (
        _QWEN_3,
        {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
    ),
    (_NEMOTRON_3_NANO, {"temperature": 1.0, "top_p": 1.0}, {"temperature": 0.0}),
    (_NEMOTRON_3, {"temperature": 1.0, "top_p": 0.95}, {"temperature": 1.0, "top_p": 0.95}),
    (_NEMOTRON, {"temperature": 0.6, "top_p": 0.95}, {"temperature": 0.0}),
)


def recommended_sampling(model: str, *, thinking: bool) -> dict[str, Any]:
    """Sampling that a model's maker recommends; nothing for a model that isn't known.

    Args:
        model: The endpoint's name for it.
        thinking: With reasoning, or without.
    """
    for pattern, with_it, without in _SAMPLING:
        if pattern.search(model.lower()):
            return dict(with_it if thinking else without)
    return {}


def system_switch(model: str, on: bool) -> str | None:
    """The system prompt that switches reasoning; None where the chat template has a parameter."""
    name = model.lower()
    if not _NEMOTRON.search(name) or _NEMOTRON_3.search(name) or _NEMOTRON_3_NANO.search(name):
        return None
    if _SLASHED.search(name):
        return "/think" if on else "/no_think"
    return f"detailed thinking {'on' if on else 'off'}" if "llama" in name else None
