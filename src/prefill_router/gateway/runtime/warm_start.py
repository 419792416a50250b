"""What a gateway restores from receipts when it starts."""

import time
from typing import TYPE_CHECKING

from prefill_router.gateway.decide import SessionRow
from prefill_router.gateway.receipts import SessionTurn, recent, sessions_since, spend_since
from prefill_router.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from prefill_router.gateway.runtime.gateway import Gateway

_DAY = 86_400
_SHOWN = 500


def warm_start(gateway: "Gateway", settings: GatewaySettings) -> None:
    """Restore the day's spending, the latest requests and the conversations from receipts.

    Where replicas share the spending, their database has it.

    Raises:
        StoreError: The receipts can't be read.
    """
    url, now = gateway.receipts_url, time.time()
    if settings.shared.url is None:
        spent = spend_since(url, now - now % _DAY)
        gateway.budgets.restore((one.key, one.at, one.cost) for one in spent)
    latest = recent(url, _SHOWN)
    gateway.recent.fill(reversed(latest))
    for receipt in reversed(latest) if settings.routing.latency is not None else ():
        gateway.speeds.observe(receipt)
    # tool calls and stored responses may be continued long after the session's end
    since = now - max(_DAY, settings.sessions.seconds)
    gateway.sessions.restore(map(_row, sessions_since(url, since)))


def _row(turn: SessionTurn) -> SessionRow:
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
