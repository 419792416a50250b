"""A run on disk: a folder with its tasks and every answer, to which rows are only added.

The folder `RUN/` has `run.json` (format, pool and options) and `run.sqlite` (see
`runs.run_database`). A task is a query together with how its answers are graded. Tasks and
answers are stored as JSON that loses nothing; whole records of answers are read in batches, in the
order asked for.
"""

import hashlib
import json
import math
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, final

from prefill_router import __version__, files
from prefill_router.data import Message, Query
from prefill_router.database import SqliteDatabase
from prefill_router.endpoints import FOR_ONE_PROMPT, CostSource, Reply, Usage
from prefill_router.errors import ConfigError, CorruptError, DataError, FormatError, upgrade_advice
from prefill_router.runs import run_database
from prefill_router.short_repr import short_repr
from prefill_router.targets import Pool, pool_from_dict


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """One question of a benchmark.

    Attributes:
        query: The query, as the targets get it.
        grader: The name of the grader of its answers, such as `exact`, `mmlu_pro` or `judge`.
        answer: The right answers, of which any one counts; empty where the grader needs none.
        options: What else the grader needs, such as tests or a rubric; JSON values.
    """

    query: Query
    grader: str
    answer: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


@final
@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One call to a target.

    Attributes:
        began: The time when it began, as ISO 8601 in UTC.
        seconds: How long it took.
        failure: Why it gave no answer, such as `rate_limited`; None where it gave one.
        detail: The error, without prompt and key.
        cost: Its cost in US dollars, as far as known.
        at_risk: Most US dollars that it may have cost beyond that.
    """

    began: str
    seconds: float
    failure: str | None = None
    detail: str = ""
    cost: float = 0.0
    at_risk: float = 0.0


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """One target's answer to one task, or the reason why there is none.

    Attributes:
        target: The name of the target.
        query_id: The id of the task's query.
        reply: The target's reply; None where it is missing.
        missing: Why it is missing; None where it isn't.
        request: The request's parameters, without the prompt.
        attempts: Every call that was made for it.
        prices: US dollars per million tokens at the time, as in the pool file.
        cost: US dollars of all attempts together.
        cost_source: Where the cost comes from: the provider's report, its usage counts, an estimate
            where those are missing or impossible, or none where prices are unknown.
        note: A remark on the cost, such as impossible usage.
    """

    target: str
    query_id: str
    reply: Reply | None
    missing: str | None = None
    request: Mapping[str, Any] = field(default_factory=dict, hash=False)
    attempts: tuple[Attempt, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict, hash=False)
    cost: float | None = None
    cost_source: CostSource = "none"
    note: str = ""

    @property
    def charged(self) -> float:
        """US dollars that count against a spending limit: the cost, and what is at risk."""
        return (self.cost or 0.0) + sum(attempt.at_risk for attempt in self.attempts)


_SMALL = 4096
"""Longer texts are compressed."""
MOST_BYTES = 2**30
"""Limit of an unpacked text, so that a small hostile record can't fill the memory."""
_ENCODER = json.JSONEncoder(allow_nan=False, default=dict)


def pack_text(text: str) -> str | bytes:
    """A text in its stored form: compressed where it is long."""
    return text if len(text) < _SMALL else zlib.compress(text.encode(), 1)


def unpack_text(stored: object) -> str:
    """The text in a stored form.

    Raises:
        ValueError: It isn't what `pack_text` made.
    """
    if isinstance(stored, str):
        return stored
    if not isinstance(stored, bytes):  # SQLite keeps numbers in any column
        raise ValueError(f"it is a {type(stored).__name__}")
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(stored, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpacker.eof:
        raise ValueError(f"it is cut short, or longer than {MOST_BYTES:,} bytes")
    return text.decode()


def dumps(value: Any) -> str:
    """JSON in ASCII; numbers that JSON lacks, such as NaN from an endpoint, become strings."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return json.dumps(_with_names(value), allow_nan=False)


def task_texts(task: Task) -> tuple[str, str]:
    """A task without its options, and its options, both as JSON."""
    query, prompt = task.query, task.query.prompt
    body = {
        "id": query.id,
        "prompt": prompt if isinstance(prompt, str) else [[m.role, m.content] for m in prompt],
        "benchmark": query.benchmark,
        "domain": query.domain,
        "grader": task.grader,
        "answer": list(task.answer),
    }
    return dumps(body), dumps(task.options)


def task_digest(texts: tuple[str, str]) -> str:
    """SHA-256 of a task's content, in hexadecimal."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def task_from_texts(body: str, options: str) -> Task:
    """The task that `task_texts` wrote."""
    value, needs = json.loads(body), json.loads(options)
    if not isinstance(needs, dict):
        raise TypeError(f"the options are a {type(needs).__name__}")
    return Task(
        query=_read_query(value),
        grader=value["grader"],
        answer=tuple(value["answer"]),
        options=needs,
    )


def answer_text(answer: Answer) -> str:
    """An answer as JSON."""
    reply = answer.reply
    value = {
        **vars(answer),
        "reply": None if reply is None else {**vars(reply), "usage": vars(reply.usage)},
        "attempts": [vars(attempt) for attempt in answer.attempts],
    }
    return dumps(value)


def answer_from_text(text: str) -> Answer:
    """The answer that `answer_text` wrote.

    Raises:
        ValueError: The text isn't one.
    """
    try:
        value = json.loads(text)
        reply = value.pop("reply")
        attempts = tuple(Attempt(**attempt) for attempt in value.pop("attempts"))
        if reply is not None:
            reply = Reply(**{**reply, "usage": Usage(**reply["usage"])})
        return Answer(**value, reply=reply, attempts=attempts)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"no answer: {error}") from None


def _read_query(value: Mapping[str, Any]) -> Query:
    prompt = value["prompt"]
    if not isinstance(prompt, str):
        prompt = tuple(Message(role, content) for role, content in prompt)
    return Query(value["id"], prompt, value["benchmark"], value["domain"])


def _with_names(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _with_names(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_with_names(v) for v in value]
    return value


_ROWS_AT_ONCE = 256
MANIFEST = "run.json"
LOCK = "run"


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return (folder / MANIFEST).is_file()


def write_manifest(folder: Path, pool: Pool, options: Mapping[str, Any], *, created: str) -> None:
    """Write `run.json`, whole or not at all."""
    manifest = {
        "format": run_database.VERSION,
        "package": __version__,
        "created": created,
        "options": dict(options),
        "pool": pool.public().to_dict(),
    }
    files.write_json(folder / MANIFEST, manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `write_manifest` wrote.

    Raises:
        FormatError: The folder isn't a run, or has one of a newer version.
        CorruptError: The file isn't what was written.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        version, _ = manifest["format"], (manifest["pool"], manifest["options"])
        created = str(manifest["created"])
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(
            f"no run: it lacks the file {MANIFEST}; name a folder that collect has made",
            file=folder,
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CorruptError(f"{path} isn't what was written; copy the run again") from None
    if not isinstance(version, int) or version > run_database.VERSION:
        raise FormatError(
            f"a run of format {version}; {upgrade_advice(run_database.VERSION)}",
            file=path,
        )
    return {**manifest, "created": created}


def check_place(folder: Path) -> None:
    """Check that a run can be created here.

    Raises:
        ConfigError: The folder holds something else, or can't be created.
    """
    files.check_place(folder, replaced=False)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder for the run")
    # what a process that was killed at the start has left
    ours = (run_database.DATABASE, f".{LOCK}.", MANIFEST)
    others = (
        [p.name for p in folder.iterdir() if not p.name.startswith(ours)] if folder.exists() else []
    )
    if others:
        raise ConfigError(
            f"{folder} is no run and isn't empty (it holds {sorted(others)[0]!r}); name another "
            "folder"
        )


def utc_now() -> str:
    """The present time, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def checksum(stored: str | bytes) -> int:
    """CRC-32 of a record as it is stored."""
    return zlib.crc32(stored.encode() if isinstance(stored, str) else stored)


def read_records(database: SqliteDatabase, folder: Path, wanted: Sequence[int]) -> Iterator[Answer]:
    """The answers with these numbers, in this order.

    Raises:
        CorruptError: A record is missing, or isn't what was written.
    """
    for start in range(0, len(wanted), _ROWS_AT_ONCE):
        part = wanted[start : start + _ROWS_AT_ONCE]
        marks = ",".join("?" * len(part))
        query = f"SELECT seq, checksum, body FROM records WHERE seq IN ({marks})"
        rows = {seq: (check, body) for seq, check, body in database.stream(query, part)}
        for seq in part:
            yield _read_answer(rows.get(seq), seq, folder)


def _read_answer(row: tuple[object, object] | None, seq: int, folder: Path) -> Answer:
    try:
        if row is None or not isinstance(row[1], str | bytes) or checksum(row[1]) != row[0]:
            raise ValueError
        return answer_from_text(unpack_text(row[1]))
    except ValueError:
        raise CorruptError(
            f"record {seq} of {folder / run_database.DATABASE} isn't what was written; copy the "
            "run again, or begin a new one"
        ) from None


Retry = Literal["failed", "all", "none"]
"""Which missing answers are asked for again: those that a retry may get, all, or none."""
_DECIMALS = 12  # of US dollars; smaller parts are rounding errors of sums
_LATEST = "SELECT query_id, target, MAX(seq), missing FROM answers GROUP BY query_id, target"


@final
class Run:
    """A run, opened to read; another process may add to it meanwhile.

    Attributes:
        folder: The run's folder.
        pool: The targets, as they were asked last.
        options: The options of the last call of `collect`.
        created: The time of its creation, as ISO 8601 in UTC.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder = folder
        self.pool: Pool = pool_from_dict(manifest["pool"], source=folder / MANIFEST)
        self.options: Mapping[str, Any] = manifest["options"]
        self.created: str = manifest["created"]
        self._database = run_database.open_to_read(folder)
        self._each = self._database.stream

    @classmethod
    def create(
        cls,
        folder: Path | str,
        pool: Pool,
        *,
        options: Mapping[str, Any] | None = None,
        may_exist: bool = False,
    ) -> "Run":
        """Create a run without tasks and answers, in an empty or a new folder.

        Args:
            folder: The run's folder.
            pool: The targets.
            options: The options of `collect`.
            may_exist: Whether a run that another process has made here meanwhile is opened.

        Raises:
            ConfigError: The folder holds something else, or another process works on it.
        """
        folder = Path(folder)
        check_place(folder)
        with files.writer_lock(folder, LOCK, wait=False) as alone:
            refuse_second(folder, alone=alone)
            if not is_run(folder):
                run_database.create(folder)
                write_manifest(folder, pool, options or {}, created=utc_now())
            elif not may_exist:
                raise ConfigError(f"{folder} is a run already; open it, or name another folder")
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path | str) -> "Run":
        """Open a run to read it.

        Raises:
            FormatError: The folder isn't a run, or has one of a newer version.
            CorruptError: A file isn't what was written.
        """
        folder = Path(folder)
        return cls(folder, read_manifest(folder))

    def __len__(self) -> int:
        """The number of tasks."""
        return int(self._read_cell("SELECT COUNT(*) FROM tasks"))

    def tasks(self) -> Iterator[Task]:
        """The tasks in the order in which they were added, one by one."""
        for position, _ in self._each("SELECT position, id FROM tasks ORDER BY position"):
            rows = self._each("SELECT body, options FROM tasks WHERE position = ?", [position])
            yield self._read_task(*next(rows))

    def read_digested_tasks(self) -> Iterator[tuple[str, Task]]:
        """Pairs of the digest of a task's whole content and the task without options, in order."""
        for digest, body in self._each("SELECT digest, body FROM tasks ORDER BY position"):
            yield str(digest), self._read_task(body, "{}")

    def task(self, query_id: str) -> Task:
        """One task.

        Raises:
            DataError: The run has no such task.
        """
        for row in self._each("SELECT body, options FROM tasks WHERE id = ?", [query_id]):
            return self._read_task(*row)
        raise self._no_task(query_id)

    def queries(self, query_ids: Sequence[str]) -> Iterator[Query]:
        """The queries of these tasks, in this order.

        Raises:
            DataError: The run has no such task.
        """
        for start in range(0, len(query_ids), _ROWS_AT_ONCE):
            part = query_ids[start : start + _ROWS_AT_ONCE]
            marks = ",".join("?" * len(part))
            bodies = dict(self._each(f"SELECT id, body FROM tasks WHERE id IN ({marks})", part))
            for query_id in part:
                if query_id not in bodies:
                    raise self._no_task(query_id)
                yield self._read_task(bodies[query_id], "{}").query

    def answers(self, *, targets: Collection[str] | None = None) -> Iterator[Answer]:
        """The latest answer of each (target, task), missing ones included.

        They come task by task, in the order of the tasks and then of the pool.

        Args:
            targets: Only answers of these; by default of all.

        Raises:
            ConfigError: The pool has no such target.
            CorruptError: A record isn't what was written.
        """
        column = {name: place for place, name in enumerate(self.pool.names)}
        if targets is not None:
            self.pool.indices(targets)
        position = dict(self._each("SELECT id, position FROM tasks"))
        keys = [
            (position[query_id], column.get(target, len(column)), seq)
            for query_id, target, seq, _ in self._each(_LATEST)
            if targets is None or target in targets
        ]
        yield from read_records(self._database, self.folder, [seq for *_, seq in sorted(keys)])

    def outcomes(self) -> Iterator[tuple[str, str, str | None]]:
        """Triples of target, id and reason why it is missing (or None), of each latest answer."""
        for query_id, target, _, missing in self._each(_LATEST):
            yield target, query_id, missing

    def finished(self, *, retry: Retry = "failed") -> set[tuple[str, str]]:
        """Pairs of target and id that aren't asked any more.

        Args:
            retry: Which missing answers are asked for again.
        """
        return {
            (target, query_id)
            for target, query_id, missing in self.outcomes()
            if is_finished(missing, retry)
        }

    def adopt(self, pool: Pool, options: Mapping[str, Any]) -> None:
        """Record this pool and these options; only for the process that has the journal."""
        write_manifest(self.folder, pool, options, created=self.created)
        self.pool, self.options = pool, dict(options)

    @property
    def attempts_total(self) -> int:
        """The number of calls that were made."""
        return int(self._read_cell("SELECT COALESCE(SUM(attempts), 0) FROM answers"))

    @property
    def spent(self) -> float:
        """US dollars of all calls, as far as known."""
        return round(
            float(self._read_cell("SELECT COALESCE(SUM(cost), 0) FROM answers")), _DECIMALS
        )

    @property
    def at_risk(self) -> float:
        """Most US dollars that may have been billed beyond `spent`.

        They belong to calls whose bill is unknown: aborted, timed out, with impossible usage, or
        under way when a process was killed. What was settled since isn't included.
        """
        beyond = "SELECT COALESCE(SUM(charged), 0) - COALESCE(SUM(cost), 0) FROM answers"
        last = "SELECT dollars, MAX(seq) FROM exposure GROUP BY session"
        exposed = f"SELECT COALESCE(SUM(dollars), 0) FROM ({last})"
        return max(
            round(float(self._read_cell(beyond)) + float(self._read_cell(exposed)), _DECIMALS), 0.0
        )

    def charged(self, target: str) -> list[float]:
        """US dollars charged for each question to a target, dollars at risk included.

        Questions without an answer that cost nothing, as when a key is refused, aren't included.
        """
        query = (
            "SELECT SUM(charged) FROM answers "
            "WHERE target = ? AND (missing IS NULL OR charged > 0) GROUP BY query_id"
        )
        return [dollars for (dollars,) in self._each(query, [target])]

    def list_values(self, target: str, what: Literal["output_tokens", "seconds"]) -> list[float]:
        """This value of all recorded answers of a target that have it."""
        rows = self._each(f"SELECT {what} FROM answers WHERE target = ?", [target])
        return [value for (value,) in rows if value is not None]

    def find_asked_targets(self, *, answered: bool = False) -> set[str]:
        """The targets with any record, or those with an answer."""
        which = "WHERE missing IS NULL" if answered else ""
        return {target for (target,) in self._each(f"SELECT DISTINCT target FROM answers {which}")}

    def digests(self) -> dict[str, str]:
        """The digests of the tasks' content, by id."""
        return dict(self._each("SELECT id, digest FROM tasks"))

    def close(self) -> None:
        """Close the run's files."""
        self._database.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read_cell(self, query: str) -> Any:
        return next(self._each(query))[0]

    def _no_task(self, query_id: str) -> DataError:
        return DataError(f"{self.folder} has no task {query_id!r}; its ids are in the table tasks")

    def _read_task(self, body: object, options: object) -> Task:
        try:
            return task_from_texts(unpack_text(body), unpack_text(options))
        except (ValueError, LookupError, TypeError, RecursionError, DataError) as error:
            raise CorruptError(
                f"a task in {self.folder / run_database.DATABASE} isn't what was written "
                f"({error}); copy the run again, or begin a new one"
            ) from None


def is_finished(missing: str | None, retry: Retry) -> bool:
    """Whether an answer isn't asked for any more, given the reason why it is missing."""
    return missing is None or retry == "none" or (retry == "failed" and missing in FOR_ONE_PROMPT)


def refuse_second(folder: Path, *, alone: bool) -> None:
    """Check that no other process works on a run.

    Raises:
        ConfigError: Another process does.
    """
    if not alone:
        raise ConfigError(
            f"another process is collecting into {folder}; wait until it has ended, or name "
            "another folder"
        )
