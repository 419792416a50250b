"""The keys of providers, from the environment."""

import re
from collections.abc import Iterable, Mapping

from prefill_router.errors import ConfigError
from prefill_router.targets import Pool, Provider
from prefill_router.upstream.plain_http import check_encrypted

NO_KEY = "none"
"""Stands for the key of a provider that needs none: some servers want a word all the same."""
_USUAL = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
_KEY = re.compile(r"[!-~]+")


def provider_keys(
    providers: Pool | Iterable[Provider], environment: Mapping[str, str]
) -> dict[Provider, str]:
    """Each provider's key; `NO_KEY` where it names no variable.

    Args:
        providers: Whose; of a pool, of all that serve its targets.
        environment: Where the keys are.

    Raises:
        ConfigError: A key isn't set or is none, would go over plain http to another machine, or a
            target of the pool has no endpoint.
    """
    whose = _serving(providers) if isinstance(providers, Pool) else set(providers)
    named = {p: p.api_key_env for p in whose}
    lacking = sorted({n for n in named.values() if n is not None and not environment.get(n)})
    if lacking:
        theirs = sorted(p.name for p, n in named.items() if n in lacking)
        raise ConfigError(
            f"no key for {', '.join(theirs)}: set the environment variable "
            f"{', '.join(map(_shown, lacking))}"
        )
    keys = {p: NO_KEY if n is None else environment[n].strip() for p, n in named.items()}
    odd = sorted(str(named[p]) for p, key in keys.items() if not _KEY.fullmatch(key))
    if odd:
        shown = ", ".join(map(_shown, odd))
        raise ConfigError(f"the environment variable {shown} holds what can't be a key; set it")
    for provider, name in named.items():
        if name is not None or provider.secrets:
            the_key = f"the key of provider {provider.name!r}"
            check_encrypted(provider.base_url, environment, whose=the_key)
    return keys


def _serving(pool: Pool) -> set[Provider]:
    return {pool.provider_of(name) for name in pool.names}


def _shown(variable: str) -> str:
    """A variable's name, unless it looks like a key that was put in its place."""
    return variable if _USUAL.fullmatch(variable) else "that api_key_env names"
