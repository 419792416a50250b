"""A call from one process of a gateway to another always gets an answer."""

import asyncio
import logging
import socket
from typing import Any

import pytest

from prefill_router.errors import ConfigError
from prefill_router_gateway.api.worker import Channel, Handlers


async def connect_channels(handlers: Handlers) -> tuple[Channel, Channel]:
    """Connect two channels; the second calls these handlers."""
    ends = [await asyncio.open_connection(sock=end) for end in socket.socketpair()]
    return Channel(*ends[0], {}), Channel(*ends[1], handlers)


def test_every_call_is_answered_or_told_what_went_wrong(caplog: pytest.LogCaptureFixture) -> None:
    async def double(value: Any) -> Any:
        return 2 * value

    async def refuse(_: Any) -> None:
        raise ConfigError("there is no such router")

    async def fail(value: Any) -> None:
        raise KeyError(value)

    async def work() -> None:
        ours, theirs = await connect_channels({"a": double, "b": refuse, "c": fail})
        async with asyncio.timeout(20):
            assert await ours.call("a", 4) == 8
            with pytest.raises(ConfigError, match="no such router"):
                await ours.call("b")
            ours.tell("c", "a secret")
            with pytest.raises(ConfigError, match="failed with KeyError") as caught:
                await ours.call("c", "a secret")
            assert "a secret" not in str(caught.value)
            theirs.close()
            with pytest.raises(ConfigError, match="ended"):
                await ours.call("a", 4)
            ours.close()
            await asyncio.wait([ours.ended, theirs.ended])

    with caplog.at_level(logging.ERROR):
        asyncio.run(work())
    assert [record.getMessage() for record in caplog.records] == (
        ["a call of another process failed"] * 2
    )
