"""Client keys: what each may do, which one a request carries, and the file that keeps them.

keys:
  - name: alice
    sha256: 5f4d...          # the key's hash; the key itself is shown once, when it is made
    created: 2026-11-22
    requests_per_minute: 60  # optional, like everything below
    concurrent: 8
    dollars_per_day: 5
    dollars_per_hour: 1
    targets: [small, large]
    admin: true
    expires: 2027-01-31
    learning: false
"""

import importlib.util
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, final

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    field_validator,
)

from prefill_router import files
from prefill_router.client import is_loopback
from prefill_router.errors import ConfigError
from prefill_router.gateway.settings import BudgetSettings, ListenSettings
from prefill_router.yaml_files import read_yaml

_Rate = Annotated[StrictInt, Field(ge=1, le=10_000_000)]
_Dollars = Annotated[float, Field(gt=0)]


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
            value = _day(value)
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
        problems = repeated_keys([{"name": key.name, "sha256": key.sha256} for key in keys])
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
            found = self._known(authorization[7:].strip())
            if found is not None:
                return found
        return None if x_api_key is None else self._known(x_api_key.strip())

    def check_targets(self, names: Iterable[str]) -> None:
        """Check that keys name only targets of this pool.

        Raises:
            ConfigError: Some don't; the message names every one.
        """
        known = set(names)
        problems = [
            f"the key {key.name!r} allows {unknown}, which the pool doesn't have; its targets are "
            f"{sorted(known)}"
            for key in self._keys
            if (unknown := sorted(set(key.targets or ()) - known))
        ]
        if problems:
            raise ConfigError(*problems)

    def _known(self, key: bytes) -> ClientKey | None:
        found = self._by_digest.get(sha256(key).digest())
        return None if found is None or self._clock() >= found[1] else found[0]


def key_budgets(keys: Iterable[ClientKey]) -> tuple[BudgetSettings, ...]:
    """The budgets of keys; once one is spent, its key's requests are refused."""
    found = []
    for key in keys:
        if key.dollars_per_hour is not None:
            found.append(
                BudgetSettings(dollars=key.dollars_per_hour, per="hour", key=key.name, stop=True)
            )
        if key.dollars_per_day is not None:
            found.append(
                BudgetSettings(dollars=key.dollars_per_day, per="day", key=key.name, stop=True)
            )
    return tuple(found)


def check_listen(listen: ListenSettings, keys: ClientKeys | None) -> None:
    """Check that only this machine can reach the gateway, or that keys are required.

    Raises:
        ConfigError: It would listen on an address other than loopback without keys, or a name in
            `hosts` isn't a host name.
    """
    if keys is None and not is_loopback(listen.host):
        raise ConfigError(
            f"listen.host is {listen.host!r}, which others can reach, and there are no keys; make "
            "one with `prefill-router key new NAME --file keys.yaml` and set keys to that file, or "
            "listen on 127.0.0.1"
        )
    wrong = [name for name in listen.hosts if not name or set(name) & set("/*@ ") or "://" in name]
    if wrong:
        raise ConfigError(
            f"listen.hosts has {wrong}; give host names as clients use them, such as "
            "gateway.example"
        )


def repeated_keys(rows: Iterable[Any]) -> list[str]:
    """The error messages about repeated names and hashes, in rows that may be anything."""
    seen: dict[str, set[str]] = {"name": set(), "sha256": set()}
    problems = []
    for number, row in enumerate(rows):
        for field, values in seen.items():
            value = row.get(field) if isinstance(row, dict) else None
            if isinstance(value, str):
                if value in values:
                    problems.append(f"keys.{number}.{field}: is repeated; give each key its own")
                values.add(value)
    return problems


def _day(text: str) -> date | str:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text


_HAS_LOCKS = importlib.util.find_spec("fcntl") is not None  # on Unix
_BITS = 256
_PRIVATE = 0o600


def read_keys(path: Path) -> ClientKeys:
    """Read the keys of a file.

    Raises:
        ConfigError: The file is missing or invalid; the message lists every problem and quotes
            nothing of the file.
    """
    return ClientKeys(read_rows(path))


def read_rows(path: Path) -> tuple[ClientKey, ...]:
    """Read the keys of a file, in its order; raises as `read_keys`."""
    rows = _rows(path)
    keys: list[ClientKey] = []
    problems: list[str] = []
    for number, row in enumerate(rows):
        try:
            keys.append(ClientKey.model_validate(row))
        except ValidationError as error:
            problems.extend(f"{_place(number, e['loc'])}: {e['msg']}" for e in error.errors())
    problems.extend(repeated_keys(rows))
    if problems:
        raise ConfigError(*(f"{path}: {one}" for one in problems))
    return tuple(keys)


def new_key() -> str:
    """A new key: 256 random bits."""
    return f"pr-{secrets.token_urlsafe(_BITS // 8)}"


def digest(key: str) -> str:
    """The hash of a key, as a file keeps it."""
    return sha256(key.encode()).hexdigest()


def add_key(path: Path, key: ClientKey) -> None:
    """Add a key to a file; the file is made if it doesn't exist.

    Raises:
        ConfigError: The file is invalid, or already has a key with that name.
    """
    with _alone(path):
        keys = read_rows(path) if path.exists() else ()
        if any(known.name == key.name for known in keys):
            raise ConfigError(
                f"{path} has a key named {key.name!r}; choose another name, or revoke that key"
            )
        _write(path, (*keys, key))


def remove_key(path: Path, name: str) -> ClientKey:
    """Remove a key from a file.

    Raises:
        ConfigError: The file is invalid, or has no key with that name.
    """
    with _alone(path):
        keys = read_rows(path)
        found = next((key for key in keys if key.name == name), None)
        if found is None:
            names = ", ".join(key.name for key in keys) or "none"
            raise ConfigError(f"{path} has no key named {name!r}; it has {names}")
        _write(path, [key for key in keys if key is not found])
    return found


def _rows(path: Path) -> list[Any]:
    try:
        value = read_yaml(path)
    except ConfigError as error:
        problem = str(error)
        if problem.startswith("not YAML"):  # this message would quote the text around the mistake
            problem = "not YAML; the guide shows the format"
        raise ConfigError(f"{path}: {problem}") from None
    rows = value.get("keys") if isinstance(value, dict) else None
    if not isinstance(value, dict) or set(value) != {"keys"} or not isinstance(rows, list):
        raise ConfigError(f"{path}: not a file of keys; it must have only keys, with a list")
    return rows


def _place(number: int, loc: tuple[int | str, ...]) -> str:
    known = loc and loc[0] in ClientKey.model_fields
    # an unknown field name may be a key in the wrong place
    return ".".join(("keys", str(number), *map(str, loc if known else ("(another name)",))))


def _write(path: Path, keys: Sequence[ClientKey]) -> None:
    rows = [key.model_dump(mode="json", exclude_defaults=True) for key in keys]
    text = yaml.safe_dump({"keys": rows}, sort_keys=False)
    files.write_text(path, text, mode=_PRIVATE)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the folder's lock, so that concurrent commands don't lose each other's changes."""
    files.check_place(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not _HAS_LOCKS:
        yield
        return
    import fcntl

    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
