"""Verdicts that were dear, such as those of programs that ran, kept for the next grading.

`RUN/grades.sqlite` holds them under the SHA-256 of the grader, its version and setting, the task
and the answer's text. It may be removed at any time: answers are then graded again.
"""

import hashlib
import sqlite3
from pathlib import Path
from typing import Any, final

from prefill_router.errors import CorruptError, StoreError
from prefill_router.harness.grading.base import About, Grade

DATABASE = "grades.sqlite"
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS grades "
    "(key BLOB PRIMARY KEY, score REAL NOT NULL, extracted TEXT, detail TEXT) WITHOUT ROWID"
)


@final
class KeptGrades:
    """The kept verdicts of one run, for one thread.

    Args:
        folder: The run's.

    Raises:
        CorruptError: The file isn't what was written.
        StoreError: It can't be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / DATABASE
        try:
            self._connection = sqlite3.connect(self._path, isolation_level=None, timeout=60)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(_SCHEMA)
        except sqlite3.Error as error:
            raise self._told(error) from None

    def get(self, key: bytes) -> Grade | None:
        """The verdict under this key, if there is one."""
        query = "SELECT score, extracted, detail FROM grades WHERE key = ?"
        rows = self._rows(query, key)
        if not rows:
            return None
        score, extracted, detail = rows[0]
        return Grade(score=score, extracted=extracted, detail=detail)

    def put(self, key: bytes, grade: Grade) -> None:
        """Keep a verdict; an answer that couldn't be graded has none and is tried again."""
        if grade.score is not None:
            texts = [t.encode("utf-8", "replace").decode() for t in (grade.extracted, grade.detail)]
            insert = "INSERT OR REPLACE INTO grades VALUES (?, ?, ?, ?)"
            self._rows(insert, key, grade.score, *texts)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _rows(self, query: str, *values: object) -> list[Any]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._told(error) from None

    def _told(self, error: sqlite3.Error) -> StoreError:
        if isinstance(error, sqlite3.OperationalError):
            return StoreError(f"{self._path} can't be used: {error}")
        return CorruptError(
            f"{self._path} isn't what was written ({error}); remove it, and answers are graded "
            "again"
        )


def grade_key(about: About, task_digest: str, text: str) -> bytes:
    """SHA-256 of what a verdict depends on."""
    digest = hashlib.sha256(f"{about.name}\0{about.version}\0{about.setting}\0".encode())
    digest.update(f"{task_digest}\0".encode())
    digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.digest()
