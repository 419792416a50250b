"""Limits of requests: how many of each key, and of all, are in flight, and how many a minute."""

import math
import time
from collections.abc import Callable
from typing import final

from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard.client_keys import ClientKey

ROUNDING = 1e-6
"""The tolerance of limits, in requests and in seconds."""
RETRY_SECONDS = 1
"""A request that was refused for capacity may be sent again after so many."""


class _KeyState:
    __slots__ = ("at", "filled", "under_way")

    def __init__(self, filled: float, at: float) -> None:
        self.filled, self.at, self.under_way = filled, at, 0


@final
class KeyLimits:
    """Each key's requests per minute and concurrent requests.

    The limit per minute is a token bucket that holds a minute's requests and fills evenly. Its
    state survives a reload of the keys.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._states: dict[str, _KeyState] = {}

    def enter(self, key: ClientKey) -> None:
        """Admit a request; `leave` must follow.

        Raises:
            RefusalError: 429 with `retry-after`: the key has reached a limit.
        """
        state = self._state(key)
        if key.concurrent is not None and state.under_way >= key.concurrent:
            raise too_many_at_once(key, state.under_way)
        if key.requests_per_minute is not None:
            self._fill(state, key.requests_per_minute)
            if state.filled < 1 - ROUNDING:
                raise too_many_per_minute(key, state.filled)
            state.filled -= 1
        state.under_way += 1

    def count(self, key: ClientKey) -> None:
        """Count a request that was admitted elsewhere; `leave` must follow."""
        state = self._state(key)
        if key.requests_per_minute is not None:
            self._fill(state, key.requests_per_minute)
            state.filled = max(0.0, state.filled - 1)
        state.under_way += 1

    def leave(self, key: ClientKey) -> None:
        """Record the end of an admitted request."""
        state = self._states.get(key.name)
        if state is not None and state.under_way:
            state.under_way -= 1

    def _state(self, key: ClientKey) -> _KeyState:
        state = self._states.get(key.name)
        if state is None:
            state = _KeyState(math.inf, self._clock())  # full, whatever the limit
            self._states[key.name] = state
        return state

    def _fill(self, state: _KeyState, most: int) -> None:
        now = self._clock()
        state.filled = min(float(most), state.filled + (now - state.at) * most / 60)
        state.at = now


@final
class RequestSlots:
    """Limits the requests in flight in the whole gateway.

    Args:
        most: The most requests.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.under_way = 0

    def enter(self) -> None:
        """Admit a request; `leave` must follow.

        Raises:
            RefusalError: 503 with `retry-after`: the limit is reached.
        """
        if self.under_way >= self.most:
            raise RefusalError(
                f"the gateway has {self.most} requests in flight, its limit; try again soon",
                status=503,
                kind="server_error",
                code="overloaded",
                headers={"retry-after": str(RETRY_SECONDS)},
            )
        self.under_way += 1

    def leave(self) -> None:
        """Record the end of an admitted request."""
        self.under_way -= 1


def too_many_at_once(key: ClientKey, under_way: int) -> RefusalError:
    """The refusal of a request of a key that has as many in flight as it may."""
    limit = f"{under_way} requests in flight, and may have {key.concurrent}"
    message = f"the key {key.name!r} has {limit}; wait for one to end"
    return _too_many(message, code="concurrency_limit_exceeded", seconds=RETRY_SECONDS)


def too_many_per_minute(key: ClientKey, filled: float) -> RefusalError:
    """The refusal of a request of a key whose bucket is filled with less than one request."""
    most = key.requests_per_minute or 1
    message = f"the key {key.name!r} has used its {most} requests per minute; wait and try again"
    seconds = math.ceil((1 - filled) * 60 / most - ROUNDING)
    return _too_many(message, code="rate_limit_exceeded", seconds=seconds)


def _too_many(message: str, *, code: str, seconds: int) -> RefusalError:
    return RefusalError(
        message,
        status=429,
        kind="rate_limit_error",
        code=code,
        headers={"retry-after": str(max(1, seconds))},
    )
