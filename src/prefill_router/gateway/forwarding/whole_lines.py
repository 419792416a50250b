"""A stream that is handed on as it comes, in whole lines, and of which nothing else is read."""

import re
from typing import final

from prefill_router.gateway.forwarding.arrival import BrokenError
from prefill_router.gateway.forwarding.facts import Facts

_LONGEST = 2**26  # bytes of a line, as in `watch`
_NAME = b'"sequence_number"'
_number = re.compile(rb'"sequence_number"\s*:\s*(\d{1,15})').match


@final
class WholeLines:
    """In place of a `Watch`, where what an event says is nobody's concern but the client's.

    Args:
        facts: Told where the stream has come to its end.
        secret: What no line may quote; None for nothing.

    Attributes:
        facts: The same.
        sequence_number: The number that the next event of a Responses stream would have.
    """

    def __init__(self, facts: Facts, *, secret: bytes | None = None) -> None:
        self.facts, self._secret = facts, secret
        self.sequence_number = 0
        self._tail: list[bytes] = []
        self._tail_bytes = 0

    def feed(self, piece: bytes) -> bytes:
        """What to hand on, now that this has come.

        Raises:
            BrokenError: A line has no end, or quotes the secret.
        """
        cut = piece.rfind(b"\n") + 1
        whole = b"".join((*self._tail, piece[:cut])) if cut else b""
        if cut:
            self._tail, self._tail_bytes = [], 0
        self._tail.append(piece[cut:])
        self._tail_bytes += len(piece) - cut
        if self._tail_bytes > _LONGEST or (self._secret is not None and self._secret in whole):
            raise BrokenError("malformed")
        found = _number(whole, whole.rfind(_NAME)) if _NAME in whole else None
        if found:
            self.sequence_number = int(found[1]) + 1
        return whole

    def close(self) -> bytes:
        """What is left to hand on where the stream has ended as streams do."""
        self.facts.done = True
        rest = b"".join(self._tail)
        return b"" if self._secret is not None and self._secret in rest else rest
