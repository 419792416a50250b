"""The endpoints of targets that have several: in which order they are called, and their headroom.

A conversation stays at one endpoint, whose prompt cache holds it. Which one follows from the names
alone (weighted rendezvous hashing), so that all replicas agree without sharing anything, and a
change of the pool moves only as many conversations as it must.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from typing import final

from prefill_router.client import limits_left
from prefill_router.gateway.records import Header
from prefill_router.targets import Target

_HASH_BYTES = 8
_UNSAID_SECONDS = 1.0  # the wait after a rate limit where the provider names none
_OF_INPUT = ("tokens", "input-tokens")


@final
class RateHeadroom:
    """What the providers say remains of their rate limits, by deployment; it outlives a pool.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[str, dict[str, tuple[float, float]]] = {}  # what remains, until when

    def observe(self, deployment: str, headers: Iterable[Header]) -> None:
        """Read what remains from the headers of a response."""
        said = {n.decode("latin-1"): v.decode("latin-1") for n, v in headers if b"ratelimit" in n}
        now = self._clock()
        for kind, left, reset in limits_left(said, now=time.time()) if said else ():
            until = now + (_UNSAID_SECONDS if reset is None else reset)
            self._left.setdefault(deployment, {})[kind] = (left, until)

    def refused(self, deployment: str, wait: float | None) -> None:
        """Note that a rate limit refused a call; it may be tried again after so many seconds."""
        until = self._clock() + (_UNSAID_SECONDS if wait is None else wait)
        self._left.setdefault(deployment, {})["refused"] = (0.0, until)

    def lacks(self, deployment: str, tokens: int) -> bool:
        """Whether a request of so many input tokens would pass a rate limit now."""
        limits, now = self._left.get(deployment), self._clock()
        return limits is not None and any(
            left < (max(tokens, 1) if kind in _OF_INPUT else 1) and until > now
            for kind, (left, until) in limits.items()
        )


@final
class DeploymentOrder:
    """In which order the endpoints of a target are called.

    Args:
        target: A target with several endpoints.
        headroom: What remains of their rate limits.
    """

    def __init__(self, target: Target, headroom: RateHeadroom) -> None:
        self._endpoints = [
            (deployment.name, endpoint.priority, endpoint.weight)
            for deployment, endpoint in zip(target.deployments, target.endpoints, strict=True)
        ]
        self._headroom = headroom

    def __call__(self, conversation: str, tokens: int) -> list[str]:
        """Their names, the first to be called first.

        Args:
            conversation: The name of the conversation, or of the request if it has none.
            tokens: Estimated input tokens; deployments whose rate limits they pass come last.
        """
        ranked = sorted(
            (
                self._headroom.lacks(name, tokens),
                priority,
                _distance(conversation, name) / weight,
                name,
            )
            for name, priority, weight in self._endpoints
        )
        return [name for *_, name in ranked]


def _distance(conversation: str, deployment: str) -> float:
    """An exponential variate that is fixed for the two names: the least by weight is first."""
    text = f"{conversation}\0{deployment}".encode("utf-8", "surrogatepass")
    drawn = int.from_bytes(hashlib.sha256(text).digest()[:_HASH_BYTES], "big")
    return -math.log((drawn + 1) / (1 << 8 * _HASH_BYTES))
