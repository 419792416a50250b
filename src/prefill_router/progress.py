"""Progress of long work: how far, how fast, how long yet.

Library functions take a `Progress` and know nothing of terminals; the command line passes a
`BarProgress`, everybody else gets `SilentProgress`.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, final, runtime_checkable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress as RichProgress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@runtime_checkable
class Advance(Protocol):
    """Reports that `amount` more units are done."""

    def __call__(self, amount: float = 1, *, note: str = "") -> None:
        """Report progress, and what else is worth showing beside it."""


class Progress(ABC):
    """Something that shows how far a task is."""

    @abstractmethod
    def task(self, label: str, *, total: float) -> AbstractContextManager[Advance]:
        """A context manager that yields an `Advance` for a task of `total` units."""


@final
class SilentProgress(Progress):
    """Shows nothing."""

    @contextmanager
    def _silent(self) -> Iterator[Advance]:
        def advance(amount: float = 1, *, note: str = "") -> None:
            del amount, note

        yield advance

    def task(self, label: str, *, total: float) -> AbstractContextManager[Advance]:
        """A task that nobody watches."""
        del label, total
        return self._silent()


@final
class BarProgress(Progress):
    """A bar on standard error, with the time gone and the time left."""

    def __init__(self, *, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr)

    @contextmanager
    def _bar(self, label: str, total: float) -> Iterator[Advance]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        with RichProgress(*columns, console=self._console, refresh_per_second=4) as bar:
            task = bar.add_task(label, total=total, note="")

            def advance(amount: float = 1, *, note: str = "") -> None:
                bar.update(task, advance=amount, note=note)

            yield advance

    def task(self, label: str, *, total: float) -> AbstractContextManager[Advance]:
        """A task with a bar of its own."""
        return self._bar(label, total)
