"""Room for the bodies of requests: so many bytes of them are held at once, in all."""

from typing import final

from prefill_router.gateway.refusal import RefusalError

_SOON = 1  # seconds until a body that found no room may come again


@final
class Room:
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
                headers={"retry-after": str(_SOON)},
            )


@final
class Held:
    """The bytes of one request's body.

    Args:
        room: Where they are held.
    """

    __slots__ = ("_room", "_size")

    def __init__(self, room: Room) -> None:
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
