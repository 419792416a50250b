"""Providers: the endpoints that serve targets, with their dialects and rate limits.

Also the names of what a target may support besides plain text.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal, final, get_args
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from prefill_router.errors import ConfigError
from prefill_router.targets.dialects import Dialect

Ability = Literal["tools", "images", "audio", "files", "json_schema"]
"""What a request may need its target to support.

- `tools`: calling functions; `json_schema`: answers that follow a schema;
- `images`, `audio`, `files`: content parts of these kinds.
"""
ABILITIES: tuple[Ability, ...] = get_args(Ability)

_SECRET = re.compile("key|token|secret|sig|pass|auth|code", re.IGNORECASE)
_WORD_FOR_PORT = re.compile(r"(//|^)[^/]*:[^/\d]")  # a key may stand where the port should
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@final
@dataclass(frozen=True, kw_only=True)
class Provider:
    """An endpoint that serves targets, with limits that hold for all of them together.

    Attributes:
        name: Its name, unique in the pool.
        base_url: The base URL of its OpenAI-compatible API.
        dialect: Its dialect, by name; see `DIALECTS`.
        api_key_env: The name of the environment variable that holds its key; never the key.
        concurrency: The most calls at a time.
        requests_per_minute: The most calls that begin in a minute; None for no limit.
        tokens_per_minute: The most tokens in a minute, input plus output; None for no limit.
        connect_seconds: Timeout for connecting.
        first_token_seconds: Timeout for the first token of an answer.
        answer_seconds: Timeout for a whole answer.
        silence_seconds: Timeout between two chunks of a stream; only the gateway applies it.
    """

    name: str
    base_url: str
    dialect: Dialect = "openai"
    api_key_env: str | None = None
    concurrency: int = 16
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    connect_seconds: float = 10.0
    first_token_seconds: float = 600.0
    answer_seconds: float = 3600.0
    silence_seconds: float = 120.0

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("a provider has an empty name; give it one")
        check_variable(self.api_key_env, f"provider {self.name!r}")
        check_address(self.base_url, f"provider {self.name!r}")
        if self.concurrency < 1:
            raise ConfigError(
                f"provider {self.name!r} has concurrency {self.concurrency}; at least 1 is needed"
            )
        for what in ("requests_per_minute", "tokens_per_minute"):
            self._check_positive(what, getattr(self, what))
        for limit in ("connect", "first_token", "answer", "silence"):
            self._check_positive(f"{limit}_seconds", getattr(self, f"{limit}_seconds"))

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values in the query string of its base_url whose names suggest that they are keys."""
        return tuple(v for n, v in parse_qsl(urlsplit(self.base_url).query) if _SECRET.search(n))

    def _check_positive(self, what: str, value: float | None) -> None:
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(
                f"provider {self.name!r} has {what} {value}; it must be a number above 0"
            )


def check_variable(name: str | None, whose: str) -> None:
    """Check that an api_key_env is a valid name of an environment variable.

    Raises:
        ConfigError: It isn't; the value isn't quoted, since it may be the key itself.
    """
    if name is not None and not _VARIABLE.fullmatch(name):
        raise ConfigError(
            f"{whose} has an api_key_env that can't be the name of a variable; it must be the name "
            "of the environment variable that holds the key, such as LAB_KEY, never the key"
        )


def check_address(base_url: str, whose: str) -> None:
    """Check that a base_url is a valid URL without a user name or password.

    Raises:
        ConfigError: It isn't. It is quoted only where it can't contain a key.
    """
    try:
        parts = urlsplit(base_url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    else:
        if parts.username or parts.password:
            raise ConfigError(
                f"{whose} has a password in its base_url; take it out, and name the variable of "
                "its key as api_key_env"
            )
    if not good:
        shown = (
            "that isn't quoted here, since it may contain a key"
            if set("@?#") & set(base_url) or _WORD_FOR_PORT.search(base_url)
            else repr(base_url)
        )
        raise ConfigError(
            f"{whose} has the base_url {shown}; it must begin with http:// or https:// and a host, "
            "such as http://127.0.0.1:8000/v1"
        )


def public_address(base_url: str) -> str:
    """A base_url that is safe to show and save: without its query, which may contain a key."""
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
