"""What a network computed of prompts' beginnings, in blocks of tokens, bounded by its size.

A block is found by its tokens and the very block before it, never by a hash of them alone, so a
prompt that differs anywhere before it can't find it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import final

import numpy as np
from jaxtyping import Int32
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 64
"""Tokens of a block."""
Ids = Int32[NDArray[np.int32], " token"]
_Key = tuple[int, bytes]
_BEFORE_ALL = 0


@final
@dataclass(frozen=True, eq=False)
class PrefixBlock:
    """What was computed of `BLOCK` tokens after a certain beginning.

    Attributes:
        keys: Of each block of the network that was run, [1, head, token, width].
        values: The same of the values.
        sums: Of the states over all tokens to the end of this block, [layer, hidden].
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    sums: Tensor

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values, self.sums))


@final
class PrefixStore:
    """Blocks of recent prompts; those that weren't used for longest are dropped first.

    Not for use by several threads at once.
    """

    def __init__(self, *, most_bytes: int) -> None:
        """Hold at most so many bytes."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._held: OrderedDict[_Key, tuple[int, PrefixBlock]] = OrderedDict()
        self._numbers = count(_BEFORE_ALL + 1)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """How much memory the blocks take."""
        return self._bytes

    def longest(self, ids: Ids) -> list[PrefixBlock]:
        """The blocks of the longest beginning that is held; at least one token is left over."""
        found = []
        number = _BEFORE_ALL
        for tokens in _whole_blocks(ids, leaving=1):
            held = self._held.get((number, tokens))
            if held is None:
                break
            number, block = held
            found.append(block)
        return found

    def keep(self, ids: Ids, blocks: Sequence[PrefixBlock]) -> None:
        """Hold the blocks of a prompt's beginning, as far as there is room.

        Args:
            ids: The prompt's tokens.
            blocks: Of its first whole blocks, from the first one on.
        """
        used: list[_Key] = []
        number = _BEFORE_ALL
        for tokens, block in zip(_whole_blocks(ids), blocks, strict=False):
            key = (number, tokens)
            if key not in self._held:
                self._held[key] = (next(self._numbers), block)
                self._bytes += block.nbytes
            number = self._held[key][0]
            used.append(key)
        for key in reversed(used):  # the first block last: none outlives the one before it
            self._held.move_to_end(key)
        while self._bytes > self._most_bytes:
            _, (_, dropped) = self._held.popitem(last=False)
            self._bytes -= dropped.nbytes


def _whole_blocks(ids: Ids, *, leaving: int = 0) -> list[bytes]:
    whole = (len(ids) - leaving) // BLOCK
    return [ids[i * BLOCK : (i + 1) * BLOCK].tobytes() for i in range(whole)]
