"""Connections whose clients leave, or read nothing: what they wait for ends (uvicorn).

Where requests are piled up, uvicorn tells only the last of them that the client has left, and the
one that is being answered goes on. And it waits for as long as it takes until a client reads.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class LeavingProtocol(HttpToolsProtocol):
    """A connection that ends with its client.

    Attributes:
        most_still: Seconds; a client that takes less than some 50 kB in so long counts as gone.
    """

    most_still: float

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._answering: Any = None  # uvicorn's `cycle` is the last that came
        self._stuck: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self._unstick()
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads too slowly, or nothing."""
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(self.most_still, self._give_up)

    def resume_writing(self) -> None:
        """The client has read."""
        self._unstick()
        super().resume_writing()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _unstick(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _give_up(self) -> None:
        self._stuck = None
        self.transport.abort()  # closing would wait until all is read
