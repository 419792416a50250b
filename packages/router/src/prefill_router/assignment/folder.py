"""The folder of an assignment: a batch for each target, the table of all prompts, and a summary.

    assignment.json        version, budget, forecast, bound and counts; the pool with its prices
    assignment.parquet     a row per prompt, in order: id, digest of the prompt, target,
                           correctness, expected_cost
    NAME.jsonl             the batch of one target; NAME+2.jsonl, ... beyond a provider's limits

Characters of a target's name that no file name may have are percent-encoded. A long name is cut and
ends in a digest of the whole.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, final
from urllib.parse import quote

import numpy as np
import polars as pl

from prefill_router import files
from prefill_router.assignment.accuracy import ExpectedAccuracy
from prefill_router.assignment.assignment import Assignment
from prefill_router.assignment.batch_lines import (
    MOST_BYTES,
    MOST_LINES,
    BatchFormat,
    BatchLines,
    default_format,
)
from prefill_router.assignment.prompt_file import PromptFile, PromptRecord, prompt_digest
from prefill_router.data import Origin
from prefill_router.errors import CorruptError, DataError, FormatError, PrefillRouterError
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reporting import ReportKind
from prefill_router.targets import Pool, pool_from_dict

SUMMARY: Final = "assignment.json"
TABLE: Final = "assignment.parquet"
_FORMAT: Final = "prefill-router assignment 2"
FOLDER: Final = ReportKind("an assignment", SUMMARY, _FORMAT)
"""What the folder is, so that nothing else is replaced."""


def write_assignment(
    assignment: Assignment,
    prompts: PromptFile,
    pool: Pool,
    folder: Path,
    *,
    format: BatchFormat | None = None,  # noqa: A002
    accuracy: ExpectedAccuracy | None = None,
    origin: Origin | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the folder, whole or not at all; an earlier assignment there is replaced.

    Args:
        assignment: The assignment.
        prompts: The prompts that it is of.
        pool: The targets with their providers, options and prices.
        folder: The folder to write.
        format: The format of all batches; by default each has that of its target's provider.
        accuracy: The accuracy to expect, where it was judged.
        origin: The command that made it, to be recorded with it.
        progress: Shows the number of prompts that are written.

    Returns:
        The summary, as it is written.

    Raises:
        DataError: The folder holds something else, the prompts aren't those of the assignment, or
            one can't be written in the format of its target.
        ConfigError: The folder can't be created, or a target has an option without a field.
    """
    FOLDER.check_replaceable(folder)
    formats = {name: format or default_format(pool, name) for name in assignment.targets}
    with files.replacing_folder(folder) as temporary:
        batches, digests = _write_batches(assignment, prompts, pool, formats, temporary, progress)
        _write_table(assignment, digests, temporary / TABLE)
        summary = _summary(assignment, pool, formats, batches, accuracy)
        files.write_json(temporary / SUMMARY, summary)
        files.write_checksums(temporary, [SUMMARY, TABLE])
        if origin is not None:
            origin.write(temporary)
    return summary


@final
class _BatchFiles:
    """The files of one target, opened as they are needed."""

    def __init__(self, folder: Path, lines: BatchLines, name: str, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._stem, self._most = _stem_of(name), MOST_LINES.get(lines.format)
        self._file: BinaryIO | None = None
        self._count = self._bytes = 0
        self.names: list[str] = []
        self.lines = lines

    def write(self, record: PromptRecord) -> None:
        """Add a prompt's line, in a new file where a provider would refuse a larger one."""
        line = self.lines.line(record)
        file = self._file
        if file is None or self._is_full(len(line)):
            file = self._open_next(file)
        file.write(line)
        self._count, self._bytes = self._count + 1, self._bytes + len(line)

    def _is_full(self, more: int) -> bool:
        if self._most is None:
            return False
        return self._count >= self._most or self._bytes + more > MOST_BYTES

    def _open_next(self, before: BinaryIO | None) -> BinaryIO:
        if before is not None:
            before.close()
        suffix = f"+{len(self.names) + 1}" if self.names else ""  # no encoded name has a +
        self.names.append(f"{self._stem}{suffix}.jsonl")
        self._file = self._stack.enter_context((self._folder / self.names[-1]).open("xb"))
        self._count = self._bytes = 0
        return self._file


def _stem_of(name: str) -> str:
    """The name of a target's files without number and suffix."""
    stem = quote(name, safe=" ")
    if len(stem) <= _MOST_STEM:
        return stem
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{stem[:_MOST_STEM]}+{digest}"  # no encoded name has a +


_MOST_STEM = 200
"""Of the 255 bytes that a file system takes; the others are for a digest, a number and a suffix."""


def _write_batches(
    assignment: Assignment,
    prompts: PromptFile,
    pool: Pool,
    formats: Mapping[str, BatchFormat],
    folder: Path,
    progress: Progress | None,
) -> tuple[dict[str, list[str]], list[str]]:
    """Write the lines of all prompts.

    Returns:
        The names of each target's files, and the digest of each prompt.
    """
    digests: list[str] = []
    with (
        ExitStack() as stack,
        (progress or SilentProgress()).task("lines", total=len(assignment)) as advance,
    ):
        batches = [
            _BatchFiles(folder, BatchLines(pool, name, formats[name]), name, stack)
            for name in assignment.targets
        ]
        begin = 0
        for block in prompts.blocks():
            end = begin + len(block)
            if assignment.query_ids[begin:end] != tuple(record.query.id for record in block):
                raise _changed_error(prompts)
            for record, k in zip(block, assignment.choice[begin:end].tolist(), strict=True):
                batches[k].write(record)
                digests.append(prompt_digest(record.query.prompt))
            begin = end
            advance(len(block))
        if begin != len(assignment):
            raise _changed_error(prompts)
    names = [batch.names for batch in batches]
    return dict(zip(assignment.targets, names, strict=True)), digests


def _changed_error(prompts: PromptFile) -> DataError:
    return DataError(
        f"{prompts.path} isn't the file of prompts that the assignment is of; it may have changed "
        "meanwhile: assign it again"
    )


def _write_table(assignment: Assignment, digests: Sequence[str], path: Path) -> None:
    table = pl.DataFrame(
        {
            "id": assignment.query_ids,
            "digest": digests,
            "target": pl.Series(assignment.targets).gather(assignment.choice),
            "correctness": assignment.correctness,
            "expected_cost": assignment.cost,
        }
    )
    content = io.BytesIO()
    table.write_parquet(content)
    path.write_bytes(content.getbuffer())  # written by Python, so that a full disk is an OSError


def _summary(
    assignment: Assignment,
    pool: Pool,
    formats: Mapping[str, BatchFormat],
    batches: Mapping[str, list[str]],
    accuracy: ExpectedAccuracy | None,
) -> dict[str, Any]:
    predicted = assignment.expected_right / len(assignment)
    return {
        "format": _FORMAT,
        "prompts": len(assignment),
        "budget": assignment.budget,
        "expected_cost": assignment.expected_cost,
        "expected_right": assignment.expected_right,
        "bound": assignment.bound,
        "gap": assignment.gap,
        "lam": assignment.lam,
        "limits": dict(assignment.limits),
        "prices_of_limits": dict(assignment.prices),
        "accuracy": {"predicted": predicted} if accuracy is None else accuracy.to_dict(),
        "targets": {
            name: {**figures, "batch": formats[name], "files": batches[name]}
            for name, figures in target_figures(assignment).items()
        },
        "pool": pool.public().to_dict(),
    }


def target_figures(assignment: Assignment) -> dict[str, dict[str, Any]]:
    """The prompts, the expected right answers and the estimated cost of each target."""
    count = len(assignment.targets)
    right = np.bincount(assignment.choice, weights=assignment.correctness, minlength=count)
    cost = np.bincount(assignment.choice, weights=assignment.cost, minlength=count)
    rows = zip(assignment.counts.items(), right.tolist(), cost.tolist(), strict=True)
    return {
        name: {"prompts": prompts, "expected_right": expected, "expected_cost": dollars}
        for (name, prompts), expected, dollars in rows
    }


@final
@dataclass(frozen=True, eq=False)
class SavedAssignment:
    """An assignment's folder, read again.

    Attributes:
        folder: The folder.
        summary: The content of `assignment.json`.
        table: The content of `assignment.parquet`.
        pool: The targets with the prices of the forecast.
    """

    folder: Path
    summary: Mapping[str, Any]
    table: pl.DataFrame
    pool: Pool

    @classmethod
    def read(cls, folder: Path) -> "SavedAssignment":
        """Read the folder and check it.

        Raises:
            FormatError: It isn't an assignment.
            CorruptError: A file isn't what was written, or is of another version.
        """
        if not FOLDER.is_own(folder):
            raise FormatError(
                "isn't an assignment; make one with: prefill-router assign", file=folder
            )
        files.verify_checksums(folder, [SUMMARY, TABLE], fix="assign the prompts again")
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        if summary["format"] != _FORMAT:
            raise CorruptError(
                f"{folder / SUMMARY} has the format {summary['format']!r}; this package reads "
                f"{_FORMAT!r}: assign the prompts again"
            )
        try:
            pool = pool_from_dict(summary["pool"], source=folder / SUMMARY)
            with (folder / TABLE).open("rb") as file:  # Polars would read a path as a glob pattern
                table = pl.read_parquet(file)
        except (PrefillRouterError, KeyError, OSError) as error:
            raise CorruptError(f"{folder} isn't what was written: {error}") from None
        return cls(folder, summary, table, pool)
