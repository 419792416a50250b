"""The files of a benchmark and their rows, and what all loaders share.

A copy of a benchmark's files is local, or on the Hugging Face hub. No code of a repository is run:
only data files are fetched, all of one commit, and kept in the hub's own cache.

Files are JSON Lines, a JSON list, CSV or Parquet. An importer leaves a malformed row out; here it
is an error, since a benchmark without some of its questions is another benchmark. Each task comes
with the place of its row.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple, NoReturn, final

from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.importers import DatasetBuilder, Place, Record, documents, parse_list, records
from prefill_router.runs import Task


class PlacedTask(NamedTuple):
    """A task, and the place of its row."""

    place: Place
    task: Task


@final
@dataclass(kw_only=True)
class LoadReport:
    """What a loader has read and left out; filled as the tasks are taken.

    Attributes:
        source: The file, folder, or repository with its commit; empty until the first task.
        skipped: How many questions were left out, by reason.
    """

    source: str = ""
    skipped: Counter[str] = field(default_factory=Counter)


def check_distinct(
    tasks: Iterable[PlacedTask], *, source: str, report: LoadReport
) -> Iterator[Task]:
    """Yield the tasks, and check that their ids are distinct and that there is at least one.

    Raises:
        FormatError: An id repeats, or there is no task.
    """
    first: dict[str, Place] = {}
    for place, task in tasks:
        name = task.query.id
        if name in first:
            raise FormatError(
                f"the id {name!r} is used at {first[name]} already; give each question its own "
                "id, or remove one of them (a question without an id gets its id from its "
                "prompt)",
                file=place.file,
                line=place.line,
            )
        first[name] = place
        yield task
    if not first:
        left_out = "".join(f"; {count:,} left out: {why}" for why, count in report.skipped.items())
        raise FormatError(f"holds no tasks; at least one is needed{left_out}", file=source)


_REFUSED = (401, 403)


class BenchmarkCopy(ABC):
    """The files of a benchmark."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The source of the files, with the commit where that is known."""

    @abstractmethod
    def find(self, names: Sequence[str]) -> list[Path]:
        """The files in any folder whose names match one of these patterns; sorted."""

    def single_file(self) -> Path | None:
        """The file, where a single file was named instead of a folder."""
        return None

    def need(self, names: Sequence[str]) -> list[Path]:
        """The files whose names match one of these patterns.

        Raises:
            FormatError: There is none.
        """
        paths = self.find(names)
        if not paths:
            raise FormatError(f"holds no file named {' or '.join(names)}", file=self.name)
        return paths


@final
@dataclass(frozen=True)
class LocalCopy(BenchmarkCopy):
    """A local copy.

    Attributes:
        path: A folder, or the one file that holds the questions.
    """

    path: Path

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise FormatError("no such file or folder", file=self.path)

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def single_file(self) -> Path | None:
        """The file, unless the path is a folder."""
        return None if self.path.is_dir() else self.path

    def find(self, names: Sequence[str]) -> list[Path]:
        """The matching files of the folder, or of the single file's folder."""
        around = self.path.rglob("*") if self.path.is_dir() else self.path.parent.iterdir()
        return _match_files(list(around), names)


@final
class HubCopy(BenchmarkCopy):
    """Files of a dataset repository, fetched when they are asked for.

    Args:
        repository: The repository's name.
        revision: A branch, tag or commit; the newest where None.
    """

    def __init__(self, repository: str, *, revision: str | None) -> None:
        self._repository = repository
        self._revision = revision
        self._is_commit = False

    @property
    def name(self) -> str:
        """The repository, with the commit once a file has been fetched."""
        commit = f"@{self._revision}" if self._is_commit else ""
        return f"{self._repository}{commit}"

    def find(self, names: Sequence[str]) -> list[Path]:
        """The files, all of the commit that the first fetch found.

        Raises:
            ConfigError: The hub can't be reached, or refuses.
        """
        patterns = [pattern for name in names for pattern in (name, f"*/{name}")]
        folder = _fetch(self._repository, self._revision, patterns)
        self._revision, self._is_commit = folder.name, True
        return _match_files(list(folder.rglob("*")), names)


def _match_files(paths: Sequence[Path], names: Sequence[str]) -> list[Path]:
    return sorted(
        path for path in paths if path.is_file() and any(fnmatch(path.name, name) for name in names)
    )


def _fetch(repository: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        return Path(
            snapshot_download(
                repository, repo_type="dataset", revision=revision, allow_patterns=patterns
            )
        )
    except (HTTPError, OSError, ValueError) as error:
        raise ConfigError(
            f"{repository} can't be fetched from the hub: {_explain_error(error, repository)}. "
            "You can name a local copy of its files instead: NAME=FOLDER"
        ) from None


def _explain_error(error: Exception, repository: str) -> str:
    """What went wrong and what to do; the library's own messages quote headers and tokens."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return _explain_error(error.__cause__, repository)
    if isinstance(error, RevisionNotFoundError):
        return "it has no such revision; leave it out for the newest"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, GatedRepoError) or status in _REFUSED:
        return (
            f"it is only for users who have accepted its terms (HTTP {status}); log in at "
            f"https://huggingface.co/datasets/{repository}, accept them, create a token with read "
            "access, and set HF_TOKEN to it"
        )
    if isinstance(error, RepositoryNotFoundError):
        return "there is no such repository there"
    if status is not None:
        return f"the hub answers with an error (HTTP {status}); try again later"
    if isinstance(error, OSError) and error.filename:
        return f"{error.strerror}: {error.filename}"
    return (
        f"it can't be reached ({type(error).__name__}); check the connection, HF_ENDPOINT and "
        "HF_TOKEN, and unset HF_HUB_OFFLINE"
    )


MAX_LINE = 2**30
"""Longest line of JSON Lines, in characters: one problem's tests can have hundreds of megabytes."""
JSON_LINES = (".jsonl", ".ndjson")
Row = tuple[Place, Record]
"""A row and its place."""
SUFFIXES = (*JSON_LINES, ".json", ".csv", ".parquet")


def rows(path: Path, *, needs: Sequence[str], wants: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a file, each with its place.

    Args:
        path: The file.
        needs: Fields that each row must have.
        wants: Optional fields.

    Raises:
        FormatError: It isn't a file of such rows, or a row is malformed or lacks a field.
    """
    suffix = path.suffix.lower()
    if suffix in JSON_LINES:
        pairs = read_json_lines(path)
    elif suffix == ".json":
        pairs = _read_json_list(path)
    elif suffix in SUFFIXES:
        pairs = records(path, DatasetBuilder(strict=True), needs=needs, wants=wants)
    else:
        raise FormatError(
            f"can't hold tasks; their files' names end in {', '.join(SUFFIXES)}", file=path
        )
    for place, record in pairs:
        lacking = [name for name in needs if name not in record]
        if lacking:
            raise FormatError(f"lacks {lacking}", file=place.file, line=place.line)
        yield place, record


def read_json_lines(path: Path) -> Iterator[Row]:
    """The objects of a JSON Lines file in UTF-8, with or without a byte order mark.

    Raises:
        FormatError: A line is too long, or isn't a JSON object.
    """
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            place = Place(str(path), number)
            try:
                record = _parse_line(line)
            except DataError as error:
                raise FormatError(str(error), file=path, line=number) from None
            if record is not None:
                yield place, record


def _parse_line(line: str) -> dict[str, object] | None:
    """The object of a line; None where it is blank."""
    if len(line) > MAX_LINE:
        raise DataError(f"is a line of more than {MAX_LINE:,} characters")
    if not line.strip():
        return None
    try:
        line.encode()
        record = json.loads(line, parse_constant=_refuse_constant)
    except UnicodeEncodeError:
        raise DataError("isn't UTF-8; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(f"isn't JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"isn't JSON: {error}") from None
    if not isinstance(record, dict):
        raise DataError(f"is a {type(record).__name__}; each line must be a JSON object")
    return record


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number; leave the field out or write null")


def _read_json_list(path: Path) -> Iterator[Row]:
    for document in documents(path):
        for number, item in enumerate(parse_list(document), 1):
            if not isinstance(item, dict):
                raise FormatError(
                    f"is a {type(item).__name__}; each entry must be an object",
                    file=path,
                    line=number,
                )
            yield Place(str(path), number), item
