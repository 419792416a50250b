"""Requests in each provider's dialect: one table, what its cells mean, what model families need.

Sources, as of November 2026: OpenAI's API reference; Anthropic's pages on OpenAI SDK compatibility
and on adaptive thinking; vLLM's and SGLang's pages on reasoning outputs and their chat completion
protocols; OpenRouter's pages on reasoning tokens and usage accounting; DeepSeek's page on thinking
mode; Alibaba Model Studio's page on deep thinking; NVIDIA NIM's page on reasoning models.

Anthropic's OpenAI-compatible endpoint ignores `reasoning_effort` and takes `thinking`. From
Claude 4.6 on it is adaptive, with an effort beside it; earlier models take a budget of tokens
instead, which newer ones refuse. The reasoning itself never comes back there.

What the makers of open families recommend is found by the model's name. Sampling is from the model
cards: Qwen3 and Qwen3.5 (general tasks), Nemotron 3 Nano and Super, and the earlier reasoning
Nemotrons (also NVIDIA NIM's page on reasoning models). The system prompts that switch the earlier
Nemotrons are from that page.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.data import Message, Prompt
from prefill_router.errors import ConfigError
from prefill_router.targets import Dialect, RequestOptions, Target

Fields = dict[str, Any]
MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens")


@final
@dataclass(frozen=True, kw_only=True)
class _DialectTraits:
    """One row of the table.

    Attributes:
        max_tokens: The field for the most output tokens.
        effort: Fields for a reasoning effort; None where there is no such thing.
        thinking: Fields that switch reasoning on or off; None where there is no such switch.
        top_k: Whether it takes `top_k`.
        seed: Whether it takes `seed`; elsewhere none is sent.
        recommends: Whether sampling that is left open is the model's recommended one. The other
            servers apply their models' own defaults themselves (`generation_config.json`).
        always: Fields of every request.
    """

    max_tokens: str = "max_tokens"
    effort: Callable[[str], Fields] | None = None
    thinking: Callable[[bool], Fields] | None = None
    top_k: bool = False
    seed: bool = True
    recommends: bool = False
    always: Mapping[str, Any] = field(default_factory=dict)


def _plain_effort(effort: str) -> Fields:
    return {"reasoning_effort": effort}


def _template_switch(on: bool) -> Fields:
    """Chat templates know the switch by one of two names, and ignore the other."""
    return {"chat_template_kwargs": {"enable_thinking": on, "thinking": on}}


_TABLE: dict[Dialect, _DialectTraits] = {
    "openai": _DialectTraits(max_tokens="max_completion_tokens", effort=_plain_effort),
    "anthropic": _DialectTraits(seed=False),  # reasoning depends on the model: `claude`
    "vllm": _DialectTraits(effort=_plain_effort, thinking=_template_switch, top_k=True),
    "sglang": _DialectTraits(effort=_plain_effort, thinking=_template_switch, top_k=True),
    "openrouter": _DialectTraits(
        effort=lambda effort: {"reasoning": {"effort": effort}},
        thinking=lambda on: {"reasoning": {"enabled": on}},
        top_k=True,
        always={"usage": {"include": True}},
    ),
    "deepseek": _DialectTraits(
        effort=_plain_effort,
        thinking=lambda on: {"thinking": {"type": "enabled" if on else "disabled"}},
        seed=False,
    ),
    "qwen": _DialectTraits(
        thinking=lambda on: {"enable_thinking": on}, top_k=True, recommends=True
    ),
    "nemotron": _DialectTraits(
        thinking=lambda on: {"chat_template_kwargs": {"enable_thinking": on}},
        top_k=True,
        recommends=True,
    ),
}


def request_parameters(target: Target, dialect: Dialect) -> Fields:
    """What a target is asked with beside the messages; `extra_body` wins over everything else.

    Raises:
        ConfigError: The target's options hold something that the dialect has no field for.
    """
    traits, options = _TABLE[dialect], target.request
    model = target.model or target.name
    found: Fields = {"model": model, **_limit(traits, options)}
    found |= _reasoning(traits, target, dialect) | _sampling(traits, target, dialect)
    found |= {"stream": True, "stream_options": {"include_usage": True}, **traits.always}
    return _merged(found, options.extra_body)


def identity_parameters(target: Target, dialect: Dialect) -> Fields:
    """What makes a target another one than its model alone: how it reasons, and `extra_body`.

    Sampling and limits aren't among it, nor the messages: these are whoever asks's to choose.

    Raises:
        ConfigError: As `request_parameters`.
    """
    found = {**_reasoning(_TABLE[dialect], target, dialect), **_TABLE[dialect].always}
    merged = _merged(found, target.request.extra_body)
    return {name: value for name, value in merged.items() if name not in MAX_TOKENS_FIELDS}


def request_messages(target: Target, dialect: Dialect, prompt: Prompt) -> list[dict[str, str]]:
    """The messages of a request: a plain prompt is one message of the user.

    Older Nemotron models are switched by their system prompt, which must come first.
    """
    turns = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    plain = [{"role": m.role, "content": m.content} for m in turns]
    switch = _system_switch(target) if dialect == "nemotron" else None
    if switch is None:
        return plain
    if plain[0]["role"] == "system":
        return [{"role": "system", "content": f"{switch}\n{plain[0]['content']}"}, *plain[1:]]
    return [{"role": "system", "content": switch}, *plain]


def _system_switch(target: Target) -> str | None:
    on = target.request.enable_thinking
    return None if on is None else system_switch(target.model or target.name, on)


def _limit(traits: _DialectTraits, options: RequestOptions) -> Fields:
    if any(name in options.extra_body for name in MAX_TOKENS_FIELDS):
        return {}
    return {traits.max_tokens: options.max_tokens}


def _reasoning(traits: _DialectTraits, target: Target, dialect: Dialect) -> Fields:
    options = target.request
    if dialect == "anthropic":
        return claude_reasoning(target)
    if dialect == "nemotron" and _system_switch(target) is not None:
        return {}
    found: Fields = {}
    if options.enable_thinking is not None:
        if traits.thinking is None:
            raise _lacks_field(target, dialect, "enable_thinking")
        found |= traits.thinking(options.enable_thinking)
    if options.reasoning_effort is not None:
        if traits.effort is None:
            raise _lacks_field(target, dialect, "reasoning_effort")
        for name, value in traits.effort(options.reasoning_effort).items():
            both = isinstance(value, dict) and isinstance(found.get(name), dict)
            found[name] = {**found[name], **value} if both else value
    return found


def _sampling(traits: _DialectTraits, target: Target, dialect: Dialect) -> Fields:
    options = target.request
    if options.top_k is not None and not traits.top_k:
        raise _lacks_field(target, dialect, "top_k")
    chosen = {n: getattr(options, n) for n in ("temperature", "top_p", "top_k")}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if traits.recommends and not chosen and options.enable_thinking is not None:
        chosen = recommended_sampling(target.model or target.name, thinking=options.enable_thinking)
    return chosen | ({"seed": options.seed} if traits.seed and options.seed is not None else {})


def _merged(found: Fields, extra: Mapping[str, Any]) -> Fields:
    """Fields of the user win; those for the chat template are joined with ours."""
    merged = {**found, **extra}
    ours, theirs = found.get("chat_template_kwargs"), extra.get("chat_template_kwargs")
    if isinstance(ours, dict) and isinstance(theirs, dict):
        merged["chat_template_kwargs"] = {**ours, **theirs}
    return merged


def _lacks_field(target: Target, dialect: Dialect, option: str) -> ConfigError:
    return ConfigError(
        f"target {target.name!r} sets {option}, for which the dialect {dialect!r} has no field; "
        "leave it out, or give the endpoint's own field in extra_body"
    )


_CLAUDE_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_ADAPTIVE_FROM = (4, 6)
_SHARES = {"minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95, "max": 0.95}
"""Of max_tokens; those by which OpenRouter turns efforts into budgets."""
_LEAST_BUDGET = 1024


def claude_reasoning(target: Target) -> dict[str, Any]:
    """The fields for the reasoning that a target's options ask for.

    Raises:
        ConfigError: An effort without a budget, or too few tokens for one.
    """
    options = target.request
    if options.enable_thinking is False:
        return {"thinking": {"type": "disabled"}}
    if options.enable_thinking is None and options.reasoning_effort is None:
        return {}
    if _claude_version(target.model or target.name) >= _ADAPTIVE_FROM:
        effort = options.reasoning_effort
        depth = {} if effort is None else {"output_config": {"effort": effort}}
        return {"thinking": {"type": "adaptive"}, **depth}
    return {"thinking": {"type": "enabled", "budget_tokens": _thinking_budget(target)}}


def _thinking_budget(target: Target) -> int:
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


def _claude_version(model: str) -> tuple[int, int]:
    """Such as (4, 6); a name without a version is taken for a new model."""
    found = _CLAUDE_VERSION.search(model.lower())
    return (int(found[1]), int(found[2] or 0)) if found else (99, 0)


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
