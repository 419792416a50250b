"""The builder of imported datasets: it takes rows and returns a dataset with a report.

A row is used as a whole or not at all. A malformed row is reported with its file and line and left
out, never guessed. If more than one row in a hundred is malformed, the import stops, since the rest
may not represent the whole. A duplicate of an earlier row is dropped and counted. A row that
contradicts an earlier one is malformed, and the earlier one is kept.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from prefill_router.agents import Harnesses, load_harnesses
from prefill_router.data import LabelMeaning, Query, RoutingDataset
from prefill_router.errors import ConfigError, DataError, FormatError, name_option
from prefill_router.importers.values import ScoreError, advice
from prefill_router.short_repr import short_repr
from prefill_router.targets import Pool, Target

LISTED_PROBLEMS = 10_000
"""The most malformed rows that a report lists; further ones are only counted."""
MOST_TARGETS = 1000
"""The most targets: tables are queries x targets, so a column of ids taken for targets is n x n."""
MOST_CELLS = 2**28
"""The most queries times targets; each takes four numbers in memory, 8 GiB in all."""

_MOST_MALFORMED = 0.01


class Place(NamedTuple):
    """A place in a source.

    Attributes:
        file: The file, with the member after `!` where it is an archive.
        line: The line (text) or record (JSON, Parquet), from 1; None for the whole file.
    """

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class Problem(NamedTuple):
    """A malformed row or file."""

    file: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        return f"{Place(self.file, self.line)}: {self.reason}"


class TargetOutcome(NamedTuple):
    """The outcome of one target on one query; None where not measured.

    Attributes:
        correct: The label in [0, 1].
        input_tokens: Tokens of the prompt as billed.
        output_tokens: Tokens of the answer as billed.
        cost: US dollars.
    """

    correct: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    cost: float | None = None


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """The report of an import: what was read, kept and left out.

    Attributes:
        format: The name of the format.
        sources: The files and folders that were named.
        files_read: The number of files and archive members that were read.
        files_skipped: The number of files that were skipped, by reason.
        rows_read: The number of rows, or records, in the files that were read.
        rows_kept: The number of rows in the dataset.
        duplicates: The number of rows that were dropped since they repeat an earlier row.
        malformed: The number of rows and files that are malformed or contradict an earlier row.
        problems: The first `LISTED_PROBLEMS` malformed rows and files.
        notes: Further notes for the user.
    """

    format: str
    sources: tuple[str, ...]
    files_read: int
    files_skipped: Mapping[str, int]
    rows_read: int
    rows_kept: int
    duplicates: int
    malformed: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        problems = [problem._asdict() for problem in self.problems]
        fields = {**vars(self), "sources": list(self.sources), "notes": list(self.notes)}
        return {**fields, "files_skipped": dict(self.files_skipped), "problems": problems}


@final
class DatasetBuilder:
    """Collects the rows of an import.

    Args:
        strict: Raise at the first malformed row or file instead of reporting it.
        skip_malformed: Continue, however many rows are malformed.
        scaled: Whether the format is the user's own, for which a scale of scores can be given.
        averaged: Whether rows of the same query and target are runs, of which the mean is used.
    """

    def __init__(
        self,
        *,
        strict: bool = False,
        skip_malformed: bool = False,
        scaled: bool = False,
        averaged: bool = False,
        harnesses: Harnesses | None = None,
    ) -> None:
        self.strict, self.skip_malformed, self.scaled = strict, skip_malformed, scaled
        self.averaged, self.harnesses = averaged, harnesses or load_harnesses()
        self.revisions: Counter[str] = Counter()
        self._problems: list[Problem] = []
        self._counts: Counter[str] = Counter()
        self._outside: list[float] = []
        self._skip_counts: Counter[str] = Counter()
        self._notes: list[str] = []
        self._queries: dict[str, tuple[Query, Place]] = {}
        self._targets: dict[str, int] = {}
        self._efforts: dict[str, str] = {}
        self._cells: dict[tuple[str, int], tuple[TargetOutcome, Place]] = {}
        self._runs: dict[tuple[str, int], list[TargetOutcome]] = {}

    @contextmanager
    def file(self, file: str | Path) -> Iterator[None]:
        """A context for reading a file; an unreadable file is reported and left out.

        An archive isn't counted itself, nor is a file that is skipped inside the context.
        """
        before = self._files_done()
        try:
            yield
            self._counts["files"] += self._files_done() == before
        except FormatError as error:
            self._counts["broken files"] += 1
            if self.strict:
                raise
            reason = str(error).removeprefix(f"{Place(str(error.file), error.line)}: ")
            self._add_problem(Problem(str(error.file), error.line, reason))
        except OSError as error:
            self._counts["broken files"] += 1
            self.refuse(Place(str(file)), f"can't be read: {error.strerror or error}")

    @contextmanager
    def row(self, place: Place) -> Iterator[None]:
        """A context for reading a row; a `DataError` inside makes it malformed."""
        self._counts["rows"] += 1
        try:
            yield
        except DataError as error:
            self._counts["malformed rows"] += 1
            if isinstance(error, ScoreError):
                self._outside.append(error.score)
            self.refuse(place, str(error) + (self._advise_scale() if self.strict else ""))

    def bad_row(self, place: Place, reason: str) -> None:
        """Report a row that can't be parsed."""
        self._counts["rows"] += 1
        self._counts["malformed rows"] += 1
        self.refuse(place, reason)

    def refuse(self, place: Place, reason: str) -> None:
        """Report a malformed row or file.

        Raises:
            FormatError: The import is strict.
        """
        if self.strict:
            raise FormatError(reason, file=place.file, line=place.line)
        self._add_problem(Problem(place.file, place.line, reason))

    def duplicate(self) -> None:
        """Count a row that repeats an earlier one."""
        self._counts["duplicates"] += 1

    def skip(self, reason: str) -> None:
        """Count a skipped file."""
        self._skip_counts[reason] += 1

    def note(self, text: str) -> None:
        """Add a note, unless it is there already."""
        if text not in self._notes:
            self._notes.append(text)

    def target(self, name: str, *, effort: str | None = None) -> None:
        """Add a target to the pool, even if it has no rows.

        Args:
            name: Its name.
            effort: Its reasoning effort; None for the one in its name, if any.

        Raises:
            ConfigError: There are too many targets.
        """
        self._targets.setdefault(name, len(self._targets))
        if effort is not None:
            self._efforts[name] = effort
        if len(self._targets) > MOST_TARGETS:
            option = name_option("--target-column", "columns=Columns(target=...)")
            raise ConfigError(
                f"there are more than {MOST_TARGETS:,} targets, such as {name[:80]!r}; name the "
                f"column of the targets with {option}, or import fewer targets"
            )

    def add(
        self,
        place: Place,
        query: Query,
        outcomes: Mapping[str, TargetOutcome],
        *,
        revisions: bool = False,
    ) -> None:
        """Add a row.

        Args:
            place: The row's place in its source.
            query: The query.
            outcomes: The outcomes by target.
            revisions: Whether queries are identified by id alone: if the text differs, the first is
                kept.

        Raises:
            DataError: The row contradicts an earlier row about this query or its outcomes.
        """
        is_new = query.id not in self._queries
        known, first = self._queries.get(query.id, (query, place))
        if known != query:
            if not revisions:
                raise DataError(
                    f"query {query.id!r} has another text than at {first}; the first is kept"
                )
            self.revisions[query.id] += 1
        repeated = [self._is_repeat(query.id, name, outcome) for name, outcome in outcomes.items()]
        self._queries.setdefault(query.id, (query, place))
        if all(repeated) and not is_new:
            self.duplicate()
            return
        self._counts["kept"] += 1
        for name, outcome in outcomes.items():
            self.target(name)
            cell = (query.id, self._targets[name])
            self._cells.setdefault(cell, (outcome, place))
            if self.averaged:
                self._runs.setdefault(cell, []).append(outcome)

    def finish(self, *, format: str, sources: Sequence[str]) -> tuple[RoutingDataset, ImportReport]:  # noqa: A002
        """The dataset and the report.

        Raises:
            FormatError: No row could be used, or too many are malformed.
        """
        first = f"; the first problem: {self._problems[0]}" if self._problems else ""
        if not self._queries or not self._targets:
            raise FormatError(
                f"holds nothing that can be imported as {format} ({self._counts['rows']} rows "
                f"read, {self._counts['malformed']} malformed){first}{self._advise_scale()}",
                file=sources[0],
            )
        malformed, rows = self._counts["malformed rows"], self._counts["rows"]
        if malformed > _MOST_MALFORMED * rows and not self.skip_malformed:
            fix = name_option(
                "to leave all such rows out nevertheless, pass --skip-malformed",
                "correct these rows",
            )
            raise FormatError(
                f"{malformed:,} of {rows:,} rows are malformed, more than one in a hundred, so "
                f"nothing is imported{first}{self._advise_scale()}; {fix}",
                file=sources[0],
            )
        dataset = self._build_dataset()
        self._note_weaknesses(dataset)
        return dataset, ImportReport(
            format=format,
            sources=tuple(sources),
            files_read=self._counts["files"],
            files_skipped=dict(self._skip_counts),
            rows_read=self._counts["rows"],
            rows_kept=self._counts["kept"],
            duplicates=self._counts["duplicates"],
            malformed=self._counts["malformed"],
            problems=tuple(self._problems),
            notes=tuple(self._notes),
        )

    def _is_repeat(self, query_id: str, target: str, outcome: TargetOutcome) -> bool:
        cell = self._cells.get((query_id, self._targets.get(target, -1)))
        if cell is None or self.averaged:
            return False
        if cell[0] != outcome:
            raise DataError(
                f"query {query_id!r} and target {target!r} have another outcome at {cell[1]}, "
                "which is kept" + (_advise_mean() if self.scaled else "")
            )
        return True

    def _advise_scale(self) -> str:
        """The options that would read scores outside [0, 1], if there are any."""
        if not self._outside or not self.scaled:
            return ""
        labels = (cell.correct for cell, _ in self._cells.values() if cell.correct is not None)
        return f"; {advice([*self._outside, *labels])}"

    def _files_done(self) -> int:
        return self._counts["files"] + self._counts["broken files"] + self._skip_counts.total()

    def _add_problem(self, problem: Problem) -> None:
        self._counts["malformed"] += 1
        if len(self._problems) < LISTED_PROBLEMS:
            self._problems.append(problem)

    def _build_dataset(self) -> RoutingDataset:
        row_of = {query_id: row for row, query_id in enumerate(self._queries)}
        cells = len(row_of) * len(self._targets)
        if cells > MOST_CELLS:
            raise ConfigError(
                f"{len(row_of):,} queries of {len(self._targets):,} targets are {cells:,} labels; "
                f"at most {MOST_CELLS:,} fit in memory; import fewer targets or queries"
            )
        tables = np.full((4, len(row_of), len(self._targets)), np.nan)
        runs = np.full(tables.shape[1:], np.nan)
        for (query_id, column), (outcome, _) in self._cells.items():
            cell = row_of[query_id], column
            same = np.array(self._runs.get((query_id, column), [outcome]), dtype=np.float64)
            counts = (~np.isnan(same)).sum(axis=0)
            tables[:, *cell] = np.where(
                counts, np.nansum(same, axis=0) / np.maximum(counts, 1), np.nan
            )
            runs[cell] = counts[0] or np.nan
        correct, inputs, outputs, cost = tables
        return RoutingDataset.of(
            [query for query, _ in self._queries.values()],
            Pool(tuple(Target(name=n, effort=self._efforts.get(n)) for n in self._targets)),
            correct,
            input_tokens=inputs,
            output_tokens=outputs,
            recorded_cost=cost,
            runs=runs if self.averaged else None,
            meaning=LabelMeaning.of_labels(self._read_labels()),
        )

    def _read_labels(self) -> Iterator[float | None]:
        """The labels of single answers."""
        runs = (outcome for same in self._runs.values() for outcome in same)
        for outcome in chain((outcome for outcome, _ in self._cells.values()), runs):
            yield outcome.correct

    def _note_weaknesses(self, dataset: RoutingDataset) -> None:
        """Add notes on what makes the dataset hard to learn from."""
        if self.revisions:
            few = ", ".join(list(self.revisions)[:5])
            self.note(
                f"{len(self.revisions)} queries have different texts in different files, such as "
                f"{few}; the first text is kept, and each label is that of its own file"
            )
        if dataset.runs is not None:
            several = int((dataset.runs > 1).sum())
            if several:
                self.note(f"{several:,} labels are the mean of two runs or more")
        if len(dataset.pool) == 1:
            self.note("there is only one target, so there is nothing to route")
        for name, column in zip(dataset.pool.names, dataset.correct.T, strict=True):
            labels = np.unique(column[~np.isnan(column)])
            if len(labels) == 0:
                self.note(f"target {name!r} has no label at all")
            elif len(labels) == 1:
                self.note(f"target {name!r} has the label {labels[0]:g} on every query")


def _advise_mean() -> str:
    option = name_option("--repeats mean", 'columns=Columns(repeats="mean")')
    return f"; if these are runs of the same question, {option} averages them"
