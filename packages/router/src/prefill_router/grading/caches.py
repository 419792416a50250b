"""Caches in a run's folder, so that no judge is paid twice and no program runs twice.

`RUN/judgments.sqlite` has the calls to judges and their replies; rows are only added. `calls` has a
row per call, written before it begins, with the most that it can cost. `judgments` has one per
reply: the judge, the request's parameters, the whole prompt, the whole reply, and its cost.
`failures` has one per call without a reply, with the most that it may have cost. A call in neither
was under way when its process was killed. The key of a reply is the SHA-256 of judge, request and
prompt.

`RUN/grades.sqlite` has expensive verdicts, such as those of programs that ran, for the next
grading. Their key is the SHA-256 of the grader, its version and setting, the task and the answer's
text. The file may be removed at any time: answers are then graded again.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from prefill_router.data import prompt_key
from prefill_router.database import (
    Database,
    RunStatement,
    SqliteDatabase,
    refusals,
    refuse_newer,
    storable,
)
from prefill_router.endpoints import Reply
from prefill_router.grading.base import Grade, GraderTraits
from prefill_router.targets import Target


@final
@dataclass(frozen=True, kw_only=True)
class JudgeBill:
    """The cost of judging a run, over all its gradings.

    Attributes:
        calls: Calls to judges.
        cost: US dollars of the replies whose cost is known.
        at_risk: Most US dollars, beyond `cost`, of calls whose bill is unknown.
        unpriced: Replies of unknown cost: the judge has no prices, and reported none.
        limit_that_would_do: US dollars; a limit that is enough for all calls that this one
            stopped. None where it stopped none.
    """

    calls: int
    cost: float
    at_risk: float
    unpriced: int
    limit_that_would_do: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))


JUDGMENTS_DATABASE = "judgments.sqlite"
_JUDGMENTS_VERSION = 1
_DURABLE = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")  # what was paid for stays
_JUDGMENTS_SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
  call INTEGER PRIMARY KEY, asked TEXT NOT NULL, most REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS judgments (
  call INTEGER PRIMARY KEY, key TEXT NOT NULL, sample INTEGER NOT NULL, asked TEXT NOT NULL,
  judge TEXT NOT NULL, request TEXT NOT NULL, prompt TEXT NOT NULL, text TEXT NOT NULL,
  reply TEXT NOT NULL, cost REAL, charged REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS failures (
  call INTEGER PRIMARY KEY, key TEXT NOT NULL, sample INTEGER NOT NULL, asked TEXT NOT NULL,
  judge TEXT NOT NULL, failure TEXT NOT NULL, detail TEXT NOT NULL, charged REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS judgments_by_key ON judgments (key, sample);
"""
_CHARGES = """
SELECT COALESCE(SUM(COALESCE(j.charged, f.charged, c.most)), 0)
FROM calls c LEFT JOIN judgments j USING (call) LEFT JOIN failures f USING (call)
"""
_BILL = """
SELECT COUNT(*), COALESCE(SUM(j.cost), 0),
  COALESCE(SUM(COALESCE(j.charged, f.charged, c.most) - COALESCE(j.cost, 0)), 0),
  COUNT(CASE WHEN j.call IS NOT NULL AND j.cost IS NULL AND j.charged = 0 THEN 1 END)
FROM calls c LEFT JOIN judgments j USING (call) LEFT JOIN failures f USING (call)
"""


@final
class Judgments:
    """The judgments of one run; shared by threads.

    Args:
        folder: The run's folder.

    Raises:
        CorruptError: The file isn't what was written.
        StoreError: It can't be written.
    """

    def __init__(self, folder: Path) -> None:
        self._database = SqliteDatabase(
            folder / JUDGMENTS_DATABASE,
            pragmas=_DURABLE,
            prepare=_make_judgments,
            repair="move it away, and judges are asked again",
        )

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @property
    def charged(self) -> float:
        """US dollars of all calls, with the most that those of unknown bill can have cost."""
        return float(self._database.select(_CHARGES)[0][0])

    def bill(self, *, held_back: float = 0.0) -> JudgeBill:
        """The cost of all calls.

        Args:
            held_back: Most US dollars of the calls that a limit stopped.
        """
        calls, cost, at_risk, unpriced = self._database.select(_BILL)[0]
        enough = cost + at_risk + held_back if held_back else None
        return JudgeBill(
            calls=calls,
            cost=cost,
            at_risk=max(at_risk, 0.0),
            unpriced=unpriced,
            limit_that_would_do=enough,
        )

    def texts(self, key: str, sample: int) -> list[str]:
        """The texts of the replies for a key so far, the newest first."""
        query = "SELECT text FROM judgments WHERE key = ? AND sample = ? ORDER BY call DESC"
        return [str(text) for (text,) in self._database.select(query, [key, sample])]

    def begin(self, most: float) -> int:
        """Record that a call begins; returns its number.

        Args:
            most: Most US dollars that it can cost.
        """
        query = "INSERT INTO calls VALUES (NULL, ?, ?) RETURNING call"
        return int(self._database.select(query, [_current_time(), most])[0][0])

    def add_reply(
        self,
        call: int,
        key: str,
        sample: int,
        judge: Target,
        *,
        prompt: str,
        reply: Reply,
        cost: float | None,
        charged: float,
    ) -> None:
        """Record a reply; it is on the disk when this returns."""
        whole = {**vars(reply), "usage": vars(reply.usage)}
        plain = json.dumps(whole, default=dict)
        request = json.dumps(judge.request.to_dict())
        row = (call, key, sample, _current_time(), _model_name(judge))
        self._add_row("judgments", (*row, request, prompt, reply.text, plain, cost, charged))

    def add_failure(
        self,
        call: int,
        key: str,
        sample: int,
        judge: Target,
        *,
        failure: str,
        detail: str,
        charged: float,
    ) -> None:
        """Record a call without a reply, and the most that it may have cost."""
        row = (call, key, sample, _current_time(), _model_name(judge))
        self._add_row("failures", (*row, failure, detail, charged))

    def _add_row(self, table: str, row: tuple[Any, ...]) -> None:
        marks = ", ".join("?" * len(row))
        cells = [storable(cell) if isinstance(cell, str) else cell for cell in row]
        self._database.change([(f"INSERT INTO {table} VALUES ({marks})", cells)])


def _make_judgments(database: Database, run: RunStatement) -> None:
    ((version,),) = run("PRAGMA user_version")
    refuse_newer(database.place, "judgments", version, newest=_JUDGMENTS_VERSION)
    never = refusals(("calls", "judgments", "failures"), "judgments are never changed")
    mark = f"PRAGMA user_version = {_JUDGMENTS_VERSION}"
    for statement in (*_JUDGMENTS_SCHEMA.split(";"), *never, mark):
        run(statement)


def judgment_key(judge: Target, prompt: str) -> str:
    """SHA-256 of a judge, its request's parameters and its prompt, in hexadecimal."""
    request = json.dumps(judge.request.to_dict(), sort_keys=True)
    return prompt_key("\0".join((_model_name(judge), request, prompt)))


def _model_name(judge: Target) -> str:
    return judge.model or judge.name


def _current_time() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


GRADES_DATABASE = "grades.sqlite"
_GRADES_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS grades "
    "(key BLOB PRIMARY KEY, score REAL NOT NULL, extracted TEXT, detail TEXT) WITHOUT ROWID"
)


@final
class GradeCache:
    """The cached verdicts of one run, for one thread.

    Args:
        folder: The run's folder.

    Raises:
        CorruptError: The file isn't what was written.
        StoreError: It can't be written.
    """

    def __init__(self, folder: Path) -> None:
        self._database = SqliteDatabase(
            folder / GRADES_DATABASE,
            pragmas=("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL"),
            prepare=lambda _, run: run(_GRADES_SCHEMA),
            repair="remove it, and answers are graded again",
        )

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def get(self, key: bytes) -> Grade | None:
        """The verdict under this key, if there is one."""
        query = "SELECT score, extracted, detail FROM grades WHERE key = ?"
        rows = self._database.select(query, [key])
        if not rows:
            return None
        score, extracted, detail = rows[0]
        return Grade(score=score, extracted=extracted, detail=detail)

    def put(self, key: bytes, grade: Grade) -> None:
        """Cache a verdict; an answer that couldn't be graded has none and is graded again."""
        if grade.score is not None:
            insert = "INSERT OR REPLACE INTO grades VALUES (?, ?, ?, ?)"
            texts = (storable(grade.extracted), storable(grade.detail))
            self._database.change([(insert, (key, grade.score, *texts))])


def grade_key(about: GraderTraits, task_digest: str, text: str) -> bytes:
    """SHA-256 of everything that a verdict depends on."""
    digest = hashlib.sha256(f"{about.name}\0{about.version}\0{about.setting}\0".encode())
    digest.update(f"{task_digest}\0".encode())
    digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.digest()
