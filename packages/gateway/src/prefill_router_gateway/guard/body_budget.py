"""The bytes of bodies that are held at once."""

from typing import final

from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard.key_limits import RETRY_SECONDS


@final
class BodyBudget:
    """Limits the bytes of request bodies that the gateway holds in memory.

    Args:
        most: The most bytes.

    Attributes:
        most: The most bytes; it may be changed while bytes are held.
        held_bytes: The bytes that are held.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held_bytes = 0

    def check(self, size: int) -> None:
        """Check that this many more bytes fit, without reserving them.

        Raises:
            RefusalError: 503 with `retry-after`: they don't fit.
        """
        if self.held_bytes + size > self.most:
            raise RefusalError(
                f"the body doesn't fit the {self.most} bytes that the gateway may hold of all "
                "requests (limits.held_bytes); try again soon, or send a shorter one",
                status=503,
                kind="server_error",
                code="overloaded",
                headers={"retry-after": str(RETRY_SECONDS)},
            )


@final
class BodyReservation:
    """The bytes reserved for one request's body.

    Args:
        budget: The memory for bodies.
    """

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget, self._size = budget, 0

    def add(self, size: int) -> None:
        """Reserve memory for a received piece; `free` must follow.

        Raises:
            RefusalError: 503, it doesn't fit.
        """
        self._budget.check(size)
        self._budget.held_bytes += size
        self._size += size

    def free(self) -> None:
        """Release the memory when the body is no longer needed. Further calls do nothing."""
        self._budget.held_bytes -= self._size
        self._size = 0
