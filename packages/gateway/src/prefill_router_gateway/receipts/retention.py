"""Deletes receipts and what was kept to learn from them: by age as the gateway runs, or on request.

Everything is deleted in small batches, so that no write of the gateway waits long.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from typing import final

from prefill_router.database import Database, Statement
from prefill_router.errors import DataError, StoreError
from prefill_router_gateway.receipts.labels import (
    IDENTITY_OF,
    TABLE_OF,
    AnswerLabel,
    SampledRequest,
    SideAnswer,
    SideQuestions,
)
from prefill_router_gateway.receipts.reader import Conditions, pages
from prefill_router_gateway.receipts.store import FEEDBACK, RECEIPTS, open_store

_log = logging.getLogger(__name__)
_DAY = 86_400
_AT_ONCE = 256
"""The most rows that are deleted in one transaction."""
_NEXT, _PAUSE = 60.0, 0.05
"""Seconds between checks, and between transactions while there is more, to let others write."""
_SAMPLES, _SIDE_ANSWERS = TABLE_OF[SampledRequest], TABLE_OF[SideAnswer]
_ABOUT = (SideQuestions, SideAnswer, AnswerLabel)


@final
class Retention:
    """Deletes old receipts, each together with its feedback and with what was learned of it.

    Args:
        store: The database.
        keep_days: The retention period in days; None keeps receipts for ever.
        learning_days: The retention period of sampled requests, side answers and labels; None
            keeps them as long as their receipts.
        clock: Returns seconds since 1970.

    Attributes:
        deleted: The number of receipts deleted so far.
    """

    def __init__(
        self,
        store: Database,
        keep_days: int | None,
        learning_days: int | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._days, self._clock = store, keep_days, clock
        self._learning_days = learning_days
        self._due = time.monotonic()
        self._logged = 0
        self.deleted = 0

    def wait(self) -> float | None:
        """Seconds until the next check by `work`; None for never."""
        never = self._days is None and self._learning_days is None
        return None if never else max(0.0, self._due - time.monotonic())

    def work(self) -> bool:
        """Delete some old rows, if a check is due.

        Returns:
            Whether more may be left.

        Raises:
            StoreError: The database failed; the next check tries again.
        """
        if self.wait() != 0.0:
            return False
        self._due = time.monotonic() + _NEXT
        now, tables, has_more = self._clock(), _learning_tables(self._store), False
        if self._days is not None:
            before = now - self._days * _DAY
            has_more = (
                self._delete_receipts(before, tables) == _AT_ONCE
                or self._delete_feedback(before) == _AT_ONCE
            )
        if self._learning_days is not None and tables:
            has_more |= self._delete_learning(now - self._learning_days * _DAY, tables)
        if has_more:
            self._due = time.monotonic() + _PAUSE
        elif self.deleted > self._logged:
            count, self._logged = self.deleted - self._logged, self.deleted
            _log.info("%d receipts older than %d days were deleted", count, self._days)
        return has_more

    def _delete_receipts(self, before: float, tables: Sequence[str]) -> int:
        """Delete some receipts with all that belongs to them; returns how many were found."""
        ids = self._select_old(RECEIPTS, before)
        if ids:
            statements = _delete_statements([RECEIPTS, FEEDBACK, *tables], ids)
            self.deleted += self._store.change(statements)[0]
        return len(ids)

    def _delete_feedback(self, before: float) -> int:
        """Delete old scores without a receipt; returns how many.

        A score is never older than its receipt, so the receipt of an old score is already deleted.
        """
        return self._store.change([_delete_oldest(FEEDBACK, ("id", "source", "at"), before)])[0]

    def _delete_learning(self, before: float, tables: Sequence[str]) -> bool:
        """Delete some sampled requests, and old rows about any; returns whether more may be left.

        What is about a request is deleted with it, however new it is.
        """
        ids = self._select_old(_SAMPLES, before)
        if ids:
            self._store.change(_delete_statements(tables, ids))
        others = [_delete_oldest(TABLE_OF[kind], IDENTITY_OF[kind], before) for kind in _ABOUT]
        return _AT_ONCE in (len(ids), *self._store.change(others))

    def _select_old(self, table: str, before: float) -> list[str]:
        query = f"SELECT id FROM {table} WHERE at < ? ORDER BY at, id LIMIT {_AT_ONCE}"
        return [name for (name,) in self._store.select(query, [before])]


def _learning_tables(store: Database) -> list[str]:
    """The tables about sampled requests that have been made; all have, or none."""
    return sorted(store.existing([_SAMPLES, *(TABLE_OF[kind] for kind in _ABOUT)]))


def _where_ids(ids: Sequence[str]) -> str:
    return f"WHERE id IN ({', '.join('?' * len(ids))})"


def _delete_statements(tables: Sequence[str], ids: Sequence[str]) -> list[Statement]:
    return [(f"DELETE FROM {table} {_where_ids(ids)}", ids) for table in tables]


def _delete_oldest(table: str, identity: Sequence[str], before: float) -> Statement:
    """The statement that deletes some of a table's oldest rows."""
    names = ", ".join(identity)
    rows = f"SELECT {names} FROM {table} WHERE at < ? ORDER BY at LIMIT {_AT_ONCE}"
    return f"DELETE FROM {table} WHERE ({names}) IN ({rows})", [before]


_ERASED: dict[str, tuple[str, str]] = {
    RECEIPTS: ("prompt = NULL", "prompt IS NOT NULL"),
    _SAMPLES: ("body = '{}', answer = '\"\"', prompt = NULL", "body <> '{}'"),
    _SIDE_ANSWERS: ("answer = NULL", "answer IS NOT NULL"),
}
"""By table that has texts: what removes them, and which rows have any."""


def purge(
    url: str,
    *,
    key: str | None = None,
    before: float | None = None,
    texts_only: bool = False,
    dry_run: bool = False,
) -> dict[str, int]:
    """Delete receipts, with feedback, sampled requests, side answers and labels, or their texts.

    An SQLite file overwrites what it deletes, in its journal too. A PostgreSQL server does so when
    it next vacuums the tables. If it is interrupted, what was deleted stays deleted; call it again.

    Args:
        url: See `open_store`.
        key: Only requests with the key of this name.
        before: Only requests before this time, in seconds since 1970.
        texts_only: Whether only prompts and answers are removed, and everything else stays.
        dry_run: Whether to only count.

    Returns:
        By table, how many rows are deleted, or lose their texts.

    Raises:
        DataError: Neither a key nor a time is given.
        StoreError: The database can't be written, has no receipts, or is read by another process,
            so that its journal can't be emptied. Everything is deleted then, and another call
            empties it.
    """
    if key is None and before is None:
        raise DataError("nothing says what to purge; give the name of a key, a time, or both")
    conditions: Conditions = [] if key is None else [("client_key = ?", [key])]
    conditions += [] if before is None else [("at < ?", [before])]
    open_store(url, create=False).close()
    with closing(open_store(url)) as store:
        tables = [RECEIPTS, FEEDBACK, *_learning_tables(store)]
        counts = {table: 0 for table in tables if table in _ERASED or not texts_only}
        rows = pages(store, ("at", "id"), conditions)
        while ids := [name for _, name in islice(rows, _AT_ONCE)]:
            for table, count in _purge_part(store, list(counts), ids, texts_only, dry_run).items():
                counts[table] += count
        if not dry_run and not store.empty_log():
            raise StoreError(
                f"{store.place}: all is deleted, but the journal beside the file still has it, "
                "because another process is reading; run the same command again after that "
                "process has ended"
            )
    return counts


def _purge_part(
    store: Database, tables: Sequence[str], ids: Sequence[str], texts_only: bool, dry_run: bool
) -> dict[str, int]:
    """Purge some requests, or count; by table, how many rows it concerns."""
    where = {
        table: _where_ids(ids) + (f" AND {_ERASED[table][1]}" if texts_only else "")
        for table in tables
    }
    if dry_run:
        counts: dict[str, int] = {}
        for table in tables:
            ((count,),) = store.select(f"SELECT count(*) FROM {table} {where[table]}", ids)
            counts[table] = count
        return counts
    actions = {
        table: f"UPDATE {table} SET {_ERASED[table][0]}" if texts_only else f"DELETE FROM {table}"
        for table in tables
    }
    changed = store.change([(f"{actions[table]} {where[table]}", ids) for table in tables])
    return dict(zip(tables, changed, strict=True))
