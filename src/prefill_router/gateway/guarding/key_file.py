"""The file of clients' keys.

keys:
  - name: alice
    sha256: 5f4d...          # of the key; the key itself is shown once, when it is made
    created: 2026-11-22
    requests_per_minute: 60  # optional, like all that follows
    concurrent: 8
    dollars_per_day: 5
    dollars_per_hour: 1
    targets: [small, large]
    admin: true
    expires: 2027-01-31
"""

import importlib.util
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from prefill_router import files
from prefill_router.errors import ConfigError
from prefill_router.gateway.guarding.keys import ClientKey, ClientKeys, repeated
from prefill_router.yaml_files import read_yaml

_HAS_LOCKS = importlib.util.find_spec("fcntl") is not None  # on Unix
_BITS = 256
_PRIVATE = 0o600


def read_keys(path: Path) -> ClientKeys:
    """The keys of a file.

    Raises:
        ConfigError: The file is missing or can't be used; the message names everything that is
            wrong with it, and quotes nothing of it.
    """
    return ClientKeys(read_rows(path))


def read_rows(path: Path) -> tuple[ClientKey, ...]:
    """The keys of a file, in its order; raises as `read_keys`."""
    rows = _rows(path)
    keys: list[ClientKey] = []
    told: list[str] = []
    for number, row in enumerate(rows):
        try:
            keys.append(ClientKey.model_validate(row))
        except ValidationError as error:
            told.extend(f"{_place(number, e['loc'])}: {e['msg']}" for e in error.errors())
    told.extend(repeated(rows))
    if told:
        raise ConfigError(*(f"{path}: {one}" for one in told))
    return tuple(keys)


def new_key() -> str:
    """A new key: 256 random bits."""
    return f"pr-{secrets.token_urlsafe(_BITS // 8)}"


def digest(key: str) -> str:
    """What a file keeps of a key."""
    return sha256(key.encode()).hexdigest()


def add_key(path: Path, key: ClientKey) -> None:
    """Write a further key to a file, or to a new one.

    Raises:
        ConfigError: The file can't be used, or has a key of that name.
    """
    with _alone(path):
        keys = read_rows(path) if path.exists() else ()
        if any(known.name == key.name for known in keys):
            raise ConfigError(
                f"{path} has a key named {key.name!r}; name this one otherwise, or revoke that one"
            )
        _write(path, (*keys, key))


def remove_key(path: Path, name: str) -> ClientKey:
    """Take a key out of a file.

    Raises:
        ConfigError: The file can't be used, or has no key of that name.
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
        told = str(error)
        if told.startswith("not YAML"):  # which would quote what is around the mistake
            told = "not YAML; see the guide for what it looks like"
        raise ConfigError(f"{path}: {told}") from None
    rows = value.get("keys") if isinstance(value, dict) else None
    if not isinstance(value, dict) or set(value) != {"keys"} or not isinstance(rows, list):
        raise ConfigError(f"{path}: not a file of keys; it has one name, keys, and a list below it")
    return rows


def _place(number: int, loc: tuple[int | str, ...]) -> str:
    known = loc and loc[0] in ClientKey.model_fields
    # a name that isn't known may be a key in the wrong place
    return ".".join(("keys", str(number), *map(str, loc if known else ("(another name)",))))


def _write(path: Path, keys: Sequence[ClientKey]) -> None:
    rows = [key.model_dump(mode="json", exclude_defaults=True) for key in keys]
    text = yaml.safe_dump({"keys": rows}, sort_keys=False)
    files.write_text(path, text, mode=_PRIVATE)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the folder's lock, so that of two commands at once neither loses what the other did."""
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
