"""Plain connections on asyncio itself, for servers without TLS: those on one's own machines.

httpcore's own go through anyio, which costs a good part of a short answer. What is written waits
until an answer is waited for, so that a request's head and body go out together. Connections with
TLS are left to httpcore.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, final

import httpcore2

_ALTERNATIVE_SECONDS = 0.25  # until a name's next address is tried too (RFC 8305)
_MOST_WAITING = 2**16  # bytes


@final
class PlainBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect.

        Raises:
            httpcore2.ConnectTimeout: It took longer than `timeout` seconds.
            httpcore2.ConnectError: Nobody answers there.
        """
        del local_address, socket_options
        opening = asyncio.open_connection(host, port, happy_eyeballs_delay=_ALTERNATIVE_SECONDS)
        try:
            async with asyncio.timeout(timeout):
                return _PlainStream(*await opening)
        except TimeoutError as error:  # ours, or the system's
            raise httpcore2.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error


@final
class _PlainStream(httpcore2.AsyncNetworkStream):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: list[bytes] = []

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            if timeout is None:
                return await self._read(max_bytes)
            async with asyncio.timeout(timeout):
                return await self._read(max_bytes)
        except TimeoutError as error:
            raise httpcore2.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._waiting.append(buffer)
        if len(buffer) < _MOST_WAITING:
            return
        try:
            async with asyncio.timeout(timeout):
                await self._flush()
        except TimeoutError as error:
            raise httpcore2.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    async def aclose(self) -> None:
        self._writer.close()

    def get_extra_info(self, info: str) -> Any:
        """Whether there is something to read where nothing should be: an idle connection's end."""
        if info == "is_readable":
            return self._reader.at_eof() or self._reader.exception() is not None
        return None

    async def _read(self, most: int) -> bytes:
        if self._waiting:
            await self._flush()
        return await self._reader.read(most)

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._writer.write(b"".join(waiting))
        await self._writer.drain()
