"""What a gateway does as it starts or reloads, before it serves.

It checks what several workers can't serve without shared state and what a reload can't change,
makes the forecasters with their encoders' processes, and restores spending and conversations from
receipts.
"""

import time
from operator import attrgetter

from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router_gateway.decide import Budgets, SessionRow, Sessions, TargetSpeeds
from prefill_router_gateway.forecast import Forecaster, NoForecaster
from prefill_router_gateway.receipts import (
    RecentRequests,
    SessionTurn,
    recent,
    sessions_since,
    spend_since,
)
from prefill_router_gateway.runtime.configuration import (
    GatewayPaths,
    LoadedGateway,
    encoder_socket,
)
from prefill_router_gateway.runtime.snapshot import Snapshot
from prefill_router_gateway.settings import GatewaySettings

AnyForecaster = Forecaster | NoForecaster


async def make_forecasters(
    loaded: LoadedGateway, places: GatewayPaths, before: Snapshot | None
) -> tuple[LoadedGateway, list[AnyForecaster]]:
    """Make the router's forecaster and the candidate's, or reuse those of the same routers.

    Returns:
        What was loaded, without the candidate if its encoder can't be started; and the forecasters.

    Raises:
        ConfigError: The router's encoder can't be started, or the router was replaced meanwhile.
    """
    forecaster = await _make_forecaster(loaded, places, before)
    if loaded.candidate is None:
        return loaded, [forecaster]
    try:
        return loaded, [forecaster, await _make_forecaster(loaded.candidate, places, before)]
    except (PrefillRouterError, OSError) as error:
        version = loaded.candidate.version
        return loaded.without_candidate(f"version {version}: {error}"), [forecaster]


async def _make_forecaster(
    loaded: LoadedGateway, places: GatewayPaths, before: Snapshot | None
) -> AnyForecaster:
    for snapshot in () if before is None else before.each:
        same = snapshot.loaded.light.fingerprint == loaded.light.fingerprint
        if same and _queue_sizes(snapshot.settings) == _queue_sizes(loaded.settings):
            return snapshot.forecaster
    if loaded.router is None:
        return NoForecaster()
    routing = loaded.settings.routing
    forecaster = Forecaster(
        loaded.router,
        sources=places.encoder_sources,
        shared=None if places.encoders is None else encoder_socket(places.encoders, loaded),
        max_queue=routing.max_queue,
        max_batch=routing.max_batch,
        cache_entries=routing.cache_entries,
        reuse_bytes=routing.reuse_bytes,
        threads=places.threads,
    )
    await forecaster.start()
    if forecaster.hello.fingerprint != loaded.light.fingerprint:
        await forecaster.close()
        raise ConfigError(f"{loaded.router} was replaced while it was being loaded; try again")
    return forecaster


def _queue_sizes(settings: GatewaySettings) -> tuple[int, ...]:
    routing = settings.routing
    return routing.max_queue, routing.max_batch, routing.cache_entries, routing.reuse_bytes


_DAY = 86_400
_SHOWN = 500


def warm_start(
    url: str,
    settings: GatewaySettings,
    *,
    budgets: Budgets,
    latest: RecentRequests,
    speeds: TargetSpeeds,
    sessions: Sessions,
) -> None:
    """Restore the day's spending, the latest requests and the conversations from receipts.

    Args:
        url: The URL of the receipts.
        settings: The settings.
        budgets: Gets the day's spending; where replicas share it, their database has it.
        latest: Gets the latest requests.
        speeds: Gets their durations, where `routing.latency` is set.
        sessions: Gets the conversations.

    Raises:
        StoreError: The receipts can't be read.
    """
    now = time.time()
    if settings.shared.url is None:
        spending = spend_since(url, now - now % _DAY)
        budgets.restore((request.key, request.at, request.cost) for request in spending)
    receipts = recent(url, _SHOWN)
    latest.fill(reversed(receipts))
    for receipt in reversed(receipts) if settings.routing.latency is not None else ():
        speeds.observe(receipt)
    # tool calls and stored responses may be continued long after the session's end
    since = now - max(_DAY, settings.sessions.seconds)
    sessions.restore(map(_session_row, sessions_since(url, since)))


def _session_row(turn: SessionTurn) -> SessionRow:
    return (
        turn.session,
        turn.target,
        turn.tokens,
        turn.at,
        turn.tool_calls,
        turn.response_id,
        turn.key,
        turn.deployment,
    )


def needs_shared_state(loaded: LoadedGateway) -> list[str]:
    """What would be wrong if several processes served and shared no state; empty if nothing."""
    settings, pool = loaded.settings, loaded.pool
    keys = [
        key
        for key in loaded.keys or ()
        if (key.requests_per_minute, key.concurrent, key.dollars_per_hour, key.dollars_per_day)
        != (None,) * 4
    ]
    tools = sum("tools" in target.accepts for target in pool)
    storing = sum("responses" in pool.serves(name) for name in pool.names)
    needs = {
        "budgets": bool(settings.budgets),
        "limits of keys": bool(keys),
        "conversations (sessions.known_by isn't none)": settings.sessions.known_by != "none",
        f"tool loops ({tools} targets accept tools)": tools > 1,
        f"stored responses ({storing} targets serve responses)": storing > 1,
    }
    return [name for name, is_needed in needs.items() if is_needed]


def refuse_unshared(loaded: LoadedGateway) -> None:
    """Check that several workers may serve.

    Raises:
        ConfigError: They would need state that they don't share; the message says which.
    """
    missing = needs_shared_state(loaded)
    if missing and loaded.settings.shared.url is None:
        raise ConfigError(
            f"several workers would each have their own {', '.join(missing)}; share them through "
            "PostgreSQL with shared: {url: postgresql://...}, do without them, or serve with one "
            "worker"
        )


_STATIC = (
    "listen",
    "logs",
    "traces",
    "receipts.url",
    "receipts.keep_days",
    "receipts.wait_seconds",
    "receipts.max_queue",
    "learning.keep_days",
    "shared",
    "limits.header_bytes",
    "limits.connections",
    "limits.waiting_per_address",
    "limits.held_bytes",
)


def static_changes(first: GatewaySettings, reloaded: GatewaySettings) -> tuple[str, ...]:
    """A warning about changed settings that a reload can't apply; empty if there are none.

    Args:
        first: The settings that the gateway was started with.
        reloaded: The settings that were reloaded.
    """
    changed = [n for n in _STATIC if attrgetter(n)(first) != attrgetter(n)(reloaded)]
    if not changed:
        return ()
    return (f"{', '.join(changed)}: changed, but only a restart of the gateway applies it",)
