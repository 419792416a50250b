"""What the server has done: a record of every request, and sums for whoever watches."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """One request, and the truth about it, whatever the reply has told.

    Attributes:
        model: The model asked.
        prompt: The text of the last turn.
        prompt_tokens: Tokens read; 0 where the request was refused.
        completion_tokens: Tokens generated, those of reasoning included: what is billed.
        reasoning_tokens: Those of them that were reasoning.
        faults: What went wrong on purpose, in the order of the rules.
        status: The HTTP status; 0 where the client left before there was one.
        complete: Whether all of the reply was sent; not where it was cut off, even politely.
        stream: Whether it was streamed.
        options: The request's other fields.
        seconds: From the request to the end of the reply.
    """

    model: str
    prompt: str
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    faults: tuple[str, ...]
    status: int
    complete: bool
    stream: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float

    @property
    def fault(self) -> str | None:
        """The faults as one text, such as `slow+break`; None where nothing went wrong."""
        return "+".join(self.faults) or None


@final
@dataclass(frozen=True, kw_only=True)
class Stats:
    """Sums since the server was started.

    Attributes:
        requests: Requests for an answer that have ended, in whatever way.
        answers: Those that were answered in full.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens of the replies, made-up reasoning included.
        generated_tokens: Tokens that the models generated.
        busy_seconds: Seconds in which the worker generated.
        batches: Batches it generated.
        in_flight: Requests that are being answered now.
        waiting: Those of them that no batch has taken yet.
        faults: How often each kind of fault happened.
        seconds: Since the start.
    """

    requests: int
    answers: int
    prompt_tokens: int
    completion_tokens: int
    generated_tokens: int
    busy_seconds: float
    batches: int
    in_flight: int
    waiting: int
    faults: Mapping[str, int]
    seconds: float


@final
class Log:
    """The records, in the order in which requests ended, and their sums."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.answers = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.faults: Counter[str] = Counter()

    def add(self, record: Record) -> None:
        """Keep a record."""
        self.records.append(record)
        self.answers += record.complete and record.status == 200
        self.prompt_tokens += record.prompt_tokens
        self.completion_tokens += record.completion_tokens
        self.faults.update(record.faults)
