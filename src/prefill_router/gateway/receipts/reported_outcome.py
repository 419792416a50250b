"""Writes what came of a decision that others carried out into the decision's receipt."""

from collections.abc import Callable
from contextlib import closing
from typing import Literal

from prefill_router.gateway.receipts.rows import COLUMNS, NAMES, from_row, to_row
from prefill_router.gateway.receipts.store import RECEIPTS, open_store
from prefill_router.gateway.records import Receipt

_KEPT = ("id", "prompt")
"""Columns that a report doesn't touch, so that a text that is being purged doesn't come back."""
_WRITTEN = [place for place, column in enumerate(COLUMNS) if column.name not in _KEPT]
_UPDATE = (
    f"UPDATE {RECEIPTS} SET {', '.join(f'{NAMES[place]} = ?' for place in _WRITTEN)} "
    "WHERE id = ? AND outcome = 'routed'"
)


def report_outcome(
    url: str, decision: str, reported: Callable[[Receipt], Receipt], *, key: str | None = None
) -> Receipt | Literal["unknown", "known"]:
    """Write the outcome of a request that was only decided; the first report holds.

    Args:
        url: See `open_store`.
        decision: The decision's id.
        reported: Adds the outcome to the receipt.
        key: The name of the key that the decision must belong to; None for any.

    Returns:
        The receipt with its outcome; `unknown` where there is none, and `known` where it has an
        outcome already, by an earlier report or since the gateway called the target itself.

    Raises:
        StoreError: The database can't be read or changed now, or the receipt is damaged.
    """
    owned, values = ("", [decision]) if key is None else (" AND client_key = ?", [decision, key])
    query = f"SELECT {', '.join(NAMES)} FROM {RECEIPTS} WHERE id = ?{owned}"
    with closing(open_store(url)) as store:
        rows = store.select(query, values)
        if not rows:
            return "unknown"
        before = from_row(rows[0])
        if before.outcome.kind != "routed":
            return "known"
        after = reported(before)
        row = to_row(after)
        (changed,) = store.change([(_UPDATE, [*(row[place] for place in _WRITTEN), decision])])
        return after if changed else "known"
