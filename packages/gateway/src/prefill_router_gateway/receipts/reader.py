"""Reads receipts: whole ones, and the parts that the gateway needs when it starts."""

import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, final

from prefill_router.database import Database
from prefill_router.errors import DataError
from prefill_router_gateway.receipts.rows import NAMES, Feedback, from_row, named_values
from prefill_router_gateway.receipts.store import FEEDBACK, RECEIPTS, open_store
from prefill_router_gateway.records import OutcomeKind, Receipt

Conditions = list[tuple[str, list[Any]]]
"""SQL conditions joined by AND, each with the values of its `?`."""
_SECONDS = {"m": 60, "h": 3600, "d": 86_400}
_AGO = re.compile(r"(\d{1,9})([mhd])")
_PAGE = 500
"""Rows per page; short pages keep transactions short."""


@final
@dataclass(frozen=True)
class RequestSpend:
    """The cost of one request.

    Attributes:
        key: The name of the client's key; None where the gateway has no keys.
        at: When the request arrived, in seconds since 1970.
        cost: Observed cost in US dollars.
    """

    key: str | None
    at: float
    cost: float


@final
@dataclass(frozen=True)
class SessionTurn:
    """An answered request of a conversation.

    Attributes:
        session: The conversation; None where later requests can continue only the response.
        target: The target that answered.
        tokens: Input and output tokens together; the input may be estimated.
        at: When the request arrived, in seconds since 1970.
        tool_calls: The ids of the tool calls in the answer.
        response_id: The answer's own id, where its target keeps it (Responses).
        key: The name of the client's key; None where the gateway has no keys.
        deployment: Which of the target's endpoints answered; None where it has only one.
    """

    session: str | None
    target: str
    tokens: int
    at: float
    tool_calls: tuple[str, ...]
    response_id: str | None
    key: str | None = None
    deployment: str | None = None


def since_time(text: str) -> float:
    """The time that a text means, in seconds since 1970.

    Args:
        text: `90m`, `24h`, `7d`, or a date or time in ISO 8601, UTC unless it says otherwise.

    Raises:
        DataError: It isn't a time.
    """
    ago = _AGO.fullmatch(text)
    if ago:
        return time.time() - int(ago[1]) * _SECONDS[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise DataError(
            f"{text!r} isn't a time; give 90m, 24h, 7d, or a date or time such as 2026-11-22T08:30"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def read_receipts(
    url: str,
    *,
    since: float | None = None,
    until: float | None = None,
    limit: int | None = None,
    ids: Sequence[str] | None = None,
    outcome: OutcomeKind | None = None,
    target: str | None = None,
    newest_first: bool = False,
) -> Iterator[Receipt]:
    """Read receipts in order of their requests' arrival.

    Args:
        url: See `open_store`.
        since: Only requests from this time on, in seconds since 1970.
        until: Only requests before this time.
        limit: The most receipts.
        ids: Only these decisions; at most a few hundred.
        outcome: Only requests with this outcome.
        target: Only requests that this target answered, or was chosen for.
        newest_first: Whether to read them in reverse order.

    Raises:
        StoreError: The database can't be read, or has no receipts tables.
        CorruptError: A row is damaged.
    """
    bounds = {"at >= ?": since, "at < ?": until, "outcome = ?": outcome, "target = ?": target}
    conditions: Conditions = [(clause, [v]) for clause, v in bounds.items() if v is not None]
    if ids is not None:
        texts = [name for name in ids if name.isprintable()]  # databases reject some others
        conditions.append((f"id IN ({', '.join('?' * len(texts)) or 'NULL'})", texts))
    with closing(open_store(url, create=False)) as store:
        for row in pages(store, NAMES, conditions, limit=limit, newest_first=newest_first):
            yield from_row(row)


def scored_receipts(
    url: str, *, since: float | None = None
) -> Iterator[tuple[Receipt, list[Feedback]]]:
    """Read receipts in order of time, each with the latest score of each source.

    Args:
        url: See `open_store`.
        since: Only requests from this time on, in seconds since 1970.

    Raises:
        StoreError: As for `read_receipts`.
        CorruptError: As for `read_receipts`.
    """
    conditions: Conditions = [] if since is None else [("at >= ?", [since])]
    with closing(open_store(url, create=False)) as store:
        rows = pages(store, NAMES, conditions)
        while receipts := [from_row(row) for row in islice(rows, _PAGE)]:
            scores = _read_latest(store, [receipt.choice.id for receipt in receipts])
            yield from ((receipt, scores.get(receipt.choice.id, [])) for receipt in receipts)


def sessions_before(url: str, until: float, among: Iterable[str]) -> set[str]:
    """Those of some conversations that had a request before a time; raises as `read_receipts`."""
    names, earlier = iter(among), set[str]()
    with closing(open_store(url, create=False)) as store:
        while part := list(islice(names, _PAGE)):
            query = (
                f"SELECT DISTINCT session FROM {RECEIPTS} WHERE at < ? "
                f"AND session IN ({', '.join('?' * len(part))})"
            )
            earlier |= {str(session) for (session,) in store.select(query, [until, *part])}
    return earlier


def is_recorded(url: str, decision: str, *, key: str | None = None) -> bool:
    """Whether a decision has a receipt.

    Args:
        url: See `open_store`.
        decision: Its id.
        key: The name of the key that it must belong to; None for any.

    Raises:
        StoreError: As for `read_receipts`.
    """
    condition = "" if key is None else " AND client_key = ?"
    query = f"SELECT 1 FROM {RECEIPTS} WHERE id = ?{condition}"
    with closing(open_store(url, create=False)) as store:
        return bool(store.select(query, [decision] if key is None else [decision, key]))


def recent(url: str, count: int) -> list[Receipt]:
    """The latest receipts, the newest first; raises as `read_receipts`."""
    return list(read_receipts(url, limit=count, newest_first=True))


def spend_since(url: str, since: float) -> Iterator[RequestSpend]:
    """The costs of requests since a time, in order of time; raises as `read_receipts`."""
    conditions: Conditions = [("at >= ?", [since]), ("cost > ?", [0.0])]
    with closing(open_store(url, create=False)) as store:
        for at, _, key, cost in pages(store, ("at", "id", "client_key", "cost"), conditions):
            yield RequestSpend(key, at, cost)


def sessions_since(url: str, since: float) -> Iterator[SessionTurn]:
    """The answers since a time that later requests may continue, in order of time.

    These are turns of conversations, responses that may be stored, and tool calls. For a dry run,
    the chosen target counts as the one that answered. Of an answer that broke off only the stored
    response counts, since it may be retrieved from its target.

    Raises:
        StoreError: As for `read_receipts`.
    """
    counts = ("COALESCE(input_tokens, estimated_input_tokens)", "output_tokens")
    columns = (
        *("at", "id", "session", "COALESCE(answered_by, target)", *counts),
        *("answer", "endpoint", "client_key", "outcome", "reason"),
    )
    conditions: Conditions = [
        ("at >= ?", [since]),
        ("(answered_by IS NOT NULL OR outcome = 'routed')", []),
        (
            "(outcome IN ('answered', 'disconnected', 'routed') OR (outcome = 'cut' AND "
            "endpoint = 'responses'))",
            [],
        ),
        (
            "((session IS NOT NULL AND reason <> 'named') OR endpoint = 'responses' "
            "OR answer LIKE ?)",
            ['%"tool_calls":["%'],
        ),
    ]
    with closing(open_store(url, create=False)) as store:
        for row in pages(store, columns, conditions):
            at, name, session, who, read, written, answer, endpoint, key, *ending = row
            outcome, reason = ending
            details = named_values(answer, name)
            tokens = read + (written or 0)
            calls = tuple(details.get("tool_calls") or ())
            response = details.get("response_id") if endpoint == "responses" else None
            if outcome == "cut":
                session, calls = None, ()
            if reason == "named":
                session = None
            place = (details.get("deployments") or [None])[-1]
            yield SessionTurn(session, who, tokens, at, calls, response, key, place)


def latest_feedback(url: str, ids: Sequence[str] | None = None) -> dict[str, list[Feedback]]:
    """The latest score of each source, by decision; raises as `read_receipts`.

    Args:
        url: See `open_store`.
        ids: Only these decisions; at most a few hundred.
    """
    with closing(open_store(url, create=False)) as store:
        return _read_latest(store, ids)


def _read_latest(store: Database, ids: Sequence[str] | None) -> dict[str, list[Feedback]]:
    condition = "" if ids is None else f" WHERE id IN ({', '.join('?' * len(ids)) or 'NULL'})"
    query = f"SELECT id, source, at, score, conversation FROM {FEEDBACK}{condition} ORDER BY at"
    latest = {
        (identity, source): Feedback(
            id=identity, source=source, at=at, score=score, conversation=conversation
        )
        for identity, source, at, score, conversation in store.select(query, list(ids or ()))
    }
    by_decision: dict[str, list[Feedback]] = {}
    for feedback in latest.values():
        by_decision.setdefault(feedback.id, []).append(feedback)
    return by_decision


def pages(
    store: Database,
    columns: Sequence[str],
    conditions: Conditions,
    *,
    table: str = RECEIPTS,
    order: Sequence[str] = ("at", "id"),
    limit: int | None = None,
    newest_first: bool = False,
) -> Iterator[tuple[Any, ...]]:
    """Read rows page by page, in an order that is unique and begins with `at`.

    `columns` must have those of the order.
    """
    places = [columns.index(name) for name in order]
    sign, direction, begin = ("<", "DESC", "at < ?") if newest_first else (">", "ASC", "at >= ?")
    ordered, marks = ", ".join(f"{name} {direction}" for name in order), ", ".join("?" * len(order))
    clauses, left = list(conditions), math.inf if limit is None else limit
    while left > 0:
        size = int(min(_PAGE, left))
        where = " AND ".join(clause for clause, _ in clauses) or "1 = 1"
        rows = store.select(
            f"SELECT {', '.join(columns)} FROM {table} WHERE {where} ORDER BY {ordered} "
            f"LIMIT {size}",
            [value for _, values in clauses for value in values],
        )
        yield from rows
        if len(rows) < size:
            return
        left -= size
        # It replaces the time bound: with both, SQLite would scan from the bound for every page.
        clauses = [clause for clause in conditions if clause[0] != begin]
        last = [rows[-1][place] for place in places]
        clauses.append((f"({', '.join(order)}) {sign} ({marks})", last))
