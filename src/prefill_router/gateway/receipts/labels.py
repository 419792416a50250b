"""What the next router learns from: sampled requests, other targets' answers to them, and labels.

The tables lie in the database of receipts and are made when they are first needed. A row is never
changed; only `purge` and the retention period delete any. Recorded changes have no texts, and stay.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeVar, final

from prefill_router.errors import CorruptError, DataError
from prefill_router.gateway.receipts.reader import Conditions, pages
from prefill_router.gateway.receipts.rows import ReceiptColumn, Row
from prefill_router.gateway.receipts.store import RECEIPTS, Statement, Store, open_store
from prefill_router.gateway.samples import AnswerText, repeatable_body
from prefill_router.targets import Endpoint

REVERSED: Final = ":reversed"
"""Ends the source of labels of pairs in the second order."""


@final
@dataclass(frozen=True, kw_only=True)
class SampledRequest:
    """A request that was kept with its answer, so that other targets can be asked the same.

    Attributes:
        id: The decision's id, as of its receipt.
        at: When it arrived, in seconds since 1970.
        share: The probability with which it was sampled.
        endpoint: The kind of call, as of its receipt.
        body: The request as the client sent it, without its routing preferences and its user's
            names; empty where it was purged.
        answer: The text that the client was given; empty where it was purged.
    """

    id: str
    at: float
    share: float
    endpoint: str
    body: Mapping[str, Any] = field(repr=False)
    answer: str = field(repr=False)


@final
@dataclass(frozen=True, kw_only=True)
class SampleDraft:
    """A sampled request as it passes; it is read when it is written, off the client's path.

    Attributes:
        id: The decision's id.
        at: When it arrived, in seconds since 1970.
        share: The probability with which it was sampled.
        endpoint: The kind of call.
        body: The whole body that the client sent.
        answer: Takes the answer's text.
    """

    id: str
    at: float
    share: float
    endpoint: Endpoint
    body: bytes = field(repr=False)
    answer: AnswerText

    def sample(self) -> SampledRequest | None:
        """The request to keep; None where its answer is too long, or more than text.

        Raises:
            ValueError: The body can't be read.
        """
        answer = self.answer.text
        if answer is None:
            return None
        return SampledRequest(
            id=self.id,
            at=self.at,
            share=self.share,
            endpoint=self.endpoint,
            body=repeatable_body(self.body),
            answer=answer,
        )


@final
@dataclass(frozen=True, kw_only=True)
class SideQuestions:
    """Which targets' answers to a sampled request are to be labelled; drawn before any is.

    Attributes:
        id: The decision's id.
        at: When, in seconds since 1970.
        propensity: The probability of each target with which its answer was to be labelled, given
            that the request was sampled; 0 where it can't be.
        drawn: The targets that chance drew.
    """

    id: str
    at: float
    propensity: Mapping[str, float]
    drawn: Sequence[str]


@final
@dataclass(frozen=True, kw_only=True)
class SideAnswer:
    """What a target did when it was asked a sampled request on the side.

    Attributes:
        id: The decision's id.
        target: The target that was asked; followed by ` (asked 2)` and so on for an anchor's
            repetitions, which aren't learned from.
        at: When, in seconds since 1970.
        propensity: The probability with which it was to be asked, given that the request was
            sampled.
        answer: The answer's text; None where there is none, or it was purged.
        failure: Why there is no answer; empty where there is one.
        input_tokens: Tokens of the prompt as billed; None if unknown.
        output_tokens: Tokens of the answer as billed; None if unknown.
        cost: US dollars that it cost; None if unknown.
    """

    id: str
    target: str
    at: float
    propensity: float
    answer: str | None = field(default=None, repr=False)
    failure: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class AnswerLabel:
    """A score of a target's answer to a sampled request; the latest of each source counts.

    Attributes:
        id: The decision's id.
        target: The target whose answer was scored, as of its side answer.
        source: Who scored it: `judge:NAME`, `verifier:NAME` or `user`.
        at: When, in seconds since 1970.
        score: From 0 (wrong) to 1 (right).
        error: The estimated probability that the score is wrong, below 0.5; 0 if it is exact.
        cost: US dollars that the scoring cost.

    Raises:
        DataError: The score isn't in [0, 1], or the error not in [0, 0.5).
    """

    id: str
    target: str
    source: str
    at: float
    score: float
    error: float = 0.0
    cost: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.score <= 1:
            raise DataError(f"the score is {self.score}; it must be in [0, 1]: 0 wrong, 1 right")
        if not 0 <= self.error < 0.5:
            raise DataError(f"the error is {self.error}; it must be in [0, 0.5)")

    @property
    def rater(self) -> str:
        """The source, whichever the order of a pair was."""
        return self.source.removesuffix(REVERSED)


ChangeKind = Literal["quality", "price", "mix"]


@final
@dataclass(frozen=True, kw_only=True)
class RecordedChange:
    """A change of a target, of its price, or of the mix of traffic, as it was noticed.

    Attributes:
        id: Names this change alone.
        target: The target; empty for the mix.
        kind: What changed.
        at: When it was noticed, in seconds since 1970.
        since: The time of the first answer or request for which it probably holds.
        seen: The time of the one that made it sure.
        evidence: The numbers that it rests on.
    """

    id: str
    target: str
    kind: ChangeKind
    at: float
    since: float
    seen: float
    evidence: Mapping[str, Any] = field(hash=False)


LearningRow = SampledRequest | SideQuestions | SideAnswer | AnswerLabel | RecordedChange
_Kind = TypeVar("_Kind", bound=LearningRow)
_text, _real = partial(ReceiptColumn, kind="text"), partial(ReceiptColumn, kind="real")
_json = partial(ReceiptColumn, kind="text", form="json")
_count = partial(ReceiptColumn, kind="integer", optional=True)
_ID, _AT, _TARGET = _text("id"), _real("at"), _text("target")
LEARNING_COLUMNS: Final[Mapping[type, tuple[ReceiptColumn, ...]]] = {
    SampledRequest: (_ID, _AT, _real("share"), _text("endpoint"), _json("body"), _json("answer")),
    SideQuestions: (_ID, _AT, _json("propensity"), _json("drawn")),
    SideAnswer: (
        *(_ID, _TARGET, _AT, _real("propensity"), _json("answer", optional=True)),
        *(_text("failure"), _count("input_tokens"), _count("output_tokens")),
        _real("cost", optional=True),
    ),
    AnswerLabel: (
        *(_ID, _TARGET, _text("source"), _AT),
        *(_real("score"), _real("error"), _real("cost")),
    ),
    RecordedChange: (
        *(_ID, _TARGET, _text("kind"), _AT),
        *(_real("since"), _real("seen"), _json("evidence")),
    ),
}
"""The columns of each table, in order; their fields have the same names."""
TABLE_OF: Final[Mapping[type, str]] = {
    SampledRequest: "receipt_samples",
    SideQuestions: "receipt_side_questions",
    SideAnswer: "receipt_side_answers",
    AnswerLabel: "receipt_labels",
    RecordedChange: "receipt_changes",
}
IDENTITY_OF: Final[Mapping[type, tuple[str, ...]]] = {
    SampledRequest: ("id",),
    SideQuestions: ("id",),
    SideAnswer: ("id", "target"),
    AnswerLabel: ("id", "target", "source", "at"),
    RecordedChange: ("id",),
}
"""The primary key of each table."""


def learning_row(kept: LearningRow) -> Row:
    """The row of one of these, in the order of its columns."""
    columns = LEARNING_COLUMNS[type(kept)]
    return tuple(column.written(getattr(kept, column.name)) for column in columns)


def open_learning(url: str) -> Store:
    """Open a database of receipts to write these tables; they are made if there are none.

    Raises:
        ConfigError, StoreError: As `open_store`.
    """
    store = open_store(url)
    make_learning_tables(store)
    return store


def make_learning_tables(store: Store) -> None:
    """Make these tables, unless they exist.

    Raises:
        DownError: They can't be made now.
    """
    for kind, columns in LEARNING_COLUMNS.items():
        store.make_table(TABLE_OF[kind], columns, identity=", ".join(IDENTITY_OF[kind]))


def write_learning(store: Store, rows: Sequence[LearningRow]) -> None:
    """Insert rows, all or none; existing ones stay unchanged.

    Raises:
        DownError: The database can't be written now.
        RowError: It rejects one of these rows.
    """
    store.change([learning_insert(kept) for kept in rows])


def learning_insert(kept: LearningRow) -> Statement:
    """The statement that inserts a row, unless it exists."""
    row = learning_row(kept)
    return _insertion(type(kept), f"VALUES ({_marks(row)})"), row


def sample_insert(kept: SampledRequest, *, redact: Callable[[str], str]) -> Statement:
    """The statement that inserts a sampled request, unless its receipt was deleted meanwhile.

    Args:
        kept: The request.
        redact: Applied to its texts as they are written.
    """
    row = tuple(redact(value) if isinstance(value, str) else value for value in learning_row(kept))
    source = f"SELECT {_marks(row)} WHERE EXISTS (SELECT 1 FROM {RECEIPTS} WHERE id = ?)"
    return _insertion(type(kept), source), (*row, kept.id)


def _marks(row: Row) -> str:
    return ", ".join("?" * len(row))


def _insertion(kind: type[LearningRow], source: str) -> str:
    names = ", ".join(column.name for column in LEARNING_COLUMNS[kind])
    known = f"ON CONFLICT ({', '.join(IDENTITY_OF[kind])}) DO NOTHING"
    return f"INSERT INTO {TABLE_OF[kind]} ({names}) {source} {known}"


def read_learning(url: str, kind: type[_Kind], *, since: float | None = None) -> Iterator[_Kind]:
    """Read a table's rows in order of time; none where the table hasn't been made.

    Args:
        url: See `open_store`.
        kind: What to read.
        since: Only rows from this time on, in seconds since 1970.

    Raises:
        StoreError: The database can't be read, or has no receipts.
        CorruptError: A row is damaged.
    """
    given: Conditions = [] if since is None else [("at >= ?", [since])]
    columns, table = LEARNING_COLUMNS[kind], TABLE_OF[kind]
    order = list(dict.fromkeys(["at", *IDENTITY_OF[kind]]))
    with closing(open_store(url, create=False)) as store:
        if store.existing([table]):
            for row in pages(store, [c.name for c in columns], given, table=table, order=order):
                yield _read(kind, row)


def _read(kind: type[_Kind], row: Sequence[Any]) -> _Kind:
    columns = LEARNING_COLUMNS[kind]
    try:
        return kind(**{c.name: c.read(value) for c, value in zip(columns, row, strict=True)})
    except (ValueError, TypeError, DataError, RecursionError):
        raise CorruptError(
            f"the row of {row[0]!r} in {TABLE_OF[kind]} is damaged; leave it out, or restore the "
            "database from a backup"
        ) from None
