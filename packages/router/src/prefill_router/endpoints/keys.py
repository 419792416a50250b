"""The providers' keys: read from the environment, and never sent where others could read them.

A key may be sent unencrypted to this machine, and to hosts that the environment names.
"""

import re
import urllib.request
from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from prefill_router.errors import ConfigError
from prefill_router.targets import Pool, Provider

NO_KEY = "none"
"""The key sent to a provider that needs none: some servers require a non-empty one."""
_USUAL_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
_KEY = re.compile(r"[!-~]+")


def provider_keys(
    providers: Pool | Iterable[Provider], environment: Mapping[str, str]
) -> dict[Provider, str]:
    """Each provider's key; `NO_KEY` where it names no variable.

    Args:
        providers: The providers, or a pool, which stands for all that serve its targets.
        environment: The variables that hold the keys.

    Raises:
        ConfigError: A key isn't set or isn't valid, would be sent over plain http to another
            machine, or a target of the pool has no endpoint.
    """
    whose = _serving_providers(providers) if isinstance(providers, Pool) else set(providers)
    variables = {p: p.api_key_env for p in whose}
    lacking = sorted({n for n in variables.values() if n is not None and not environment.get(n)})
    if lacking:
        theirs = sorted(p.name for p, n in variables.items() if n in lacking)
        several = "s" if len(lacking) > 1 else ""
        raise ConfigError(
            f"no key for {', '.join(theirs)}: set the environment variable{several} "
            f"{', '.join(map(_variable_name, lacking))}"
        )
    keys = {p: NO_KEY if n is None else environment[n].strip() for p, n in variables.items()}
    odd = sorted(str(variables[p]) for p, key in keys.items() if not _KEY.fullmatch(key))
    if odd:
        names = ", ".join(map(_variable_name, odd))
        raise ConfigError(
            f"the environment variable {names} can't be a key: it has blanks or non-ASCII "
            "characters; set it to the key"
        )
    for provider, name in variables.items():
        if name is not None or provider.secrets:
            the_key = f"the key of provider {provider.name!r}"
            check_encrypted(provider.base_url, environment, whose=the_key)
    return keys


def _serving_providers(pool: Pool) -> set[Provider]:
    return {pool.deployment_pool.provider_of(name) for name in pool.deployment_pool.names}


def _variable_name(variable: str) -> str:
    """A variable's name, unless it looks like a key that was put in its place."""
    return variable if _USUAL_VARIABLE.fullmatch(variable) else "that api_key_env names"


PLAIN_HTTP = "PREFILL_ROUTER_PLAIN_HTTP"
"""The variable that names the hosts, separated by commas, to which keys may go over plain HTTP."""


def check_encrypted(base_url: str, environment: Mapping[str, str], *, whose: str) -> None:
    """Check that a key sent to this address can't be read in transit.

    Args:
        base_url: The address that the key would be sent to.
        environment: The variables; `PLAIN_HTTP` may name the address's host.
        whose: A description of the key for the error.

    Raises:
        ConfigError: The key could be read.
    """
    parts = urlsplit(base_url)
    host = (parts.hostname or "").lower()
    allowed = {
        name.strip().lower().strip("[]") for name in environment.get(PLAIN_HTTP, "").split(",")
    }
    if parts.scheme == "https" or is_loopback(host) or host in allowed:
        return
    raise ConfigError(
        f"{whose} would be sent over plain http to {host}, and others could read it; use https://, "
        f"or allow that host by name: {PLAIN_HTTP}={host}"
    )


def wants_proxy(address: str) -> bool:
    """Whether the environment names a proxy for an address (`HTTPS_PROXY`, `NO_PROXY`, ...).

    A server on this machine is never called through a proxy, which could read its traffic.
    """
    parts = urlsplit(address)
    host = parts.hostname or ""
    if is_loopback(host):
        return False
    named = urllib.request.getproxies()
    if not (named.get(parts.scheme) or named.get("all")):
        return False
    return not urllib.request.proxy_bypass(host)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
