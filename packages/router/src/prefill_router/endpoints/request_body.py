"""The fields and messages of a request, as a target's options and its endpoint's dialect say."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prefill_router.data import Message, Prompt
from prefill_router.errors import ConfigError
from prefill_router.targets import (
    TRAITS,
    Dialect,
    DialectTraits,
    Endpoint,
    Fields,
    RequestOptions,
    Target,
    is_budget,
    recommended_sampling,
)

MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens")


def request_parameters(target: Target, dialect: Dialect) -> Fields:
    """The fields of a target's requests other than the messages; `extra_body` overrides the rest.

    Raises:
        ConfigError: The target sets an option that the dialect has no field for.
    """
    traits, options = TRAITS[dialect], target.request
    model = target.model or target.name
    fields: Fields = {"model": model, **_limit(traits, options)}
    fields |= reasoning_fields(target, dialect) | _sampling(traits, target, dialect)
    fields |= {"stream": True, "stream_options": {"include_usage": True}, **traits.always}
    return _merge(fields, options.extra_body)


def identity_parameters(target: Target, dialect: Dialect) -> Fields:
    """The fields that set a target apart from its model: how it reasons, and `extra_body`.

    Sampling, limits and messages aren't among them: the caller chooses these.

    Raises:
        ConfigError: As for `request_parameters`.
    """
    fields = {**reasoning_fields(target, dialect), **TRAITS[dialect].always}
    merged = _merge(fields, target.request.extra_body)
    return {name: value for name, value in merged.items() if name not in MAX_TOKENS_FIELDS}


def request_messages(target: Target, dialect: Dialect, prompt: Prompt) -> list[dict[str, str]]:
    """The messages of a request; a plain prompt becomes one user message.

    Older Nemotron models turn thinking on or off by their system prompt, which must come first.
    """
    turns = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    plain = [{"role": m.role, "content": m.content} for m in turns]
    switch = _system_switch(target, dialect)
    if switch is None:
        return plain
    if plain[0]["role"] == "system":
        return [{"role": "system", "content": f"{switch}\n{plain[0]['content']}"}, *plain[1:]]
    return [{"role": "system", "content": switch}, *plain]


def _system_switch(target: Target, dialect: Dialect) -> str | None:
    traits = TRAITS[dialect]
    on, switch = _reasoning_options(target, traits).enable_thinking, traits.system_switch
    return None if on is None or switch is None else switch(target.model or target.name, on)


def _limit(traits: DialectTraits, options: RequestOptions) -> Fields:
    if any(name in options.extra_body for name in MAX_TOKENS_FIELDS):
        return {}
    return {traits.max_tokens: options.max_tokens}


def reasoning_fields(target: Target, dialect: Dialect, endpoint: Endpoint = "chat") -> Fields:
    """The fields that say how much a target thinks before it answers.

    Args:
        target: The target, with an effort or options of reasoning; empty where it has neither.
        dialect: The dialect of its provider.
        endpoint: The endpoint; other than `chat`, one of the dialect's `efforts_in`.

    Raises:
        ConfigError: The dialect has no field for it.
    """
    traits = TRAITS[dialect]
    if _system_switch(target, dialect) is not None:
        return {}
    options = _reasoning_options(target, traits)
    if traits.reasoning is not None:
        return traits.reasoning(target.model or target.name, options)
    fields: Fields = {}
    for name in ("enable_thinking", "reasoning_effort", "thinking_budget"):
        write, value = getattr(traits, _WRITERS[name]), getattr(options, name)
        if value is None:
            continue
        if write is None:
            raise _lacks_field(target, dialect, name)
        fields = _merge(fields, write(value))
    effort = fields.get("reasoning_effort") if endpoint == "responses" else None
    return fields if effort is None else {"reasoning": {"effort": effort}}


_WRITERS = {
    "enable_thinking": "thinking",
    "reasoning_effort": "effort",
    "thinking_budget": "budget",
}
"""The trait of a dialect that writes the fields of an option."""


def _reasoning_options(target: Target, traits: DialectTraits) -> RequestOptions:
    """The target's options, with its effort as the options of this dialect."""
    options, effort = target.request, target.effort
    if effort is None:
        return options
    has_switch = traits.thinking is not None
    on = True if has_switch else None
    if is_budget(effort):
        return replace(options, thinking_budget=int(effort), enable_thinking=on)
    if effort == "none" and (has_switch or traits.reasoning is not None):
        return replace(options, enable_thinking=False)
    if has_switch and traits.effort is None:
        return replace(options, enable_thinking=True)
    return replace(options, reasoning_effort=effort, enable_thinking=on)


def _sampling(traits: DialectTraits, target: Target, dialect: Dialect) -> Fields:
    options = target.request
    if options.top_k is not None and not traits.top_k:
        raise _lacks_field(target, dialect, "top_k")
    sampling = {n: getattr(options, n) for n in ("temperature", "top_p", "top_k")}
    sampling = {name: value for name, value in sampling.items() if value is not None}
    if target.effort not in (None, "none"):
        sampling = {n: v for n, v in sampling.items() if n not in traits.refused_by_thinking}
    thinks = _reasoning_options(target, traits).enable_thinking
    if traits.recommends and not sampling and thinks is not None:
        sampling = recommended_sampling(target.model or target.name, thinking=thinks)
    return sampling | ({"seed": options.seed} if traits.seed and options.seed is not None else {})


def _merge(fields: Fields, further: Mapping[str, Any]) -> Fields:
    """Both; further fields override, but those within `_NESTED` are merged."""
    merged = {**fields, **further}
    for name in _NESTED:
        inner, other = fields.get(name), further.get(name)
        if isinstance(inner, dict) and isinstance(other, dict):
            merged[name] = {**inner, **other}
    return merged


_NESTED = ("chat_template_kwargs", "reasoning")


def _lacks_field(target: Target, dialect: Dialect, option: str) -> ConfigError:
    if target.effort is not None:
        alternative = "an effort by name" if is_budget(target.effort) else "a budget of tokens"
        return ConfigError(
            f"target {target.name!r} has the effort {target.effort!r}, for which the dialect "
            f"{dialect!r} has no field; use {alternative}, or the target's request options"
        )
    return ConfigError(
        f"target {target.name!r} sets {option}, for which the dialect {dialect!r} has no field; "
        "leave it out, or give the endpoint's own field in extra_body"
    )
