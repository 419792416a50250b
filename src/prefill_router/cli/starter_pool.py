"""A pool file to begin with: known models with their providers, ready but for the keys."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prefill_router.gateway.litellm import KnownProvider
    from prefill_router.targets import Pool, Target

YOURS: Final = "yours"
"""The provider of models that none is known for; its address is to be replaced."""
_ADDRESS = "http://127.0.0.1:8000/v1"
_FAMILIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("gpt-", "chatgpt-", "o1", "o3", "o4"), "openai"),
    "claude-": "anthropic",
    "gemini-": "gemini",
    "deepseek-": "deepseek",
    **dict.fromkeys(("mistral-", "ministral-", "codestral-"), "mistral"),
    "grok-": "xai",
}
"""Providers by how the names of their own models begin; open models of theirs have other names."""
_OPEN = ("gpt-oss",)


def starter_pool(pool: "Pool") -> "Pool":
    """The pool with a provider for each target that has no endpoint.

    A name such as `openai/gpt-4o` tells its provider; with another prefix it is a name of
    OpenRouter's. A model whose provider isn't known gets the provider `YOURS`.
    """
    from prefill_router.gateway.litellm import KNOWN
    from prefill_router.targets import Pool, Provider

    providers = {provider.name: provider for provider in pool.providers}
    targets = []
    for target in pool:
        if target.provider is not None or target.base_url is not None:
            targets.append(target)
            continue
        name, model = _provider(target.name, KNOWN)
        known = KNOWN.get(name)
        providers.setdefault(
            name,
            Provider(
                name=name,
                base_url=(known and known.base_url) or _ADDRESS,
                dialect="openai" if known is None else known.dialect,
                api_key_env=None if known is None else known.key_env,
            ),
        )
        targets.append(_placed(target, name, model))
    return Pool(tuple(targets), pool.prices_date, tuple(providers.values()))


def _placed(target: "Target", provider: str, model: str) -> "Target":
    return replace(
        target,
        provider=provider,
        model=target.model or (model if model != target.name else None),
    )


def _provider(name: str, known: "Mapping[str, KnownProvider]") -> tuple[str, str]:
    """The name of a model's provider, and the provider's own name for it."""
    prefix, _, rest = name.partition("/")
    if rest and prefix in known and known[prefix].base_url:
        return prefix, rest
    if rest:
        return "openrouter", name
    for start, provider in _FAMILIES.items():
        if name.startswith(start) and not name.startswith(_OPEN):
            return provider, name
    return YOURS, name
