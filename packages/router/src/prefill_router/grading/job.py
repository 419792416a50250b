"""Grades a run: passes its answers to graders, and makes the dataset that `fit` reads.

A grader is opened when it is first needed; graders that ask a judge share one client.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from prefill_router import files
from prefill_router.data import Origin, check_replaceable, write_dataset
from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.grading.base import Grade, Grader, Settings, make_missing_grade
from prefill_router.grading.caches import GradeCache, JudgeBill, Judgments, grade_key
from prefill_router.grading.grade_table import (
    GradeTable,
    GradingReport,
    TaskEntry,
    TaskIndex,
)
from prefill_router.grading.judge import JUDGES, JudgeGrader, Kind
from prefill_router.grading.judge_client import JudgeClient, only_target
from prefill_router.grading.registry import find_grader
from prefill_router.lazy_imports import load
from prefill_router.progress import Progress, SilentProgress
from prefill_router.remote import PathOrUrl
from prefill_router.runs import Answer, Run, Task
from prefill_router.targets import Pool


@final
class Graders:
    """The graders of one run, each opened when it is first needed.

    Args:
        settings: How the run is to be graded.
        folder: The run's folder.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self._folder = folder
        self._open: dict[str, Grader] = {}
        self._judge: tuple[JudgeClient, Judgments] | None = None

    def __getitem__(self, name: str) -> Grader:
        """The grader of this name.

        Raises:
            ConfigError: No grader has this name, or it needs what wasn't given or isn't installed.
            SandboxError: It needs the sandbox, which this machine doesn't have.
        """
        if name not in self._open:
            self._open[name] = self._open_grader(name)
        return self._open[name]

    def open(self, names: Set[str]) -> None:
        """Open these graders.

        Raises:
            ConfigError: As for a single grader; one error names all of them that need a judge.
            SandboxError: One needs the sandbox, which this machine doesn't have.
        """
        judges = [name for name in JUDGES if name in names]
        if judges:
            self._judge_pool(judges)
        for name in sorted(names):
            self[name]

    @property
    def open_graders(self) -> Mapping[str, Grader]:
        """The graders that are open, by name."""
        return self._open

    @property
    def bill(self) -> JudgeBill | None:
        """What judging the run has cost so far; None where no judge was needed."""
        if self._judge is None:
            return None
        client, judgments = self._judge
        return judgments.bill(held_back=client.held_back * self.settings.judge_samples)

    def _open_grader(self, name: str) -> Grader:
        kind = find_grader(name)
        for judge in JUDGES:
            if name == judge:
                return self._judge_grader(judge)
        grader: Grader = load("prefill_router.grading", kind.opener)(self.settings)
        return grader

    def _judge_grader(self, kind: Kind) -> Grader:
        """A grader that asks the judge; all such graders share one client."""
        pool = self._judge_pool([kind])
        if self._judge is None:
            judgments = Judgments(self._folder)
            try:
                client = JudgeClient(pool, judgments, limit=self.settings.judge_limit)
            except PrefillRouterError:
                judgments.close()
                raise
            self._judge = (client, judgments)
        return JudgeGrader(
            kind,
            *self._judge,
            soft=self.settings.soft,
            samples=self.settings.judge_samples,
            again=self.settings.judge_again,
            at_once=pool.provider_of(only_target(pool).name).concurrency,
        )

    def _judge_pool(self, kinds: Sequence[str]) -> Pool:
        """The judge's pool; an error names the graders that need it."""
        pool = self.settings.judge
        if pool is None:
            names = " and ".join(kinds)
            who = f"grader {names} needs" if len(kinds) == 1 else f"graders {names} need"
            skips = " ".join(f"--skip {kind}" for kind in kinds)
            raise ConfigError(
                f"the {who} a judge: give --judge with a pool file of one target, or leave these "
                f"answers ungraded with {skips}"
            )
        return pool

    def stop(self) -> None:
        """Stop every grader; an answer that is being graded may fail."""
        for grader in self._open.values():
            grader.close()
        if self._judge is not None:
            self._judge[0].stop()

    def close(self) -> None:
        """Close what the graders share, after `stop` and when no thread uses them any more."""
        if self._judge is not None:
            client, judgments = self._judge
            client.close()
            judgments.close()


SUMMARY = "grading.json"
LOCK = "grading"
_WAITING = 2
"""Answers queued at a grader for each that it grades concurrently."""


def grade_run(
    run: Run,
    out: PathOrUrl | str,
    *,
    settings: Settings | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> GradingReport:
    """Grade a run's answers and write the dataset, whole or not at all.

    Beside the dataset's own files the folder gets `grades.parquet`, a row per answer, and
    `grading.json`, the counts. It can be interrupted at any moment: expensive verdicts and all
    judgments are kept in the run's folder, so the next grading resumes. Answers are never changed.

    Args:
        run: The run.
        out: The dataset's folder; the result of an earlier grading of the run is replaced.
        settings: How to grade.
        overwrite: Replace a dataset of another origin, too.
        progress: Shows the progress.

    Raises:
        ConfigError: A grader lacks something, such as a judge or a package, or doesn't exist.
        SandboxError: Programs are to be graded, and there is no sandbox.
        DataError: The run has no answers, or `out` holds something else than its dataset.
        CorruptError: The run isn't what was written.
    """
    settings = settings or Settings()
    for name in settings.skip:
        find_grader(name)
    origin = Origin.of("grade", run.folder)
    check_replaceable(out, origin=origin, overwrite=overwrite)
    tasks = TaskIndex(run)
    grades = GradeTable(tasks, run.pool)
    graders = Graders(settings, run.folder)
    with _exclusive_lock(run.folder), _open_job(tasks, grades, graders, run.folder) as job:
        left_out = job.grade_all(run, progress or SilentProgress())
        judged, judge_failed = grades.count_judged()
        report = GradingReport(
            targets=tuple(grades.summaries()),
            graders={
                n: _grader_setting(grader) for n, grader in sorted(graders.open_graders.items())
            },
            skipped=tuple(sorted(settings.skip)),
            left_out=left_out,
            reused=job.reused,
            judging=graders.bill,
            judged=judged,
            judge_failed=judge_failed,
            examples=grades.examples(),
        )

    def also(folder: Path) -> None:
        grades.write(folder)
        files.write_json(folder / SUMMARY, report.to_dict())

    write_dataset(grades.dataset(), out, also=also, origin=origin)
    return report


@contextmanager
def _exclusive_lock(folder: Path) -> Iterator[None]:
    """Refuse to grade a run in two processes at once, since judges would be paid twice.

    A run in a read-only folder can still be graded, by graders that keep nothing there.
    """
    if not os.access(folder, os.W_OK):
        yield
        return
    with files.writer_lock(folder, LOCK, wait=False) as alone:
        if not alone:
            raise ConfigError(f"another process is grading {folder}; wait until it has ended")
        yield


@contextmanager
def _open_job(
    tasks: TaskIndex, grades: GradeTable, graders: Graders, folder: Path
) -> Iterator["_GradingJob"]:
    """Yield a job; its threads and graders end with it, even after an error."""
    with ExitStack() as opened:

        def keep() -> GradeCache:
            return opened.enter_context(closing(GradeCache(folder)))

        job = _GradingJob(tasks, grades, graders, keep)
        try:
            yield job
        finally:
            job.abandon()


@dataclass(frozen=True)
class _WaitingGrade:
    """An answer that is being graded."""

    entry: TaskEntry
    answer: Answer
    key: bytes


class _GraderThreads:
    """The threads of one grader, and the answers queued for them."""

    def __init__(self, grader: Grader) -> None:
        count = grader.about.at_once
        self.grader = grader
        self.most = _WAITING * count
        self.threads = ThreadPoolExecutor(count, thread_name_prefix=f"grader-{grader.about.name}")
        self.waiting: dict[Future[Grade], _WaitingGrade] = {}

    def submit(self, task: Task, text: str, waiting: _WaitingGrade) -> None:
        self.waiting[self.threads.submit(self.grader.grade, task, text)] = waiting

    def take_finished(self) -> Iterator[tuple[_WaitingGrade, Grade]]:
        """The answers that are graded by now, after waiting for at least one."""
        finished, _ = wait(self.waiting, return_when=FIRST_COMPLETED)
        for future in finished:
            yield self.waiting.pop(future), future.result()


class _GradingJob:
    """Passes answers to their graders and collects the grades."""

    def __init__(
        self, tasks: TaskIndex, grades: GradeTable, graders: Graders, keep: Callable[[], GradeCache]
    ) -> None:
        self.reused = 0
        self._tasks = tasks
        self._grades = grades
        self._graders = graders
        self._keep = keep
        self._lanes: dict[str, _GraderThreads] = {}
        self._new_keys: set[bytes] = set()

    def grade_all(self, run: Run, progress: Progress) -> int:
        """Grade every answer; returns the number of those left out."""
        self._open_graders(run)
        total = sum(1 for _ in run.outcomes())
        left_out = 0
        names = set(run.pool.names)
        with progress.task("grading", total=total) as advance:
            for answer in run.answers():
                if answer.target in names and answer.query_id in self._tasks:
                    self._take_answer(answer, advance)
                else:
                    left_out += 1
                    advance()
            for lane in self._lanes.values():
                while lane.waiting:
                    self._note_finished(lane, advance)
        return left_out

    def abandon(self) -> None:
        """End threads and graders; answers that aren't graded yet stay ungraded."""
        for lane in self._lanes.values():
            lane.threads.shutdown(wait=False, cancel_futures=True)
        self._graders.stop()
        for lane in self._lanes.values():
            lane.threads.shutdown(wait=True)
        self._graders.close()

    def _open_graders(self, run: Run) -> None:
        """Open all graders that have an answer, so that errors come before any work."""
        for name in dict.fromkeys(entry.grader for entry in self._tasks):
            find_grader(name)
        skipped, names = self._graders.settings.skip, set(run.pool.names)
        self._graders.open(
            {
                self._tasks[query_id].grader
                for target, query_id, missing in run.outcomes()
                if missing is None and target in names and query_id in self._tasks
            }
            - skipped
        )

    def _take_answer(self, answer: Answer, advance: Callable[[], None]) -> None:
        entry = self._tasks[answer.query_id]
        if answer.reply is None:
            self._note_grade(
                entry, answer, make_missing_grade(answer.missing or "unknown"), advance
            )
        elif entry.grader in self._graders.settings.skip:
            self._note_grade(entry, answer, make_missing_grade("skipped"), advance)
        else:
            self._grade_answer(entry, answer, answer.reply.text, advance)

    def _grade_answer(
        self, entry: TaskEntry, answer: Answer, text: str, advance: Callable[[], None]
    ) -> None:
        grader = self._graders[entry.grader]
        about = grader.about
        key = grade_key(about, entry.digest, text) if about.is_cached else b""
        grade = self._find_grade(about.name, key, advance) if key else None
        if grade is not None:
            self.reused += key not in self._new_keys
            self._note_grade(entry, answer, grade, advance)
        elif about.at_once == 1 and not about.is_cached:
            self._note_grade(entry, answer, grader.grade(self._task_of(entry), text), advance)
        else:
            self._hand_over(grader, _WaitingGrade(entry, answer, key), text, advance)

    def _find_grade(self, name: str, key: bytes, advance: Callable[[], None]) -> Grade | None:
        """The cached verdict; if another target gave the same answer, wait for its verdict."""
        lane = self._lanes.get(name)
        while lane and any(waiting.key == key for waiting in lane.waiting.values()):
            self._note_finished(lane, advance)
        if self._graders.settings.fresh and key not in self._new_keys:
            return None
        return self._cache.get(key)

    def _hand_over(
        self, grader: Grader, waiting: _WaitingGrade, text: str, advance: Callable[[], None]
    ) -> None:
        name = grader.about.name
        lane = self._lanes.setdefault(name, _GraderThreads(grader))
        while len(lane.waiting) >= lane.most:
            self._note_finished(lane, advance)
        lane.submit(self._task_of(waiting.entry), text, waiting)

    def _note_finished(self, lane: _GraderThreads, advance: Callable[[], None]) -> None:
        for waiting, grade in lane.take_finished():
            if waiting.key:
                self._cache.put(waiting.key, grade)
                self._new_keys.add(waiting.key)
            self._note_grade(waiting.entry, waiting.answer, grade, advance)

    def _note_grade(
        self, entry: TaskEntry, answer: Answer, grade: Grade, advance: Callable[[], None]
    ) -> None:
        self._grades.add(entry, answer, grade)
        advance()

    @cached_property
    def _cache(self) -> GradeCache:
        return self._keep()

    def _task_of(self, entry: TaskEntry) -> Task:
        return self._tasks.task(entry.query.id)


def _grader_setting(grader: Grader) -> dict[str, Any]:
    about = grader.about
    return {"version": about.version, **({"setting": about.setting} if about.setting else {})}
