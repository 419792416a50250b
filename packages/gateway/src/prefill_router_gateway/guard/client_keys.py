"""The keys of clients: whose each is, until when, and what it may use."""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from typing import Annotated, Any, final

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, field_validator

from prefill_router.errors import ConfigError
from prefill_router.options import POSITIVE
from prefill_router_gateway.limits import COUNT
from prefill_router_gateway.settings import BudgetSettings

_Rate = Annotated[StrictInt, COUNT]
_Dollars = Annotated[float, POSITIVE]


@final
class ClientKey(BaseModel):
    """A client's key: its hash, and what it may do.

    Attributes:
        name: Its name in receipts and budgets.
        sha256: The key's SHA-256 in hexadecimal; the key itself isn't stored.
        created: The day on which it was made.
        requests_per_minute: The most requests per minute; None for no limit.
        concurrent: The most requests in flight; None for no limit.
        dollars_per_day: The most US dollars per day (UTC); None for no limit.
        dollars_per_hour: The most US dollars per hour; None for no limit.
        targets: The targets that it may use; None for all.
        admin: Whether it may also read metrics and the page's numbers, and change settings.
        expires: When it expires; a date means the end of that day (UTC). None for never.
        learning: Whether its requests may be kept for the next router to learn from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    sha256: Annotated[str, Field(repr=False)]
    created: date | None = None
    requests_per_minute: _Rate | None = None
    concurrent: _Rate | None = None
    dollars_per_day: _Dollars | None = None
    dollars_per_hour: _Dollars | None = None
    targets: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    admin: StrictBool = False
    expires: datetime | None = None
    learning: StrictBool = True

    @field_validator("sha256")
    @classmethod
    def _is_a_hash(cls, value: str) -> str:
        if value.startswith("pr-"):
            raise ValueError("is a key; write its SHA-256 here, or let `key new` do so")
        if len(value) != 64 or set(value) - set("0123456789abcdef"):
            raise ValueError("isn't a SHA-256; give 64 hexadecimal digits in lower case")
        return value

    @field_validator("expires", mode="before")
    @classmethod
    def _is_a_moment(cls, value: Any) -> Any:
        if isinstance(value, str) and len(value) == len("2026-01-31"):
            value = _parse_day(value)
        if isinstance(value, date) and not isinstance(value, datetime):
            last = datetime(value.year, value.month, value.day, tzinfo=UTC)
            return last + timedelta(days=1) if value < date.max else last
        return value

    @field_validator("expires")
    @classmethod
    def _has_a_zone(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("has no time zone; give one, like the Z in 2026-01-31T12:00:00Z")
        return value


@final
class ClientKeys:
    """The keys that a gateway knows.

    Keys are 256 random bits, so a single SHA-256 protects them: they can't be guessed, and the slow
    hashes that passwords need would only slow requests. The time of a table lookup can reveal
    something about hashes at most, and an attacker can't choose the hash of a guessed key, so it
    reveals nothing about keys.

    Args:
        keys: The keys, with distinct names and hashes.
        clock: Returns seconds since 1970.

    Raises:
        ConfigError: Two keys have the same name or hash.
    """

    def __init__(
        self, keys: Sequence[ClientKey], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._keys = tuple(keys)
        problems = find_repeated_keys([{"name": key.name, "sha256": key.sha256} for key in keys])
        if problems:
            raise ConfigError(*problems)
        self._by_digest = {
            bytes.fromhex(key.sha256): (
                key,
                float("inf") if key.expires is None else key.expires.timestamp(),
            )
            for key in keys
        }

    def __iter__(self) -> Any:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, authorization: bytes | None, x_api_key: bytes | None) -> ClientKey | None:
        """The key that a request carries in either header; None where neither is valid."""
        if authorization is not None and authorization[:7].lower() == b"bearer ":
            key = self._find_secret(authorization[7:].strip())
            if key is not None:
                return key
        return None if x_api_key is None else self._find_secret(x_api_key.strip())

    def check_targets(self, names: Iterable[str]) -> None:
        """Check that keys name only targets of this pool.

        Raises:
            ConfigError: Some don't; the message names every one.
        """
        targets = set(names)
        problems = [
            f"the key {key.name!r} allows {unknown}, which the pool doesn't have; its targets are "
            f"{sorted(targets)}"
            for key in self._keys
            if (unknown := sorted(set(key.targets or ()) - targets))
        ]
        if problems:
            raise ConfigError(*problems)

    def _find_secret(self, secret: bytes) -> ClientKey | None:
        entry = self._by_digest.get(sha256(secret).digest())
        return None if entry is None or self._clock() >= entry[1] else entry[0]


def key_budgets(keys: Iterable[ClientKey]) -> tuple[BudgetSettings, ...]:
    """The budgets of keys; once one is spent, its key's requests are refused."""
    budgets = []
    for key in keys:
        if key.dollars_per_hour is not None:
            budgets.append(
                BudgetSettings(dollars=key.dollars_per_hour, per="hour", key=key.name, stop=True)
            )
        if key.dollars_per_day is not None:
            budgets.append(
                BudgetSettings(dollars=key.dollars_per_day, per="day", key=key.name, stop=True)
            )
    return tuple(budgets)


def find_repeated_keys(rows: Iterable[Any]) -> list[str]:
    """The error messages about repeated names and hashes, in rows that may be anything."""
    values_of: dict[str, set[str]] = {"name": set(), "sha256": set()}
    problems = []
    for number, row in enumerate(rows):
        for field, values in values_of.items():
            value = row.get(field) if isinstance(row, dict) else None
            if isinstance(value, str):
                if value in values:
                    problems.append(f"keys.{number}.{field}: is repeated; give each key its own")
                values.add(value)
    return problems


def _parse_day(text: str) -> date | str:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text
