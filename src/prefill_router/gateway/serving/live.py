"""What a reload replaces, all at once; requests that began with one end with it."""

import asyncio
import json
from typing import final

from prefill_router.gateway.deciding import Costs, Decider, Keepers
from prefill_router.gateway.forecasting import Forecaster
from prefill_router.gateway.forwarding import Forwarder
from prefill_router.gateway.protocol import Passing, Splicer
from prefill_router.gateway.receipts import Keeping, keeping_details, scale_details
from prefill_router.gateway.serving.loading import Loaded
from prefill_router.gateway.settings import Settings
from prefill_router.gateway.words import Endpoint
from prefill_router.targets import Pool, Target
from prefill_router.upstream import identity_parameters


@final
class Live:
    """A router, a pool and settings, and what was made of them.

    Attributes:
        loaded: What was read.
        forecaster: The encoder's process.
        forwarder: The connections to the targets.
        decider: Who chooses.
        keepers: Who keeps stored responses.
        passing: Which headers go on to targets.
        details: What every receipt says of the router's scale of costs and its policy.
        session_details: The same, and by what conversations keep their target.
        users: Requests that go on with it.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        forecaster: Forecaster,
        forwarder: Forwarder,
        decider: Decider,
        keepers: Keepers,
    ) -> None:
        self.loaded, self.forecaster, self.forwarder = loaded, forecaster, forwarder
        self.decider, self.keepers = decider, keepers
        self.passing = Passing(loaded.settings.forward_headers)
        self.details = scale_details(loaded.light.costs.scale, loaded.light.policy)
        self.session_details = {**self.details, **keeping_details(_keeping(loaded))}
        self.models = {target.name: target.model or target.name for target in loaded.pool}
        self._further = {t.name: _further(loaded.pool, t) for t in loaded.pool}
        self.users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self.loaded.settings

    def body_for(
        self, target: str, splicer: Splicer, endpoint: Endpoint, *, ask_usage: bool
    ) -> bytes:
        """A request's body for a target: the client's bytes, with the target's name for its model.

        What makes a target another one than its model, such as its reasoning effort, is added to
        chats that don't say so themselves.
        """
        further = self._further[target] if endpoint == "chat" else None
        return splicer.body_for(self.models[target], ask_usage=ask_usage, further=further)

    def enter(self) -> "Live":
        """One more request goes on with it; `leave` must follow."""
        self.users += 1
        self._unused.clear()
        return self

    def leave(self) -> None:
        """A request has ended."""
        self.users -= 1
        if not self.users:
            self._unused.set()

    async def close(self, *, keep: Forecaster | None = None, seconds: float | None = None) -> None:
        """Wait until nobody uses it, and close what it has.

        Args:
            keep: The forecaster that goes on, where it is the same.
            seconds: It isn't waited for longer; None for as long as it takes.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._unused.wait()
        except TimeoutError:
            pass
        await self.forwarder.close()
        if self.forecaster is not keep:
            await self.forecaster.close()


def _further(pool: Pool, target: Target) -> dict[str, bytes]:
    fields = identity_parameters(target, pool.provider_of(target.name).dialect)
    return {name: json.dumps(value).encode() for name, value in fields.items()}


def _keeping(loaded: Loaded) -> Keeping:
    costs, sessions = Costs(loaded.light.costs), loaded.settings.sessions
    names = loaded.light.pool.names
    return Keeping(
        seconds=sessions.seconds,
        cache_seconds=sessions.cache_seconds,
        margin=sessions.margin,
        ratio=dict(zip(names, costs.ratio.tolist(), strict=True)),
        saved=dict(zip(names, costs.saved.tolist(), strict=True)),
    )
