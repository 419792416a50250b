"""The fields and messages of a request, as a target's options and its endpoint's dialect say."""

from collections.abc import Mapping
from typing import Any

from prefill_router.data import Message, Prompt
from prefill_router.errors import ConfigError
from prefill_router.targets import (
    TRAITS,
    Dialect,
    DialectTraits,
    Fields,
    RequestOptions,
    Target,
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
    found: Fields = {"model": model, **_limit(traits, options)}
    found |= _reasoning(traits, target, dialect) | _sampling(traits, target, dialect)
    found |= {"stream": True, "stream_options": {"include_usage": True}, **traits.always}
    return _merged(found, options.extra_body)


def identity_parameters(target: Target, dialect: Dialect) -> Fields:
    """The fields that set a target apart from its model: how it reasons, and `extra_body`.

    Sampling, limits and messages aren't among them: the caller chooses these.

    Raises:
        ConfigError: As for `request_parameters`.
    """
    found = {**_reasoning(TRAITS[dialect], target, dialect), **TRAITS[dialect].always}
    merged = _merged(found, target.request.extra_body)
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
    on, switch = target.request.enable_thinking, TRAITS[dialect].system_switch
    return None if on is None or switch is None else switch(target.model or target.name, on)


def _limit(traits: DialectTraits, options: RequestOptions) -> Fields:
    if any(name in options.extra_body for name in MAX_TOKENS_FIELDS):
        return {}
    return {traits.max_tokens: options.max_tokens}


def _reasoning(traits: DialectTraits, target: Target, dialect: Dialect) -> Fields:
    options = target.request
    if traits.reasoning is not None:
        return traits.reasoning(target)
    if _system_switch(target, dialect) is not None:
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


def _sampling(traits: DialectTraits, target: Target, dialect: Dialect) -> Fields:
    options = target.request
    if options.top_k is not None and not traits.top_k:
        raise _lacks_field(target, dialect, "top_k")
    chosen = {n: getattr(options, n) for n in ("temperature", "top_p", "top_k")}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if traits.recommends and not chosen and options.enable_thinking is not None:
        chosen = recommended_sampling(target.model or target.name, thinking=options.enable_thinking)
    return chosen | ({"seed": options.seed} if traits.seed and options.seed is not None else {})


def _merged(found: Fields, extra: Mapping[str, Any]) -> Fields:
    """The user's fields override ours; `chat_template_kwargs` are merged."""
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
