"""JSON files that carry the SHA-256 of their own bytes, so that any flipped byte shows."""

import hashlib
import json
from pathlib import Path
from typing import Any

from prefill_router import files
from prefill_router.errors import CorruptError

_FIELD = "sha256"
_BLANK = "0" * 64


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object with the digest of the file itself, whole or not at all."""
    body = json.dumps({_FIELD: _BLANK, **value}, allow_nan=False, ensure_ascii=True) + "\n"
    digest = hashlib.sha256(body.encode()).hexdigest()
    files.write_text(path, body.replace(_BLANK, digest, 1))


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_sealed` wrote.

    Raises:
        CorruptError: The file is missing, or isn't byte for byte what was written.
    """
    try:
        content = path.read_bytes()
        value = json.loads(content)
    except FileNotFoundError:
        raise CorruptError(f"{path} is missing; copy or make the store again") from None
    except (ValueError, RecursionError):  # not UTF-8, or not JSON
        raise CorruptError(f"{path} isn't JSON any more; {_FIX}") from None
    digest = value.get(_FIELD) if isinstance(value, dict) else None
    if not isinstance(digest, str) or len(digest) != len(_BLANK):
        raise CorruptError(f"{path} doesn't carry its SHA-256; {_FIX}")
    blanked = content.replace(digest.encode(), _BLANK.encode(), 1)
    if hashlib.sha256(blanked).hexdigest() != digest:
        raise CorruptError(f"{path} isn't what was written (its SHA-256 differs); {_FIX}")
    del value[_FIELD]
    return dict(value)


_FIX = "copy it again, or remove it and go on with: prefill-router encode"
