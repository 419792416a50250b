"""Progress of long work: how far, how fast, how long yet.

Library functions take a `Progress` and know nothing of terminals; the command line passes a
`BarProgress`, everybody else gets `SilentProgress`.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

if TYPE_CHECKING:
    from rich.console import Console

EVERY_SECONDS = 10.0
"""Between two lines where there is no terminal to draw a bar on."""


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
    """A bar on standard error; where that is no terminal, a line every ten seconds.

    Args:
        console: Where to show it; standard error by default.
        clock: Gives seconds.
    """

    def __init__(
        self,
        *,
        console: "Console | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console

        self._console = console or Console(stderr=True)
        self._clock = clock

    @contextmanager
    def _bar(self, label: str, total: float) -> Iterator[Advance]:
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[note]}", markup=False),
        )
        with progress.Progress(*columns, console=self._console, refresh_per_second=4) as bar:
            task = bar.add_task(label, total=total, note="")

            def advance(amount: float = 1, *, note: str = "") -> None:
                bar.update(task, advance=amount, note=note)

            yield advance

    @contextmanager
    def _lines(self, label: str, total: float) -> Iterator[Advance]:
        start = told = self._clock()
        done, last = 0.0, ""

        def advance(amount: float = 1, *, note: str = "") -> None:
            nonlocal done, last, told
            done, last, now = done + amount, note, self._clock()
            if now - told >= EVERY_SECONDS and done < total:
                told = now
                self._tell(_line(label, done, total, now - start, note))

        yield advance
        self._tell(_line(label, done, total, self._clock() - start, last))

    def _tell(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def task(self, label: str, *, total: float) -> AbstractContextManager[Advance]:
        """A task with a bar, or lines, of its own."""
        shown = self._bar if self._console.is_terminal else self._lines
        return shown(label, total)


def _line(label: str, done: float, total: float, seconds: float, note: str) -> str:
    """How far a task is, and how long yet at the speed so far."""
    told = f"{label}: {done:,.0f} of {total:,.0f}, {_duration(seconds)} gone"
    if 0 < done < total:
        told += f", about {_duration(seconds * (total - done) / done)} left"
    return f"{told}, {note}" if note else told


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
