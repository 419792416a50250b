"""An index of content keys by 16-byte digests: 24 bytes for each key, where a dictionary takes 200.

Half of a SHA-256 is enough: among a billion keys, two have equal halves with a chance of 1e-21.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Int, Shaped
from numpy.typing import NDArray

Digests = Shaped[NDArray[np.bytes_], " key"]
"""The digest of each key, of the type S16; they sort like the keys."""
_TYPE = "S16"
_HEXADECIMAL = 64
_AT_ONCE = 1 << 20


def key_digests(keys: Sequence[str]) -> Digests:
    """The first half of each key, which is a SHA-256 in hexadecimal; any other text is hashed."""
    joined = "".join(keys)
    raw = _bytes_of(joined)
    if raw.hex() != joined or any(len(key) != _HEXADECIMAL for key in keys):
        raw = b"".join(map(_digest, keys))
    halves: NDArray[Any] = np.frombuffer(raw, dtype=_TYPE)[::2]
    return halves.copy()


def _digest(key: str) -> bytes:
    raw = _bytes_of(key)
    if len(key) == _HEXADECIMAL and raw.hex() == key:
        return raw
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _bytes_of(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


@final
class KeyIndex:
    """The last position of each key among some, by digest.

    Args:
        digests: The keys' digests; they may repeat.
    """

    def __init__(self, digests: Digests) -> None:
        self._order = np.argsort(digests, kind="stable")
        self._sorted = digests[self._order]

    def __len__(self) -> int:
        """The number of distinct keys."""
        return int((self._sorted[1:] != self._sorted[:-1]).sum()) + bool(len(self._sorted))

    def find(self, digests: Digests) -> Int[NDArray[np.int64], " key"]:
        """The position of each key, or -1 where it is absent."""
        found = np.full(len(digests), -1, dtype=np.int64)
        for start in range(0, len(digests) if len(self._sorted) else 0, _AT_ONCE):
            block = digests[start : start + _AT_ONCE]
            rising = np.argsort(block)  # near keys are searched one after another, ten times faster
            wanted = block[rising]
            place = np.searchsorted(self._sorted, wanted, side="right") - 1
            held = self._sorted[place] == wanted
            found[start + rising[held]] = self._order[place[held]]
        return found

    def holds(self, digests: Digests) -> Bool[NDArray[np.bool_], " key"]:
        """Whether each key is present."""
        present: NDArray[np.bool_] = self.find(digests) >= 0
        return present
