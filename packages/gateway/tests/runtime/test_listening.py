"""The socket that a gateway listens on."""

import asyncio
import socket

import pytest

from prefill_router.errors import ConfigError
from prefill_router_gateway.api.server import listening
from prefill_router_gateway.settings import ListenSettings


def test_small_pieces_are_sent_at_once_in_any_loop() -> None:
    async def read_option() -> int:
        options: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            place = writer.get_extra_info("socket")
            options.set_result(place.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        place = listening(ListenSettings(port=0))
        server = await asyncio.start_server(accept, sock=place)
        _, writer = await asyncio.open_connection(*place.getsockname())
        try:
            return await options
        finally:
            writer.close()
            await writer.wait_closed()
            server.close()
            await server.wait_closed()

    assert asyncio.run(read_option()) == 1


def test_an_address_that_is_taken_is_named_with_what_would_do() -> None:
    with listening(ListenSettings(port=0)) as place:
        place.listen()
        port = place.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1, port {port}: .*--port"):
            listening(ListenSettings(port=port))
