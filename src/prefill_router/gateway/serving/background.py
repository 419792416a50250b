"""A gateway in a thread of this process: for notebooks, tests, and programs with one inside."""

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from prefill_router.errors import PrefillRouterError
from prefill_router.gateway.serving.app import guarded_app
from prefill_router.gateway.serving.gateway import Gateway
from prefill_router.gateway.serving.loading import Loaded, load
from prefill_router.gateway.serving.places import Places
from prefill_router.gateway.serving.running import (
    Server,
    address_of,
    listening,
    server_config,
)


@final
@dataclass(frozen=True)
class Running:
    """A gateway that answers.

    Attributes:
        address: Where, such as `http://127.0.0.1:8080`.
    """

    address: str

    @property
    def base_url(self) -> str:
        """For clients: the address, with `/v1`."""
        return f"{self.address}/v1"


@contextmanager
def serving_gateway(
    router: Path | str,
    *,
    pool: Path | str,
    config: Path | str | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[Running]:
    """Serve until the block ends; nothing is logged, and no signal is heard.

    Args:
        router: The router's folder.
        pool: The pool file: who is asked, and the variables of their keys.
        config: The settings' file.
        settings: Settings that come before it, by part: `{"routing": {"lam": 0.7}}`. Without a
            port a free one is taken.

    Raises:
        ConfigError: Something can't be used, and the message names everything that can't; or the
            address can't be listened on.
        StoreError: The receipts can't be opened.
    """
    given = dict(settings or {})
    given["listen"] = {"port": 0, **given.get("listen", {})}
    places = Places(
        router=Path(router),
        pool=Path(pool),
        config=None if config is None else Path(config),
        overrides=given,
    )
    loaded = load(places)
    with listening(loaded.settings.listen) as place:
        thread = _Thread(places, loaded, place)
        thread.start()
        try:
            thread.await_ready()
            yield Running(address_of(loaded.settings.listen, place))
        finally:
            thread.end()


@final
class _Thread(threading.Thread):
    """A gateway's thread: it ends when it is told to, or when it can't begin."""

    def __init__(self, places: Places, loaded: Loaded, place: socket.socket) -> None:
        super().__init__(name="gateway", daemon=True)
        self._places, self._loaded, self._place = places, loaded, place
        self._settled = threading.Event()
        self._server: Server | None = None
        self._failure: PrefillRouterError | OSError | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except (PrefillRouterError, OSError) as error:
            self._failure = error
        finally:
            self._settled.set()

    async def _serve(self) -> None:
        gateway = Gateway(self._places, self._loaded)
        try:
            await gateway.start()
            config = server_config(guarded_app(gateway, self._loaded), self._loaded.settings)
            self._server = Server(
                config,
                self._settled.set,
                end_soon=lambda: 0.0,
                drain_seconds=self._loaded.settings.listen.drain_seconds,
            )
            await self._server.serve(sockets=[self._place])
        finally:
            await gateway.close()

    def await_ready(self) -> None:
        """Wait until it answers; what kept it from that is raised."""
        self._settled.wait()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Have it end, and wait for that."""
        if self._server is not None:
            self._server.should_exit = True
        self.join()
