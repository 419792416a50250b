"""Calls whose answers are passed on as they are: nothing is read of them but how they end."""

from collections.abc import Collection
from typing import final

from prefill_router.client import ErrorBody
from prefill_router.gateway.errors import BrokenResponseError
from prefill_router.gateway.proxy.failures import (
    RETRIED,
    AttemptFailedError,
    TargetRefusal,
    refused_wait,
)
from prefill_router.gateway.proxy.response_metadata import (
    SEQUENCE_NUMBER,
    ResponseMetadata,
    WholeLines,
)
from prefill_router.gateway.records import AttemptEnd

_FIRST_OF_CLIENTS, _FIRST_OF_SERVERS = 400, 500
_PLAIN_ENDS: dict[int, AttemptEnd] = {
    401: "unauthorised",  # it is the gateway's own key that is wrong, or its account
    402: "unauthorised",
    403: "unauthorised",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}


def classify_passthrough_refusal(
    refusal: TargetRefusal, *, key: str | None, lacking: Collection[int] = frozenset()
) -> AttemptFailedError:
    """The same of a plain call, of whose reply nothing but the status is read.

    Args:
        refusal: The reply.
        key: The target's key; a reply that quotes it is never passed on.
        lacking: The statuses of targets that have no such call.
    """
    status = refusal.status
    end: AttemptEnd
    if status in lacking:
        end = "unknown_call"
    elif status in _PLAIN_ENDS:
        end = _PLAIN_ENDS[status]
    elif _FIRST_OF_CLIENTS <= status < _FIRST_OF_SERVERS:
        quotes = key is not None and key.encode() in refusal.body
        end = "unauthorised" if quotes else "refused"
    else:
        end = "server_error" if status >= _FIRST_OF_SERVERS else "malformed"
    return AttemptFailedError(
        end,
        status=status,
        wait=refused_wait(ErrorBody(), refusal.headers) if end in RETRIED else None,
        refusal=refusal if end == "refused" else None,
    )


_NAME = b'"sequence_number"'


@final
class PassthroughStream(WholeLines):
    """In place of a `StreamObserver`, where what an event says concerns nobody but the client.

    Args:
        facts: Told where the stream has come to its end.
        secret: What no line may quote; None for nothing.

    Attributes:
        facts: The same.
        sequence_number: The number that the next event of a Responses stream would have.
    """

    def __init__(self, facts: ResponseMetadata, *, secret: bytes | None = None) -> None:
        super().__init__()
        self.facts, self._secret = facts, secret
        self.sequence_number = 0

    def feed(self, piece: bytes) -> bytes:
        """What to hand on, now that this has come.

        Raises:
            BrokenResponseError: A line has no end, or quotes the secret.
        """
        whole = self._cut(piece)
        if self._secret is not None and self._secret in whole:
            raise BrokenResponseError("malformed")
        found = SEQUENCE_NUMBER.match(whole, whole.rfind(_NAME)) if _NAME in whole else None
        if found:
            self.sequence_number = int(found[1]) + 1
        return whole

    def close(self) -> bytes:
        """What is left to hand on where the stream has ended as streams do."""
        self.facts.done = True
        rest = self._rest()
        return b"" if self._secret is not None and self._secret in rest else rest
