"""What receipts tell a gateway at its start."""

import time
from typing import TYPE_CHECKING

from prefill_router.gateway.deciding import Row
from prefill_router.gateway.receipts import Turn, recent, sessions_since, spend_since
from prefill_router.gateway.settings import Settings

if TYPE_CHECKING:
    from prefill_router.gateway.serving.gateway import Gateway

_DAY = 86_400
_SHOWN = 500


def restore(gateway: "Gateway", settings: Settings) -> None:
    """Remember this day's spending, the latest requests, and conversations that go on.

    Raises:
        StoreError: The receipts can't be read.
    """
    url, now = gateway.receipts_url, time.time()
    spent = spend_since(url, now - now % _DAY)
    gateway.budgets.restore((one.key, one.at, one.cost) for one in spent)
    gateway.recent.fill(reversed(recent(url, _SHOWN)))
    # tool calls and stored responses are gone on from long after
    since = now - max(_DAY, settings.sessions.seconds)
    gateway.sessions.restore(map(_row, sessions_since(url, since)))


def _row(turn: Turn) -> Row:
    return (
        turn.session,
        turn.target,
        turn.tokens,
        turn.at,
        turn.tool_calls,
        turn.response_id,
        turn.key,
    )
