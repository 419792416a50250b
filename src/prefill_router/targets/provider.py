"""Providers: who serves targets, in which dialect, and how hard they may be asked.

Beside them the words for what a target can do beyond answering texts.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal, final, get_args
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from prefill_router.errors import ConfigError
from prefill_router.targets.dialects import Dialect

Ability = Literal["tools", "images", "audio", "files", "json_schema"]
"""What a request may need of its target.

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
    """An endpoint that serves targets; what is asked of all of them together is limited here.

    Attributes:
        name: Its name, unique in the pool.
        base_url: Its OpenAI-compatible endpoint.
        dialect: What it does differently.
        api_key_env: The environment variable that holds its key; never the key.
        concurrency: At most so many calls at once.
        requests_per_minute: At most so many calls begin in a minute; None for no limit.
        tokens_per_minute: At most so many tokens, in and out, in a minute; None for no limit.
        connect_seconds: A connection that takes longer has failed.
        first_token_seconds: An answer whose first token takes longer has failed.
        answer_seconds: An answer that takes longer as a whole has failed.
        silence_seconds: A stream in which nothing comes for longer has failed; the gateway's limit.
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
        """What in its base_url may be a key: values in the query whose names say so."""
        return tuple(v for n, v in parse_qsl(urlsplit(self.base_url).query) if _SECRET.search(n))

    def _check_positive(self, what: str, value: float | None) -> None:
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(
                f"provider {self.name!r} has {what} {value}; it must be a number above 0"
            )


def check_variable(name: str | None, whose: str) -> None:
    """Check that what should name the variable of a key can be the name of one.

    Raises:
        ConfigError: It can't; it isn't quoted, since it may be the key itself.
    """
    if name is not None and not _VARIABLE.fullmatch(name):
        raise ConfigError(
            f"{whose} has an api_key_env that can't be the name of a variable; it names the "
            "environment variable that holds the key, such as LAB_KEY, and never is the key"
        )


def check_address(base_url: str, whose: str) -> None:
    """Check that a base_url is one, without a name or a password in it.

    Raises:
        ConfigError: It isn't. It is quoted only where it can't hold a key.
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
            "that isn't quoted here, since it may hold a key"
            if set("@?#") & set(base_url) or _WORD_FOR_PORT.search(base_url)
            else repr(base_url)
        )
        raise ConfigError(
            f"{whose} has the base_url {shown}; it begins with http:// or https://, then a host, "
            "such as http://127.0.0.1:8000/v1"
        )


def public_address(base_url: str) -> str:
    """A base_url as it may be shown and kept: without its query, which may hold a key."""
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
