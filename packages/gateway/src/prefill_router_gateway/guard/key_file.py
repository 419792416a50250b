"""The file that keeps client keys, and how keys are added and removed.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from prefill_router import files
from prefill_router.errors import ConfigError
from prefill_router.yaml_files import read_yaml
from prefill_router_gateway.guard.client_keys import ClientKey, ClientKeys, find_repeated_keys

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
    rows = _read_rows(path)
    keys: list[ClientKey] = []
    problems: list[str] = []
    for number, row in enumerate(rows):
        try:
            keys.append(ClientKey.model_validate(row))
        except ValidationError as error:
            problems.extend(
                f"{_describe_place(number, e['loc'])}: {e['msg']}" for e in error.errors()
            )
    problems.extend(find_repeated_keys(rows))
    if problems:
        raise ConfigError(*(f"{path}: {problem}" for problem in problems))
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
    with _lock_folder(path):
        keys = read_rows(path) if path.exists() else ()
        if any(other.name == key.name for other in keys):
            raise ConfigError(
                f"{path} has a key named {key.name!r}; choose another name, or revoke that key"
            )
        _write_keys(path, (*keys, key))


def remove_key(path: Path, name: str) -> ClientKey:
    """Remove a key from a file.

    Raises:
        ConfigError: The file is invalid, or has no key with that name.
    """
    with _lock_folder(path):
        keys = read_rows(path)
        key = next((other for other in keys if other.name == name), None)
        if key is None:
            names = ", ".join(key.name for key in keys) or "none"
            raise ConfigError(f"{path} has no key named {name!r}; it has {names}")
        _write_keys(path, [other for other in keys if other is not key])
    return key


def _read_rows(path: Path) -> list[Any]:
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


def _describe_place(number: int, loc: tuple[int | str, ...]) -> str:
    is_field = loc and loc[0] in ClientKey.model_fields
    # an unknown field name may be a key in the wrong place
    return ".".join(("keys", str(number), *map(str, loc if is_field else ("(another name)",))))


def _write_keys(path: Path, keys: Sequence[ClientKey]) -> None:
    rows = [key.model_dump(mode="json", exclude_defaults=True) for key in keys]
    text = yaml.safe_dump({"keys": rows}, sort_keys=False)
    files.write_text(path, text, mode=_PRIVATE)


@contextmanager
def _lock_folder(path: Path) -> Iterator[None]:
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
