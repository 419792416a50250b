"""Clients' keys: which there are, what each may do, and whose a request bears."""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from typing import Annotated, Any, final

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, field_validator

from prefill_router.errors import ConfigError

_Rate = Annotated[StrictInt, Field(ge=1, le=10_000_000)]
_Dollars = Annotated[float, Field(gt=0)]


@final
class ClientKey(BaseModel):
    """A client's key: its hash, and what it may do.

    Attributes:
        name: What receipts and budgets call it.
        sha256: Of the key, in hexadecimal; the key itself is kept nowhere.
        created: The day it was made.
        requests_per_minute: At most so many requests; None for no limit.
        concurrent: At most so many at once; None for no limit.
        dollars_per_day: What it may spend in a day (UTC); None for no limit.
        dollars_per_hour: The same of an hour.
        targets: Whom its requests may go to; None for all.
        admin: Whether it may also read metrics and the page's numbers, and change settings.
        expires: It is good until then; a day is good until its end (UTC). None for ever.
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

    @field_validator("sha256")
    @classmethod
    def _is_a_hash(cls, value: str) -> str:
        if value.startswith("pr-"):
            raise ValueError("is a key; write its SHA-256 here, or have `key new` do so")
        if len(value) != 64 or set(value) - set("0123456789abcdef"):
            raise ValueError("is no SHA-256: 64 hexadecimal digits, in lower case")
        return value

    @field_validator("expires", mode="before")
    @classmethod
    def _is_a_moment(cls, value: Any) -> Any:
        if isinstance(value, str) and len(value) == len("2026-01-31"):
            value = _day(value)
        if isinstance(value, date) and not isinstance(value, datetime):
            last = datetime(value.year, value.month, value.day, tzinfo=UTC)
            return last + timedelta(days=1) if value < date.max else last
        return value

    @field_validator("expires")
    @classmethod
    def _has_a_zone(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("lacks a time zone, such as the Z of 2026-01-31T12:00:00Z")
        return value


@final
class ClientKeys:
    """The keys that a gateway knows.

    Keys are 256 random bits, so a single SHA-256 keeps them: nobody can try so many, and the slow
    hashes that passwords need would only slow the requests. Looking a hash up in a table tells
    by its time something about hashes at most, and whom a guessed key's hash resembles can't be
    steered; so the time tells nothing about keys.

    Args:
        keys: With distinct names and hashes.
        clock: Seconds since 1970.

    Raises:
        ConfigError: Two keys have one name or one hash.
    """

    def __init__(
        self, keys: Sequence[ClientKey], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._keys = tuple(keys)
        told = repeated([{"name": key.name, "sha256": key.sha256} for key in keys])
        if told:
            raise ConfigError(*told)
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
        """Whose key a request bears, in either of two headers; None for none that is good."""
        if authorization is not None and authorization[:7].lower() == b"bearer ":
            found = self._known(authorization[7:].strip())
            if found is not None:
                return found
        return None if x_api_key is None else self._known(x_api_key.strip())

    def check_targets(self, names: Iterable[str]) -> None:
        """Check that keys name targets of this pool alone.

        Raises:
            ConfigError: Some don't; the message names every one.
        """
        known = set(names)
        told = [
            f"the key {key.name!r} is for {unknown}, which the pool lacks; its targets are "
            f"{sorted(known)}"
            for key in self._keys
            if (unknown := sorted(set(key.targets or ()) - known))
        ]
        if told:
            raise ConfigError(*told)

    def _known(self, key: bytes) -> ClientKey | None:
        found = self._by_digest.get(sha256(key).digest())
        return None if found is None or self._clock() >= found[1] else found[0]


def repeated(rows: Iterable[Any]) -> list[str]:
    """What is said of names and hashes that are there twice, in rows that may be anything."""
    seen: dict[str, set[str]] = {"name": set(), "sha256": set()}
    told = []
    for number, row in enumerate(rows):
        for field, values in seen.items():
            value = row.get(field) if isinstance(row, dict) else None
            if isinstance(value, str):
                if value in values:
                    told.append(f"keys.{number}.{field}: is there twice; give each key its own")
                values.add(value)
    return told


def _day(text: str) -> date | str:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text
