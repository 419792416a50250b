"""Adds to a run: tasks at the start, then answers from one thread, in batches.

All waiting answers are written in one transaction, and their callbacks are called when it is on the
disk. So one flush of the disk serves many answers, and no answer waits for a batch to fill.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import NamedTuple, final
from uuid import uuid4

from prefill_router.data import prompt_text
from prefill_router.database import Statement, storable, storable_count
from prefill_router.errors import ConfigError, DataError, PromptError, StoreError
from prefill_router.files import writer_lock
from prefill_router.runs import (
    LOCK,
    Answer,
    Run,
    Task,
    answer_text,
    checksum,
    open_to_write,
    pack_text,
    refuse_second,
    task_digest,
    task_texts,
)

WriteCallback = Callable[[StoreError | None], object]
"""Called in the journal's thread once something is on the disk, or with the error if it isn't."""
_TASKS_AT_ONCE = 500
_BYTES_AT_ONCE = 16_000_000
_COLUMNS = 17
_EXPOSE = "INSERT INTO exposure (session, dollars) VALUES (?, ?)"


class _JournalEntry(NamedTuple):
    """An answer, or a change of the dollars exposed, that isn't on the disk yet."""

    what: Answer | float
    on_written: WriteCallback


@final
class Journal:
    """Adds to a run; only one process at a time can.

    Example:
        with Journal(run) as journal:
            journal.add_tasks(tasks)
            journal.record(answer, on_written)

    Leaving the block waits until everything is on the disk.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._queue: SimpleQueue[_JournalEntry | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write_entries, name="journal", daemon=True)
        self._session = uuid4().hex
        self._exposed = 0.0
        self._error: StoreError | None = None

    def __enter__(self) -> "Journal":
        with ExitStack() as stack:
            alone = stack.enter_context(writer_lock(self._run.folder, LOCK, wait=False))
            refuse_second(self._run.folder, alone=alone)
            self._database = open_to_write(self._run.folder)
            stack.callback(self._close)
            self._thread.start()
            self._opened = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.close()

    def _close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        with suppress(StoreError):  # everything is on the disk; this merges it into one file
            self._database.empty_log()
        self._database.close()

    def add_tasks(self, tasks: Iterable[Task]) -> list[str]:
        """Add the tasks that the run lacks; call it before the first answer is recorded.

        Returns:
            The ids of all the tasks, in order.

        Raises:
            ConfigError: The run has a task of the same id and other content, or there are none.
            DataError: Two of them have the same id, or an id can't be written.
            PromptError: A prompt can't be sent.
            StoreError: They can't be written; those of earlier transactions are kept.
        """
        ids: dict[str, None] = {}
        digests = self._run.digests()
        rows: list[tuple[str, str, str | bytes, str | bytes]] = []
        size = 0
        for task in tasks:
            row = self._make_row(task, ids, digests)
            if row:
                rows.append(row)
                size += len(row[2]) + len(row[3])
            if len(rows) >= _TASKS_AT_ONCE or size > _BYTES_AT_ONCE:
                self._insert_tasks(rows)
                rows, size = [], 0
        self._insert_tasks(rows)
        if not ids:
            raise ConfigError("there are no tasks to ask; name tasks, or a larger sample")
        return list(ids)

    def record(self, answer: Answer, on_written: WriteCallback) -> None:
        """Add an answer; `on_written` is called once it is on the disk, or can't be written.

        What it was charged is no longer exposed from the same transaction on.
        """
        self._queue.put(_JournalEntry(answer, on_written))

    def expose(self, change: float, on_written: WriteCallback) -> None:
        """Raise or lower, by so many US dollars, the most that calls in flight may be billed."""
        self._queue.put(_JournalEntry(change, on_written))

    @property
    def waiting(self) -> int:
        """About how many entries aren't on the disk yet."""
        return self._queue.qsize()

    def settle(self, dollars: float) -> None:
        """Count this many US dollars less as at risk, since the bill is known.

        Raises:
            StoreError: It can't be written.
        """
        self._database.change([(_EXPOSE, (f"settled {uuid4().hex}", -dollars))])

    def _make_row(
        self, task: Task, ids: dict[str, None], digests: Mapping[str, str]
    ) -> tuple[str, str, str | bytes, str | bytes] | None:
        name = task.query.id
        if name in ids:
            raise DataError(f"two tasks have the id {name!r}; give each an id of its own")
        if not _is_writable(name):
            raise DataError(
                f"the id {name!r} has characters without an encoding (lone surrogates); change it"
            )
        if not _is_writable(prompt_text(task.query.prompt)):
            raise PromptError(
                "it has characters without an encoding (lone surrogates); remove them",
                query_id=name,
            )
        ids[name] = None
        texts = task_texts(task)
        digest, before = task_digest(texts), digests.get(name)
        if before is not None and before != digest:
            raise ConfigError(
                f"task {name!r} differs from the task with the same id in {self._run.folder}; "
                "give it another id, or collect into another folder"
            )
        return None if before else (name, digest, pack_text(texts[0]), pack_text(texts[1]))

    def _insert_tasks(self, rows: list[tuple[str, str, str | bytes, str | bytes]]) -> None:
        if rows:
            query = "INSERT INTO tasks (id, digest, body, options) VALUES (?, ?, ?, ?)"
            self._database.change([(query, row) for row in rows])

    def _write_entries(self) -> None:
        open_ = True
        while open_:
            group = [self._queue.get()]
            try:
                while group[-1] is not None:
                    group.append(self._queue.get_nowait())
            except Empty:
                pass
            open_ = group[-1] is not None
            self._commit([entry for entry in group if entry is not None])

    def _commit(self, group: list[_JournalEntry]) -> None:
        if group and self._error is None:
            try:
                statements = self._update_exposure([what for what, _ in group])
                for what, _ in group:
                    if isinstance(what, Answer):
                        statements += _make_insertions(what)
                self._database.change(statements)
            except StoreError as error:
                self._error = error
            except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
                self._error = StoreError(f"{self._run.folder}: an answer can't be written: {error}")
        for entry in group:
            with suppress(RuntimeError):  # the event loop has ended
                entry.on_written(self._error)

    def _update_exposure(self, added: list[Answer | float]) -> list[Statement]:
        """The statement that writes what is exposed now, if that has changed."""
        before = self._exposed
        for what in added:
            change = -what.charged if isinstance(what, Answer) else what
            self._exposed = max(self._exposed + change, 0.0)
        is_changed = self._exposed != before
        return [(_EXPOSE, (self._session, self._exposed))] if is_changed else []


def _make_insertions(answer: Answer) -> list[Statement]:
    """The statements that insert an answer, and its record under the same number."""
    marks, body = ",".join("?" * _COLUMNS), pack_text(answer_text(answer))
    return [
        (f"INSERT INTO answers VALUES (NULL,{marks})", _list_values(answer)),
        ("INSERT INTO records VALUES (last_insert_rowid(),?,?)", (checksum(body), body)),
    ]


def _list_values(answer: Answer) -> tuple[object, ...]:
    reply, usage = answer.reply, answer.reply and answer.reply.usage
    texts = (reply.finish_reason, reply.served_by) if reply else (None, None)
    # the record has the texts unchanged
    finish_reason, served_by = (None if t is None else storable(t) for t in texts)
    return (
        answer.target,
        answer.query_id,
        answer.missing,
        answer.cost,
        answer.charged,
        len(answer.attempts),
        answer.cost_source,
        finish_reason,
        served_by,
        storable_count(usage and usage.input_tokens),
        storable_count(usage and usage.cached_tokens),
        storable_count(usage and usage.output_tokens),
        storable_count(usage and usage.reasoning_tokens),
        reply and reply.first_token_seconds,
        reply and reply.first_answer_seconds,
        reply and reply.seconds,
        answer.attempts[-1].began if answer.attempts else None,
    )


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
