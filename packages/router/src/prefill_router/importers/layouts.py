"""Files of evaluation tools: each layout says at which paths its rows have what, see `nested`.

A row is read with three more fields: `@file` is the object that holds the rows, `@folder` the name
of the file's folder, and `@task` the task's name, where the file's name has it.

lm-evaluation-harness writes a folder per model, with `samples_TASK_DATE.jsonl` in it; `__` in a
folder's name stands for the `/` of the model's. If a task has several filters, the first
counts. The label is the first of the row's `metrics`.

inspect_ai writes a log per task and model, as `.json` or as `.eval`, a zip. The values C, P, I and
N are 1, a half, 0 and 0, as there. A sample that ended in an error has no label.

Votes, as those of Chatbot Arena, are tables with a row per vote. Each vote is a query of its own,
with the labels of two targets: 1 and 0, or a half each for a tie. The prompt is what both were
asked first: later turns differ.

promptfoo writes one `.json` with all answers. The label is `success`; a call that failed has none.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, final

from prefill_router.data import MOST_COST, Message, Prompt, Query, prompt_key
from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.importers import sources, tables, values
from prefill_router.importers.builder import DatasetBuilder, Place, TargetOutcome
from prefill_router.importers.call_logs import as_json
from prefill_router.importers.nested import value_at
from prefill_router.importers.values import Columns

Row = Mapping[str, Any]
Paths = tuple[str, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the files of a tool have what; of several paths, the first that is filled counts.

    A layout is a reader of the registry: it is called with the sources, the import and the columns.

    Attributes:
        suffixes: How the names of its files end.
        file: The names of its files, whose group `task` is the task; others are skipped.
        rows: The lists of rows in a file of JSON; none where the file is JSON Lines.
        members: How the paths of rows begin in a zip, whose other members are `@file`.
        prompt: A text, or messages.
        target: The target's name.
        rival: The target that it was compared with, in a vote; its label is 1 minus the other's.
        correct: The label, unless the user names another.
        named: The label that the user names; `{}` stands for the name.
        scores: The names among which the user can choose: a list, or an object's fields.
        query: The parts of the id; without all of them a query is identified by its prompt.
        benchmark: A text.
        domain: A text.
        input_tokens: A count.
        output_tokens: A count.
        cost: US dollars; 0 is unknown.
        failed: What is filled, or has the value, where a call failed: such a row has no label.
        same: A field of which only the first value in a file counts.
        words: Labels that are written as words, in lower case.
        is_opening: Whether the prompt is the messages before the first answer.
        revised: Whether the texts of a query may differ between targets; the first is kept.
    """

    suffixes: tuple[str, ...]
    file: re.Pattern[str] = re.compile(r".*", re.DOTALL)
    rows: Paths = ()
    members: str = ""
    prompt: Paths
    target: Paths
    rival: Paths = ()
    correct: Paths
    named: Paths = ("{}",)
    scores: Paths = ()
    query: Paths = ()
    benchmark: Paths = ()
    domain: Paths = ()
    input_tokens: Paths = ()
    output_tokens: Paths = ()
    cost: Paths = ()
    failed: Mapping[str, object] = field(default_factory=dict)
    same: str = ""
    words: Mapping[str, float] = field(default_factory=dict)
    is_opening: bool = False
    revised: bool = False

    def __call__(self, paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
        """Read the files of the sources.

        Raises:
            FormatError: A source doesn't exist.
            ConfigError: No row has the score that was named.
        """
        reader = _LayoutReader(self, into, columns)
        for path in sources.expand(paths, self.suffixes):
            with into.file(path):
                reader.read_file(path)
        reader.check_scores()

    def documents_of(self, path: Path) -> Iterator[tuple[Place, object, Row]]:
        """The rows of a file, and the object that holds them.

        Raises:
            FormatError: The file isn't JSON, or has no list of rows.
        """
        if self.members and path.suffix.lower() in sources.ZIPS:
            yield from self._read_members(path)
            return
        for document in sources.documents(path):
            file = sources.parse(document)
            rows = value_at(file, *self.rows) if isinstance(file, dict) else None
            if not isinstance(rows, list):
                raise FormatError(f"has no list {' or '.join(self.rows)}", file=document.name)
            yield from ((Place(document.name, n), row, file) for n, row in enumerate(rows, 1))

    def _read_members(self, path: Path) -> Iterator[tuple[Place, object, Row]]:
        """The rows of a zip, a member each, with the objects that aren't rows."""
        file: dict[str, Any] = {}
        rows: list[tuple[Place, object]] = []
        for document in sources.documents(path):
            parsed = sources.parse(document)
            if str(document.path).startswith(self.members):
                rows.append((Place(document.name), parsed))
            elif isinstance(parsed, dict) and len(document.path.parts) == 1:
                file |= parsed
        yield from ((place, row, file) for place, row in rows)


@final
class _LayoutReader:
    """Adds the rows of files of a layout to an import.

    Args:
        layout: Where the files have what.
        into: The import.
        columns: The score that the user named, and its scale.
    """

    def __init__(self, layout: Layout, into: DatasetBuilder, columns: Columns) -> None:
        self.layout, self.into, self.columns = layout, into, columns
        self._places_read: set[Place] = set()
        self._scores: dict[str, None] = {}
        self._has_named = False

    def read_file(self, path: Path) -> None:
        """Add the rows of a file; one that was read before adds repeats."""
        match = self.layout.file.fullmatch(path.name)
        if match is None:
            self.into.skip("of another kind by their names")
            return
        extra_fields = {
            "@folder": path.absolute().parent.name.replace("__", "/"),
            "@task": match.groupdict().get("task"),
        }
        first: object = None
        for place, row, file in self._read_rows(path):
            if not isinstance(row, Mapping):
                self.into.bad_row(place, f"is a {type(row).__name__}; a row must be an object")
                continue
            value = row.get(self.layout.same)
            first = value if first is None else first
            if value == first:
                with self.into.row(place):
                    self._add_row(place, {**row, **extra_fields, "@file": file})

    def check_scores(self) -> None:
        """Check that the score that was named is there; note which is used of several.

        Raises:
            ConfigError: No row has it.
        """
        named, names = self.columns.correct, list(self._scores)
        if named is not None and self._places_read and not self._has_named:
            raise ConfigError(f"there is no score {named!r}; there is {sorted(names) or 'none'}")
        if named is None and len(names) > 1:
            self.into.note(
                f"of the scores {', '.join(names)} the first of each row is used; name another "
                "with --correct-column"
            )

    def _read_rows(self, path: Path) -> Iterator[tuple[Place, object, Row]]:
        if self.layout.rows:
            yield from self.layout.documents_of(path)
            return
        for place, record in tables.records(path, self.into, needs=(), wants=self._list_columns()):
            yield place, record, {}

    def _list_columns(self) -> tuple[str, ...]:
        """The columns that are read of a Parquet file."""
        layout, named = self.layout, self.columns.correct
        paths = (
            *(*layout.prompt, *layout.target, *layout.rival, *layout.correct, *layout.scores),
            *(*layout.query, *layout.benchmark, *layout.domain, *layout.input_tokens),
            *(*layout.output_tokens, *layout.cost, *layout.failed, layout.same, named or ""),
        )
        return tuple(dict.fromkeys(path.split(".")[0] for path in paths if path))

    def _add_row(self, place: Place, row: Row) -> None:
        if place in self._places_read:
            self.into.duplicate()
            return
        layout = self.layout
        target = values.require_text(value_at(row, *layout.target), "the model")
        outcome = TargetOutcome(
            self._read_label(row),
            values.cell_amount(value_at(row, *layout.input_tokens), "the input tokens"),
            values.cell_amount(value_at(row, *layout.output_tokens), "the output tokens"),
            values.cell_amount(value_at(row, *layout.cost), "the cost", most=MOST_COST) or None,
        )
        outcomes = {target: outcome}
        if layout.rival:
            outcomes = self._read_vote(row, target, outcome.correct)
        self.into.add(place, self._read_query(row, place), outcomes, revisions=layout.revised)
        self._places_read.add(place)

    def _read_vote(self, row: Row, target: str, label: float | None) -> dict[str, TargetOutcome]:
        rival = values.require_text(value_at(row, *self.layout.rival), "the other model")
        if rival == target:
            raise DataError(f"compares {target!r} with itself; a vote is between two targets")
        against = None if label is None else 1 - label
        return {target: TargetOutcome(label), rival: TargetOutcome(against)}

    def _read_label(self, row: Row) -> float | None:
        layout, score_name = self.layout, self.columns.correct
        self._scores |= dict.fromkeys(map(str, value_at(row, *layout.scores) or ()))
        paths = (
            layout.correct if score_name is None else [p.format(score_name) for p in layout.named]
        )
        value = value_at(row, *paths)
        self._has_named |= value is not None
        if self._is_failed(row):
            return None
        if isinstance(value, str):
            value = layout.words.get(value.strip().lower(), value)
        if layout.rival and value in (value_at(row, *layout.target), value_at(row, *layout.rival)):
            value = float(value == value_at(row, *layout.target))
        scale = self.columns.scale
        read = values.label if scale is None else scale.label
        return read(value, score_name or "the score")

    def _is_failed(self, row: Row) -> bool:
        for path, failure in self.layout.failed.items():
            value = value_at(row, path)
            if value is not None and failure in (None, value):
                return True
        return False

    def _read_query(self, row: Row, place: Place) -> Query:
        layout = self.layout
        prompt = read_prompt(value_at(row, *layout.prompt), is_opening=layout.is_opening)
        parts = [value_at(row, path) for path in layout.query]
        query_id = (
            f"{Path(place.file).name}:{place.line}" if layout.rival else prompt_key(prompt)[:16]
        )
        if parts and None not in parts:
            query_id = "/".join(values.identifier(part, "the id") for part in parts)
        benchmark = values.label_text(value_at(row, *layout.benchmark), "the task")
        return Query(
            query_id,
            prompt,
            benchmark,
            values.label_text(value_at(row, *layout.domain), "the category"),
        )


def read_prompt(value: object, *, is_opening: bool = False) -> Prompt:
    """A prompt: a text, or messages whose contents are texts or lists of parts with texts.

    Messages of one user turn, without a system message, are its text.

    Args:
        value: The text or messages, which may be written as JSON.
        is_opening: Whether only the messages before the first answer count.

    Raises:
        DataError: The value is neither, or has no text.
    """
    messages = as_json(value)
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        return values.require_text(value, "the prompt")
    turns = [Message(str(turn.get("role")), _read_content(turn)) for turn in messages]
    if is_opening:
        turns = list(takewhile(lambda turn: turn.role != "assistant", turns))
    if not any(turn.content.strip() for turn in turns):
        raise DataError("the prompt has no text")
    is_one = len(turns) == 1 and turns[0].role == "user"
    return turns[0].content if is_one else tuple(turns)


def _is_message(turn: object) -> bool:
    return isinstance(turn, dict) and "content" in turn


def _read_content(turn: Row) -> str:
    """The text of a turn; parts of other kinds, such as images, are left out."""
    content = turn.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return values.cell_text(
        "\n".join(text for text in texts if isinstance(text, str)), "the prompt"
    )


LM_EVAL: Final = Layout(
    suffixes=(".jsonl", ".jsonl.gz"),
    file=re.compile(
        r"samples_(?P<task>.+?)(?:_\d{4}-\d\d-\d\dT[-\d.]+)?\.jsonl(?:\.gz)?", re.DOTALL
    ),
    prompt=("arguments.gen_args_0.arg_0", "arguments.0.arg_0", "arguments.0.0", "doc.question"),
    target=("@folder",),
    correct=("<metrics.0>", "exact_match", "acc", "acc_norm", "pass@1", "f1", "mc2"),
    scores=("metrics",),
    query=("@task", "doc_id"),
    benchmark=("@task",),
    domain=("doc.category", "doc.subject"),
    same="filter",
    revised=True,
)
INSPECT_AI: Final = Layout(
    suffixes=(".json", ".eval"),
    rows=("samples",),
    members="samples/",
    prompt=("input",),
    target=("@file.eval.model",),
    correct=("scores.*.value",),
    named=("scores.{}.value",),
    scores=("scores",),
    query=("@file.eval.task", "id"),
    benchmark=("@file.eval.task",),
    domain=("metadata.category", "metadata.subject"),
    input_tokens=("model_usage.<@file.eval.model>.input_tokens",),
    output_tokens=("model_usage.<@file.eval.model>.output_tokens",),
    failed={"error": None},
    words={"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0},
)
PROMPTFOO: Final = Layout(
    suffixes=(".json",),
    rows=("results.results", "results"),
    prompt=("prompt.raw", "vars.prompt", "vars.question"),
    target=("provider.label", "provider.id", "provider"),
    correct=("success", "gradingResult.pass", "score"),
    domain=("vars.category", "testCase.metadata.category"),
    input_tokens=("response.tokenUsage.prompt",),
    output_tokens=("response.tokenUsage.completion",),
    cost=("cost", "response.cost"),
    failed={"failureReason": 2, "response.error": None},
)
VOTES: Final = Layout(
    suffixes=tables.SUFFIXES,
    prompt=("prompt", "question", "instruction", "conversation_a", "messages"),
    target=("model_a",),
    rival=("model_b",),
    correct=("winner",),
    query=("id",),
    domain=("category", "language"),
    words={
        **dict.fromkeys(("model_a", "a", "left"), 1.0),
        **dict.fromkeys(("model_b", "b", "right"), 0.0),
        **dict.fromkeys(("tie", "draw", "tie (bothbad)", "both_bad", "bothbad", "both"), 0.5),
    },
    is_opening=True,
)
