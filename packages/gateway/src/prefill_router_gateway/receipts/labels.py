"""What the next router learns from: sampled requests, answers to them, and labels.

The tables lie in the database of receipts and are made when they are first needed. A row is never
changed; only `purge` and the retention period delete any. Recorded changes have no texts, and stay.

An answer may have labels of several sources. An exact one decides; others are combined as if they
erred independently, into the likelier score and the probability that it is wrong.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, Literal, TypeVar, cast, final

from prefill_router.data import Message, Prompt
from prefill_router.database import Database, Statement
from prefill_router.errors import CorruptError, DataError
from prefill_router.targets import Endpoint, Target
from prefill_router_gateway.answer_text import AnswerText
from prefill_router_gateway.protocol import Envelope, read_envelope, scored_prompt
from prefill_router_gateway.receipts.reader import Conditions, pages
from prefill_router_gateway.receipts.rows import Feedback, ReceiptColumn, Row, prompt_of
from prefill_router_gateway.receipts.store import RECEIPTS, SAMPLES, make_table, open_store
from prefill_router_gateway.records import Scored
from prefill_router_gateway.repeatable import repeatable_body

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
            names; of a turn, a chat with the person's ask alone; empty where it was purged.
        answer: The text that the client was given; empty where it was purged.
        prompt: What the encoder read, as plain values; None where it was purged, or wasn't kept
            yet when the request was.
        is_turn: Whether it is an agent's turn, or has tools: it was kept by its ask and the last
            answer, and no other target can be asked the same.
    """

    id: str
    at: float
    share: float
    endpoint: str
    body: Mapping[str, Any] = field(repr=False)
    answer: str = field(repr=False)
    prompt: str | list[dict[str, str]] | None = field(default=None, repr=False)
    is_turn: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class SampleDraft:
    """A sampled request as it passes; it is read when it is written, off the client's path.

    Attributes:
        id: The decision's id.
        at: When it arrived, in seconds since 1970.
        share: The probability with which it was sampled.
        endpoint: The kind of call.
        body: The whole body that the client sent; empty for a turn.
        answer: Takes the answer's text.
        prompt: What the encoder read, as plain values.
        ask: The person's ask, where it is a turn that is kept by it; None otherwise.
    """

    id: str
    at: float
    share: float
    endpoint: Endpoint
    body: bytes = field(repr=False)
    answer: AnswerText
    prompt: str | list[dict[str, str]] = field(repr=False)
    ask: str | None = field(default=None, repr=False)

    @property
    def length(self) -> int:
        """About how many characters it has so far."""
        turns = (
            [self.prompt] if isinstance(self.prompt, str) else [t["content"] for t in self.prompt]
        )
        return len(self.body) + len(self.ask or "") + sum(map(len, turns)) + self.answer.length

    def sample(self) -> SampledRequest | None:
        """The request to keep; None where its answer is too long, or more than text.

        Raises:
            ValueError: The body can't be read.
        """
        answer = self.answer.text
        if answer is None:
            return None
        is_turn = self.ask is not None
        ask = {"messages": [{"role": "user", "content": self.ask}]}
        return SampledRequest(
            id=self.id,
            at=self.at,
            share=self.share,
            endpoint="chat" if is_turn else self.endpoint,
            body=ask if is_turn else repeatable_body(self.body),
            answer=answer,
            prompt=self.prompt,
            is_turn=is_turn,
        )


@final
@dataclass(frozen=True, kw_only=True)
class SideQuestions:
    """Which targets' answers to a sampled request are to be labelled; drawn before any is.

    Attributes:
        id: The decision's id.
        at: When, in seconds since 1970.
        propensity: The probability of each target with which its answer was to be labelled, given
            that the request was sampled. 0 where it can't be.
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
_json, _flag = partial(ReceiptColumn, kind="json"), partial(ReceiptColumn, kind="flag")
_count = partial(ReceiptColumn, kind="integer", optional=True)
_ID, _AT, _TARGET = _text("id"), _real("at"), _text("target")
LEARNING_COLUMNS: Final[Mapping[type, tuple[ReceiptColumn, ...]]] = {
    SampledRequest: (
        *(_ID, _AT, _real("share"), _text("endpoint"), _json("body"), _json("answer")),
        *(_json("prompt", optional=True), _flag("is_turn")),
    ),
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
    SampledRequest: SAMPLES,
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


def learning_row(record: LearningRow) -> Row:
    """The row of one of these, in the order of its columns."""
    columns = LEARNING_COLUMNS[type(record)]
    return tuple(column.written(getattr(record, column.name)) for column in columns)


def open_learning(url: str) -> Database:
    """Open a database of receipts to write these tables; they are made if there are none.

    Raises:
        ConfigError, StoreError: As `open_store`.
    """
    store = open_store(url)
    make_learning_tables(store)
    return store


def make_learning_tables(store: Database) -> None:
    """Make these tables, unless they exist.

    Raises:
        DownError: They can't be made now.
    """
    for kind, columns in LEARNING_COLUMNS.items():
        make_table(store, TABLE_OF[kind], columns, identity=", ".join(IDENTITY_OF[kind]))


def write_learning(store: Database, rows: Sequence[LearningRow]) -> None:
    """Insert rows, all or none; existing ones stay unchanged.

    Raises:
        DownError: The database can't be written now.
        RowError: It rejects one of these rows.
    """
    store.change([learning_insert(row) for row in rows])


def learning_insert(record: LearningRow) -> Statement:
    """The statement that inserts a row, unless it exists."""
    row = learning_row(record)
    return _insert_statement(type(record), f"VALUES ({_placeholders(row)})"), row


def sample_insert(sample: SampledRequest, *, redact: Callable[[str], str]) -> Statement:
    """The statement that inserts a sampled request, unless its receipt was deleted meanwhile.

    Args:
        sample: The request.
        redact: Applied to its texts as they are written.
    """
    row = tuple(
        redact(value) if isinstance(value, str) else value for value in learning_row(sample)
    )
    source = f"SELECT {_placeholders(row)} WHERE EXISTS (SELECT 1 FROM {RECEIPTS} WHERE id = ?)"
    return _insert_statement(type(sample), source), (*row, sample.id)


def _placeholders(row: Row) -> str:
    return ", ".join("?" * len(row))


def _insert_statement(kind: type[LearningRow], source: str) -> str:
    names = ", ".join(column.name for column in LEARNING_COLUMNS[kind])
    conflict = f"ON CONFLICT ({', '.join(IDENTITY_OF[kind])}) DO NOTHING"
    return f"INSERT INTO {TABLE_OF[kind]} ({names}) {source} {conflict}"


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
    conditions: Conditions = [] if since is None else [("at >= ?", [since])]
    columns, table = LEARNING_COLUMNS[kind], TABLE_OF[kind]
    order = list(dict.fromkeys(["at", *IDENTITY_OF[kind]]))
    with closing(open_store(url, create=False)) as store:
        if store.existing([table]):
            for row in pages(
                store, [c.name for c in columns], conditions, table=table, order=order
            ):
                yield _read_row(kind, row)


def _read_row(kind: type[_Kind], row: Sequence[Any]) -> _Kind:
    columns = LEARNING_COLUMNS[kind]
    try:
        return kind(
            **{column.name: column.read(value) for column, value in zip(columns, row, strict=True)}
        )
    except (ValueError, TypeError, DataError, RecursionError):
        raise CorruptError(
            f"the row of {row[0]!r} in {TABLE_OF[kind]} is damaged; leave it out, or restore the "
            "database from a backup"
        ) from None


USER_ERROR: Final = 0.15
"""The error of users' feedback, where it wasn't estimated."""
_SAME = 0.01
"""Labels whose combined probability is this close to a half contradict each other."""


@final
@dataclass(frozen=True, kw_only=True)
class LabelledSample:
    """A sampled request and what is known of its answers.

    Attributes:
        sample: The request.
        questions: What was drawn to be labelled; None where nothing was drawn yet.
        answers: The answers on the side, by target.
        labels: The labels, in order of time.
    """

    sample: SampledRequest
    questions: SideQuestions | None = None
    answers: Mapping[str, SideAnswer] = field(default_factory=dict, hash=False)
    labels: Sequence[AnswerLabel] = ()

    def label(
        self,
        target: str,
        feedback: Sequence[Feedback] = (),
        errors: Mapping[str, float] | None = None,
    ) -> tuple[float, float] | None:
        """The score of a target's answer and its error; None where it wasn't drawn, or isn't known.

        Args:
            target: The target.
            feedback: Users' latest scores of its answer.
            errors: The error of each source (`user` for feedback), in place of the labels' own.
        """
        if self.questions is None or target not in self.questions.drawn:
            return None
        errors = errors or {}
        latest = {label.source: label for label in self.labels if label.target == target}
        scores = [(label.score, errors.get(label.rater, label.error)) for label in latest.values()]
        scores += [(rating.score, errors.get("user", USER_ERROR)) for rating in feedback]
        return combine_labels(scores) if scores else None

    def sources(self, target: str, feedback: Sequence[Feedback] = ()) -> set[str]:
        """The sources of a target's labels."""
        raters = {label.rater for label in self.labels if label.target == target}
        return raters | ({"user"} if feedback else set())


def combine_labels(labels: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """One score and error from several, each a score with its error.

    Labels that outweigh each other give 0.5, without an error.
    """
    if len(labels) == 1:
        return labels[0]
    for score, error in labels:
        if error == 0:
            return score, 0.0
    odds = 0.0
    for score, error in labels:
        right = score * (1 - error) + (1 - score) * error
        odds += math.log(right / (1 - right))
    right = 1 / (1 + math.exp(-max(-50.0, min(odds, 50.0))))
    if abs(right - 0.5) < _SAME:
        return 0.5, 0.0
    return (1.0, 1 - right) if right > 0.5 else (0.0, right)


def labelled_samples(url: str, *, since: float | None = None) -> dict[str, LabelledSample]:
    """Read sampled requests whose texts weren't purged, with all that is known of them.

    Args:
        url: See `open_store`.
        since: Only requests from this time on, in seconds since 1970.

    Raises:
        StoreError, CorruptError: As for `read_learning`.
    """
    samples = {s.id: s for s in read_learning(url, SampledRequest, since=since) if s.body}
    if not samples:
        return {}
    plans = {plan.id: plan for plan in read_learning(url, SideQuestions, since=since)}
    answers: dict[str, dict[str, SideAnswer]] = {}
    for answer in read_learning(url, SideAnswer, since=since):
        answers.setdefault(answer.id, {})[answer.target] = answer
    labels: dict[str, list[AnswerLabel]] = {}
    for label in read_learning(url, AnswerLabel, since=since):
        labels.setdefault(label.id, []).append(label)
    return {
        name: LabelledSample(
            sample=sample,
            questions=plans.get(name),
            answers=answers.get(name, {}),
            labels=labels.get(name, ()),
        )
        for name, sample in samples.items()
    }


_SAMPLING: Final = ("temperature", "top_p")
_FURTHER: Final = ("stop", "presence_penalty", "frequency_penalty")
_STOPS: Final = "stop_sequences"
"""Anthropic's name of `stop`."""


@final
@dataclass(frozen=True)
class RepeatedRequest:
    """A sampled request, read so that any target can be asked the same.

    Attributes:
        sample: The request as it was kept; its body must not have been purged.
    """

    sample: SampledRequest = field(repr=False)

    @cached_property
    def _envelope(self) -> Envelope:
        body = json.dumps({"model": "auto", **self.sample.body}).encode()
        return read_envelope(cast(Endpoint, self.sample.endpoint), body)

    @property
    def prompt(self) -> tuple[Message, ...]:
        """All turns; system prompts first where they have a field of their own.

        Raises:
            RefusalError: The body isn't a request; so are the others.
        """
        return self._envelope.turns

    def scored_prompt(self, scored: Scored) -> Prompt | None:
        """What the encoder read: as it was kept, or else read again; None where it has no text.

        Args:
            scored: The part of the request that it read, as of the receipt.
        """
        stored = self.sample.prompt  # samples of receipts of version 2 have none
        return scored_prompt(self._envelope, scored) if stored is None else prompt_of(stored)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema that an answer must follow; empty for any JSON object, None for text."""
        response_format = self._response_format or {}
        if response_format.get("type") not in ("json_schema", "json_object"):
            return None
        wrapper = response_format.get("json_schema")
        schema = wrapper.get("schema") if isinstance(wrapper, Mapping) else None
        return schema if isinstance(schema, Mapping) else {}

    def options_for(self, target: Target) -> Target:
        """The target with this request's own options, where the client gave them."""
        body, own = self.sample.body, target.request
        further = {name: body[name] for name in _FURTHER if body.get(name) is not None}
        if body.get(_STOPS):
            further["stop"] = body[_STOPS]
        if self._response_format is not None:
            further["response_format"] = dict(self._response_format)
        limit = self._envelope.max_tokens
        sampling = {name: body[name] for name in _SAMPLING if body.get(name) is not None}
        request = replace(
            own,
            **sampling,
            max_tokens=own.max_tokens if limit is None else max(1, min(limit, own.max_tokens)),
            extra_body={**further, **own.extra_body},
        )
        return replace(target, request=request)

    @property
    def _response_format(self) -> Mapping[str, Any] | None:
        """The format of answers that it asks for, in the form of chat completions."""
        body = self.sample.body
        if self.sample.endpoint == "chat":
            response_format = body.get("response_format")
            return response_format if isinstance(response_format, Mapping) else None
        container = body.get("text" if self.sample.endpoint == "responses" else "output_config")
        response_format = container.get("format") if isinstance(container, Mapping) else None
        if response_format is None and self.sample.endpoint == "messages":
            response_format = body.get("output_format")
        if not isinstance(response_format, Mapping) or response_format.get("type") == "text":
            return None
        if response_format.get("type") != "json_schema":
            return response_format
        wrapper = {"name": "answer"} | {
            n: value for n, value in response_format.items() if n != "type"
        }
        return {"type": "json_schema", "json_schema": wrapper}
