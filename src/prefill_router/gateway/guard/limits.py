"""How much each key may ask, and how much the gateway takes on at once.

That is requests under way, and bytes of their bodies.
"""

import math
import time
from collections.abc import Callable, Iterable
from typing import final

from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.guard.client_keys import ClientKey
from prefill_router.gateway.settings import BudgetSettings

_ROUNDING = 1e-6  # of requests, and of seconds
_SOON = 1  # seconds until a request that found no room may come again


class _KeyState:
    __slots__ = ("at", "filled", "under_way")

    def __init__(self, filled: float, at: float) -> None:
        self.filled, self.at, self.under_way = filled, at, 0


@final
class KeyLimits:
    """Requests per minute and at once, of each key.

    The minute is a bucket: it holds as many requests as are allowed, and fills evenly. What is
    known of a key goes on when the file of keys is read again.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._states: dict[str, _KeyState] = {}

    def enter(self, key: ClientKey) -> None:
        """Let a request through; `leave` must follow.

        Raises:
            RefusalError: 429, with `retry-after`: the key has no room for it.
        """
        state = self._state(key)
        if key.concurrent is not None and state.under_way >= key.concurrent:
            raise _too_many(
                f"the key {key.name!r} has {state.under_way} requests under way, of "
                f"{key.concurrent} at once; wait for one to end",
                code="concurrency_limit_exceeded",
                seconds=_SOON,
            )
        if key.requests_per_minute is not None:
            self._take(state, key.requests_per_minute, key.name)
        state.under_way += 1

    def leave(self, key: ClientKey) -> None:
        """A request that was let through has ended."""
        state = self._states.get(key.name)
        if state is not None and state.under_way:
            state.under_way -= 1

    def _state(self, key: ClientKey) -> _KeyState:
        state = self._states.get(key.name)
        if state is None:
            state = _KeyState(math.inf, self._clock())  # full, whatever the limit is
            self._states[key.name] = state
        return state

    def _take(self, state: _KeyState, most: int, name: str) -> None:
        now = self._clock()
        state.filled = min(float(most), state.filled + (now - state.at) * most / 60)
        state.at = now
        if state.filled < 1 - _ROUNDING:
            raise _too_many(
                f"the key {name!r} may ask {most} times a minute, and has done so",
                code="rate_limit_exceeded",
                seconds=math.ceil((1 - state.filled) * 60 / most - _ROUNDING),
            )
        state.filled -= 1


@final
class RequestSlots:
    """Requests under way in the whole gateway.

    Args:
        most: At most so many.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.under_way = 0

    def enter(self) -> None:
        """Let a request through; `leave` must follow.

        Raises:
            RefusalError: 503, with `retry-after`: there is no room for it.
        """
        if self.under_way >= self.most:
            raise RefusalError(
                f"the gateway has {self.most} requests under way and takes no more; ask again soon",
                status=503,
                kind="server_error",
                code="overloaded",
                headers={"retry-after": str(_SOON)},
            )
        self.under_way += 1

    def leave(self) -> None:
        """A request that was let through has ended."""
        self.under_way -= 1


def key_budgets(keys: Iterable[ClientKey]) -> tuple[BudgetSettings, ...]:
    """The budgets that keys say: what is asked once all is spent is refused."""
    found = []
    for key in keys:
        if key.dollars_per_hour is not None:
            found.append(
                BudgetSettings(dollars=key.dollars_per_hour, per="hour", key=key.name, stop=True)
            )
        if key.dollars_per_day is not None:
            found.append(
                BudgetSettings(dollars=key.dollars_per_day, per="day", key=key.name, stop=True)
            )
    return tuple(found)


def _too_many(message: str, *, code: str, seconds: int) -> RefusalError:
    return RefusalError(
        message,
        status=429,
        kind="rate_limit_error",
        code=code,
        headers={"retry-after": str(max(1, seconds))},
    )


_BODY_RETRY_SECONDS = 1  # seconds until a body that found no room may come again


@final
class BodyBudget:
    """Bytes of bodies that the gateway holds, of all requests.

    Args:
        most: At most so many.

    Attributes:
        most: The same; it may be set anew, and what is held stays.
        held: So many are.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def check(self, size: int) -> None:
        """Check that there is room for so many bytes more, without taking it.

        Raises:
            RefusalError: 503, with `retry-after`: there isn't.
        """
        if self.held + size > self.most:
            raise RefusalError(
                f"the gateway holds as many bytes of requests as it may, {self.most} "
                "(limits.held_bytes), and has no room for this one; ask again soon, or send less",
                status=503,
                kind="server_error",
                code="overloaded",
                headers={"retry-after": str(_BODY_RETRY_SECONDS)},
            )


@final
class BodyReservation:
    """The bytes of one request's body.

    Args:
        room: Where they are held.
    """

    __slots__ = ("_room", "_size")

    def __init__(self, room: BodyBudget) -> None:
        self._room, self._size = room, 0

    def add(self, size: int) -> None:
        """Take room for a piece that has come; `free` must follow.

        Raises:
            RefusalError: 503, there is none.
        """
        self._room.check(size)
        self._room.held += size
        self._size += size

    def free(self) -> None:
        """Nobody needs the body any more. Further calls do nothing."""
        self._room.held -= self._size
        self._size = 0
