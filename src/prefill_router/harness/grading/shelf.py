"""The tasks of a run, without what only grading one of them needs: tests can be very large."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import final

from prefill_router.data import Query
from prefill_router.errors import CorruptError, DataError
from prefill_router.harness.runs import codec, schema
from prefill_router.harness.runs.run import Run
from prefill_router.harness.task import Task


@final
@dataclass(frozen=True)
class Entry:
    """A task, as far as most of grading needs it.

    Attributes:
        query: What is asked.
        grader: The name of the grader of its answers.
        digest: SHA-256 of its whole content, in hexadecimal.
        place: Its place among the tasks.
    """

    query: Query
    grader: str
    digest: str
    place: int


@final
class Shelf:
    """A run's tasks in their order; the whole of one is taken down when it is needed.

    Args:
        run: The run.

    Raises:
        CorruptError: A task isn't what was written.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._entries = {entry.query.id: entry for entry in _entries(run)}
        self._last: tuple[str, Task] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, query_id: object) -> bool:
        return query_id in self._entries

    def __getitem__(self, query_id: str) -> Entry:
        return self._entries[query_id]

    def task(self, query_id: str) -> Task:
        """The whole task; the last one stays at hand, since answers come task by task."""
        if self._last is None or self._last[0] != query_id:
            self._last = None
            self._last = (query_id, self._run.task(query_id))
        return self._last[1]


def _entries(run: Run) -> Iterator[Entry]:
    try:
        with closing(schema.open_to_read(run.folder)) as database:
            rows = database.execute("SELECT digest, body FROM tasks ORDER BY position")
            for place, (digest, body) in enumerate(rows):
                task = codec.task_from_texts(codec.unpack(body), "{}")
                yield Entry(task.query, task.grader, str(digest), place)
    except sqlite3.Error as error:
        raise schema.told(error, run.folder) from None
    except (ValueError, KeyError, TypeError, DataError) as error:
        raise CorruptError(
            f"a task in {run.folder / schema.DATABASE} isn't what was written ({error}); copy the "
            "run again, or begin a new one"
        ) from None
