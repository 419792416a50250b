"""Providers' keys: read from the environment, never sent over plain HTTP, redacted from texts.

A key may be sent unencrypted to this machine, and to hosts that the environment names. Redaction
is a second line of defence: it removes secrets from what is about to be written. The first is that
nothing that may hold a secret is logged.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any, final
from urllib.parse import quote, urlsplit

from prefill_router.client.reply import Reply
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
    whose = _serving(providers) if isinstance(providers, Pool) else set(providers)
    named = {p: p.api_key_env for p in whose}
    lacking = sorted({n for n in named.values() if n is not None and not environment.get(n)})
    if lacking:
        theirs = sorted(p.name for p, n in named.items() if n in lacking)
        raise ConfigError(
            f"no key for {', '.join(theirs)}: set the environment variable "
            f"{', '.join(map(_variable_name, lacking))}"
        )
    keys = {p: NO_KEY if n is None else environment[n].strip() for p, n in named.items()}
    odd = sorted(str(named[p]) for p, key in keys.items() if not _KEY.fullmatch(key))
    if odd:
        shown = ", ".join(map(_variable_name, odd))
        raise ConfigError(
            f"the environment variable {shown} can't be a key: it has blanks or non-ASCII "
            "characters; set it to the key"
        )
    for provider, name in named.items():
        if name is not None or provider.secrets:
            the_key = f"the key of provider {provider.name!r}"
            check_encrypted(provider.base_url, environment, whose=the_key)
    return keys


def _serving(pool: Pool) -> set[Provider]:
    return {pool.deployed.provider_of(name) for name in pool.deployed.names}


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


REDACTED = "[redacted]"
_LEAST_SECRET = 4  # characters: redacting shorter ones would garble every line
_LEAST_KEPT = 6
_A_WORD = re.compile(r"[A-Za-z]{1,12}")
_LOOKS_SECRET = re.compile(r"\b(Bearer +|Basic +|sk-|pr-)[A-Za-z0-9_\-.=+/]{16,}", re.IGNORECASE)


@lru_cache(maxsize=256)
def forms_of_key(key: str | None) -> tuple[bytes, ...]:
    """The ways to write a key in JSON; none for placeholders such as `none` or `dummy`."""
    if key is None or len(key) < _LEAST_KEPT or _A_WORD.fullmatch(key):
        return ()
    escaped = json.dumps(key)[1:-1]
    return tuple({form.encode() for form in (key, escaped, escaped.replace("/", "\\/"))})


def without_key(data: bytes, forms: Iterable[bytes]) -> bytes:
    """JSON bytes with these forms of a key redacted; the same object where none occurs."""
    for form in forms:
        if form in data:
            data = data.replace(form, REDACTED.encode())
    return data


@final
class Redaction:
    """Redacts secrets in texts: those that are known, and whatever looks like a key.

    Args:
        secrets: The known secrets, for instance the targets' keys. They are found as they are,
            JSON-escaped and URL-encoded.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {
            form
            for secret in secrets
            if len(secret) >= _LEAST_SECRET
            for form in (secret, json.dumps(secret)[1:-1], quote(secret, safe=""))
        }
        longest_first = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    @classmethod
    def of_keys(cls, keys: Iterable[str]) -> "Redaction":
        """A redaction of the targets' keys in stored answers.

        Placeholders such as `none` or `dummy` stay: redacting them would garble answers.
        """
        return cls(k for k in keys if len(k) >= _LEAST_KEPT and not _A_WORD.fullmatch(k))

    def __call__(self, text: str) -> str:
        """The text with known secrets, and whatever looks like one, redacted."""
        text = self.known(text)
        return _LOOKS_SECRET.sub(lambda found: found[1] + REDACTED, text)

    def known(self, text: str) -> str:
        """The text with known secrets redacted, and nothing else changed."""
        return text if self._known is None else self._known.sub(REDACTED, text)

    def reply(self, reply: Reply) -> Reply:
        """The reply with known secrets redacted."""
        if self._known is None:
            return reply
        return replace(
            reply,
            text=self.known(reply.text),
            reasoning=self.known(reply.reasoning),
            finish_reason=self._value(reply.finish_reason),
            served_by=self._value(reply.served_by),
            usage=replace(reply.usage, reported=self._value(reply.usage.reported)),
            response=self._value(reply.response),
        )

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.known(value)
        if isinstance(value, Mapping):
            return {self._value(name): self._value(item) for name, item in value.items()}
        return [self._value(item) for item in value] if isinstance(value, list | tuple) else value
