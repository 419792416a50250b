"""Forwards calls to the targets of a pool."""

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from prefill_router.gateway.forwarding.arrival import Header
from prefill_router.gateway.forwarding.breakers import Breakers, BreakerState
from prefill_router.gateway.forwarding.call import Call
from prefill_router.gateway.forwarding.client import Client, Receive, Send
from prefill_router.gateway.forwarding.lines import Line
from prefill_router.gateway.forwarding.running import Run
from prefill_router.gateway.forwarding.track import Ways
from prefill_router.gateway.settings import Failures
from prefill_router.targets import Pool
from prefill_router.upstream import provider_keys


@final
@dataclass(frozen=True, kw_only=True)
class TargetState:
    """How a target does.

    Attributes:
        breaker: Of its circuit breaker.
        failures: So many calls failed in a row.
        opened: So often its breaker has opened.
        under_way: So many calls of it are under way.
    """

    breaker: BreakerState
    failures: int
    opened: int
    under_way: int


@final
class Forwarder:
    """Forwards calls to the targets of one pool; to be made where the event loop runs.

    Args:
        pool: The targets.
        failures: What is done when one fails.
        breakers: Of its targets; they may outlive it.
        passing: Which of a target's reply headers go to the client.
        environment: Where the keys are; by default the process's environment.

    Raises:
        ConfigError: A key isn't set or is none, a target has no endpoint, or the environment's
            proxies or certificates are unfit.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        failures: Failures,
        breakers: Breakers,
        passing: Callable[[list[Header]], list[Header]],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        keys = provider_keys(pool, os.environ if environment is None else environment)
        lines = {p: Line(p, key, failures=failures) for p, key in keys.items()}
        self._names = pool.names
        self._breakers = breakers
        self._lines = tuple(lines.values())
        self._under_way: Counter[str] = Counter()
        self._ways = Ways(
            lines={name: lines[pool.provider_of(name)] for name in pool.names},
            failures=failures,
            breakers=breakers,
            passing=passing,
            under_way=self._under_way,
            chance=random.Random(),
        )

    async def forward(self, call: Call, receive: Receive, send: Send) -> None:
        """Answer a client, whose request has been read: by a target, or by an error.

        Args:
            call: What is asked; its targets are of the pool.
            receive: Of ASGI; tells when the client leaves.
            send: Of ASGI.
        """
        await Run(self._ways, call, Client(receive, send)).go()

    async def close(self) -> None:
        """Close what is idle, now and from now on; calls under way end by themselves."""
        for line in self._lines:
            await line.close()

    def state(self) -> dict[str, TargetState]:
        """How each target does, by name."""
        opened = self._breakers.opened
        return {
            name: TargetState(
                breaker=self._breakers.state(name),
                failures=self._breakers.failures(name),
                opened=opened.get(name, 0),
                under_way=self._under_way[name],
            )
            for name in self._names
        }
