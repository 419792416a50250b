"""The purse: what the learner may spend, a day and in all, and what it has spent.

Before a call the most that it can cost is written to the database of receipts; afterwards its
charge replaces that, in one transaction with what the call brought. Where a process is killed in
between, the most that it can cost counts as spent, and the question isn't asked again.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from prefill_router.errors import ConfigError
from prefill_router.gateway.receipts import (
    CHARGES,
    LearningRow,
    ReceiptColumn,
    Store,
    learning_insert,
)

_COLUMNS = (
    ReceiptColumn("id", "text"),
    ReceiptColumn("target", "text"),
    ReceiptColumn("purpose", "text"),
    ReceiptColumn("at", "real"),
    ReceiptColumn("dollars", "real"),
    ReceiptColumn("open", "integer", form="flag"),
)
_IDENTITY = "id, target, purpose"
_DAY = 86_400.0
_EXACT = 12
"""Decimals of a sum of US dollars; smaller parts are rounding errors."""


@final
@dataclass(frozen=True, kw_only=True)
class PurseLimits:
    """What may be spent.

    Attributes:
        per_day: US dollars a day (UTC); None for no limit a day.
        in_all: US dollars in all, as long as the database exists; None for no such limit.

    Raises:
        ConfigError: Neither is given, or one isn't a number of dollars.
    """

    per_day: float | None = None
    in_all: float | None = None

    def __post_init__(self) -> None:
        if self.per_day is None and self.in_all is None:
            raise ConfigError("learning needs a limit: give --per-day, --max-cost or both")
        for name, value in (("--per-day", self.per_day), ("--max-cost", self.in_all)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} is {value}; it is a number of US dollars")


@final
@dataclass(frozen=True, kw_only=True)
class PurseEntry:
    """What a call is made for; each entry is paid once.

    Attributes:
        id: The decision's id, or the anchor's.
        target: The target that is asked or judged.
        purpose: For example `side`, or `judge:NAME`.
    """

    id: str
    target: str
    purpose: str


@final
class Purse:
    """The ledger of one learner; only one process at a time may write it.

    Args:
        store: The database of receipts, open to write.
        limits: What may be spent.
        clock: Returns the time in seconds since 1970.
    """

    def __init__(
        self, store: Store, limits: PurseLimits, *, clock: Callable[[], float] = time.time
    ) -> None:
        store.make_table(CHARGES, _COLUMNS, identity=_IDENTITY)
        self._store, self._limits, self._clock = store, limits, clock

    def spent(self, *, today: bool = False) -> float:
        """US dollars spent in all, or today; what an open call can cost counts."""
        since = self._clock() // _DAY * _DAY if today else -math.inf
        query = f"SELECT COALESCE(SUM(dollars), 0) FROM {CHARGES} WHERE at >= ?"
        return round(float(self._store.select(query, [max(since, 0.0)])[0][0]), _EXACT)

    @property
    def left(self) -> float:
        """US dollars that may still be spent now."""
        limits = self._limits
        today = math.inf if limits.per_day is None else limits.per_day - self.spent(today=True)
        in_all = math.inf if limits.in_all is None else limits.in_all - self.spent()
        return max(0.0, min(today, in_all))

    def begun(self, purpose: str) -> set[tuple[str, str]]:
        """The ids and targets of which something was spent for a purpose; they are paid."""
        query = f"SELECT id, target FROM {CHARGES} WHERE purpose = ?"
        return {(name, target) for name, target in self._store.select(query, [purpose])}

    def interrupted(self, purpose: str) -> list[tuple[str, str, float]]:
        """Ids, targets and charges of calls of which no outcome is known."""
        query = f"SELECT id, target, dollars FROM {CHARGES} WHERE purpose = ? AND open = 1"
        return [(name, target, cost) for name, target, cost in self._store.select(query, [purpose])]

    def intend(self, entry: PurseEntry, most: float) -> None:
        """Write, before a call, the most that it can cost; an entry may take several calls."""
        self._store.change(
            [
                (
                    f"INSERT INTO {CHARGES} (id, target, purpose, at, dollars, open) "
                    f"VALUES (?, ?, ?, ?, ?, 1) ON CONFLICT ({_IDENTITY}) DO UPDATE SET "
                    f"at = excluded.at, dollars = {CHARGES}.dollars + excluded.dollars, open = 1",
                    [entry.id, entry.target, entry.purpose, self._clock(), most],
                )
            ]
        )

    def settle(
        self, entry: PurseEntry, most: float, charged: float, rows: Sequence[LearningRow] = ()
    ) -> None:
        """Replace what was intended by what was charged, and write what the call brought.

        An entry that cost nothing and brought nothing is forgotten, so that it may be asked again.
        """
        key = [entry.id, entry.target, entry.purpose]
        which = "WHERE id = ? AND target = ? AND purpose = ?"
        settled = f"UPDATE {CHARGES} SET dollars = dollars - ? + ?, open = 0 {which}"
        forgotten = f"DELETE FROM {CHARGES} {which} AND dollars < 1e-12"
        self._store.change(
            [
                (settled, [most, charged, *key]),
                *([] if rows else [(forgotten, key)]),
                *(learning_insert(row) for row in rows),
            ]
        )
