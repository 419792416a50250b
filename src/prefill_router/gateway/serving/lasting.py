"""Which settings hold from the start of a gateway to its end, whatever is reloaded."""

from operator import attrgetter

from prefill_router.gateway.settings import Settings

_LASTING = (
    "listen",
    "logs",
    "traces",
    "receipts.url",
    "receipts.keep_days",
    "receipts.wait_seconds",
    "receipts.max_queue",
    "limits.header_bytes",
    "limits.connections",
    "limits.waiting_per_address",
    "limits.held_bytes",
)


def lasting_changes(begun: Settings, read: Settings) -> tuple[str, ...]:
    """A warning of what was changed in vain; none where nothing was.

    Args:
        begun: What the gateway was started with.
        read: What was read anew.
    """
    changed = [n for n in _LASTING if attrgetter(n)(begun) != attrgetter(n)(read)]
    if not changed:
        return ()
    return (f"{', '.join(changed)}: changed, but as at the start until the gateway starts anew",)
