"""Passthrough calls: their answers are forwarded, and only their end is observed."""

from collections.abc import Collection
from typing import Protocol, final, runtime_checkable

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
    401: "unauthorised",  # the gateway's own key or account is refused
    402: "unauthorised",
    403: "unauthorised",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}


def classify_passthrough_refusal(
    refusal: TargetRefusal, *, key: str | None, lacking: Collection[int] = frozenset()
) -> AttemptFailedError:
    """Classify an error response to a passthrough call by its status alone.

    Args:
        refusal: The response.
        key: The target's key; a response that quotes it is never forwarded.
        lacking: The statuses by which a target says that it doesn't support the call.
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


@runtime_checkable
class AnswerStream(Protocol):
    """What a stream passes on its way to the client."""

    @property
    def facts(self) -> ResponseMetadata:
        """What has been read of it."""

    @property
    def sequence_number(self) -> int:
        """The number that the next event of a Responses stream would have."""

    def feed(self, piece: bytes) -> bytes:
        """Take received bytes, and return the bytes to forward."""

    def close(self) -> bytes:
        """Return the remaining bytes to forward at the end of the stream."""


_NAME = b'"sequence_number"'


@final
class PassthroughStream(WholeLines):
    """Takes the place of a `StreamObserver` where the gateway needs nothing from the events.

    Args:
        facts: Marked as done at the end of the stream.
        secret: The target's key, which no line may quote; None for none.

    Attributes:
        facts: Marked as done at the end of the stream.
        sequence_number: The number that the next event of a Responses stream would have.
    """

    def __init__(self, facts: ResponseMetadata, *, secret: bytes | None = None) -> None:
        super().__init__()
        self.facts, self._secret = facts, secret
        self.sequence_number = 0

    def feed(self, piece: bytes) -> bytes:
        """Take received bytes, and return the bytes to forward.

        Raises:
            BrokenResponseError: A line is too long, or quotes the secret.
        """
        whole = self._cut(piece)
        if self._secret is not None and self._secret in whole:
            raise BrokenResponseError("malformed")
        found = SEQUENCE_NUMBER.match(whole, whole.rfind(_NAME)) if _NAME in whole else None
        if found:
            self.sequence_number = int(found[1]) + 1
        return whole

    def close(self) -> bytes:
        """Return the remaining bytes to forward at the end of the stream."""
        self.facts.done = True
        rest = self._rest()
        return b"" if self._secret is not None and self._secret in rest else rest
