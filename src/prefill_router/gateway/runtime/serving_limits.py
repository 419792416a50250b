"""What several workers can't serve without shared state, and what a reload can't change."""

from operator import attrgetter

from prefill_router.errors import ConfigError
from prefill_router.gateway.runtime.configuration import LoadedGateway
from prefill_router.gateway.settings import GatewaySettings


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
    found = {
        "budgets": bool(settings.budgets),
        "limits of keys": bool(keys),
        "conversations (sessions.known_by isn't none)": settings.sessions.known_by != "none",
        f"tool loops ({tools} targets accept tools)": tools > 1,
        f"stored responses ({storing} targets serve responses)": storing > 1,
    }
    return [name for name, is_needed in found.items() if is_needed]


def refuse_unshared(loaded: LoadedGateway) -> None:
    """Check that several workers may serve.

    Raises:
        ConfigError: They would need state that they don't share; the message says which.
    """
    shared = getattr(loaded.settings, "shared", None)
    missing = needs_shared_state(loaded)
    if missing and getattr(shared, "url", None) is None:
        raise ConfigError(
            f"several workers would each have their own {', '.join(missing)}; share them through "
            "PostgreSQL with shared: {url: postgresql://...}, do without them, or serve with one "
            "worker"
        )


_LASTING = (
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


def static_changes(begun: GatewaySettings, read: GatewaySettings) -> tuple[str, ...]:
    """A warning about changed settings that a reload can't apply; empty if there are none.

    Args:
        begun: The settings that the gateway was started with.
        read: The settings that were reloaded.
    """
    changed = [n for n in _LASTING if attrgetter(n)(begun) != attrgetter(n)(read)]
    if not changed:
        return ()
    return (f"{', '.join(changed)}: changed, but only a restart of the gateway applies it",)
