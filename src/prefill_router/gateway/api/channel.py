"""Calls between the supervisor and a worker, in both directions, over a pair of sockets.

Each call is a frame of `forecast.messages` with a number, and so is its answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, final

from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.gateway.forecast import FrameError, pack_frame, receive_frame

LONGEST_READ = 1 << 20
Handlers = Mapping[str, Callable[[Any], Awaitable[Any]]]


@final
class Channel:
    """One end.

    Args:
        reader: Where the other end's frames arrive.
        writer: Where frames to the other end are written.
        handlers: What the other end may call, by name.

    Attributes:
        ended: Ends with the other end.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Handlers
    ) -> None:
        self._writer, self._handlers = writer, handlers
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended = asyncio.create_task(self._read(reader))

    async def call(self, name: str, value: Any = None) -> Any:
        """Call the other end.

        Raises:
            ConfigError: It raised an error, whose message this has, or it ended.
        """
        if self.ended.done():
            raise ConfigError("it has ended")
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(pack_frame({"call": number, "name": name, "value": value}))
        try:
            return await future
        finally:
            del self._waiting[number]

    def tell(self, name: str, value: Any) -> None:
        """Call the other end, and ignore its answer."""
        if not self.ended.done():
            self._writer.write(pack_frame({"call": None, "name": name, "value": value}))

    def close(self) -> None:
        """End it."""
        self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                frame = await receive_frame(reader)
                if "name" in frame:
                    task = asyncio.create_task(self._handle(frame))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                else:
                    self._settle(frame)
        except (FrameError, OSError):
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConfigError("it ended meanwhile"))

    def _settle(self, frame: dict[str, Any]) -> None:
        future = self._waiting.get(frame["answer"])
        if future is None or future.done():
            return
        if "error" in frame:
            future.set_exception(ConfigError(*frame["error"]))
        else:
            future.set_result(frame["value"])

    async def _handle(self, frame: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"answer": frame["call"]}
        try:
            answer["value"] = await self._handlers[frame["name"]](frame["value"])
        except PrefillRouterError as error:
            answer["error"] = list(error.told)
        except OSError as error:
            answer["error"] = [str(error)]
        if frame["call"] is not None:
            with suppress(OSError):
                self._writer.write(pack_frame(answer))
