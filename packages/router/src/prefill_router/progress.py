"""Progress of long work: what is done, at which speed, and the time that remains.

Library functions take a `Progress` and know nothing of terminals; the command line passes a
`BarProgress`, and the default is `SilentProgress`.
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

if TYPE_CHECKING:
    from rich.console import Console

EVERY_SECONDS = 10.0
"""Seconds between two lines where there is no terminal to draw a bar on."""


@runtime_checkable
class Advance(Protocol):
    """Reports that `amount` more units are done."""

    def __call__(self, amount: float = 1, *, note: str = "") -> None:
        """Report progress, with a note to show beside it."""


class Progress(ABC):
    """Something that shows the progress of tasks."""

    @abstractmethod
    def task(self, label: str, *, total: float) -> AbstractContextManager[Advance]:
        """A context manager that yields an `Advance` for a task of `total` units."""


@final
class SilentProgress(Progress):
    """Shows nothing."""

    @contextmanager
    def _show_nothing(self) -> Iterator[Advance]:
        def advance(amount: float = 1, *, note: str = "") -> None:
            del amount, note

        yield advance

    def task(self, label: str, *, total: float) -> AbstractContextManager[Advance]:
        """A task whose progress isn't shown."""
        del label, total
        return self._show_nothing()


@final
class BarProgress(Progress):
    """A bar on standard error; where that is no terminal, a line every ten seconds.

    Args:
        console: Where to show it; standard error by default.
        clock: Returns the time in seconds.
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
    def _show_bar(self, label: str, total: float) -> Iterator[Advance]:
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
    def _show_lines(self, label: str, total: float) -> Iterator[Advance]:
        start = last_print = self._clock()
        finished, last = 0.0, ""

        def advance(amount: float = 1, *, note: str = "") -> None:
            nonlocal finished, last, last_print
            finished, last, now = finished + amount, note, self._clock()
            if now - last_print >= EVERY_SECONDS and finished < total:
                last_print = now
                self._print_line(_describe_progress(label, finished, total, now - start, note))

        yield advance
        self._print_line(_describe_progress(label, finished, total, self._clock() - start, last))

    def _print_line(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def task(self, label: str, *, total: float) -> AbstractContextManager[Advance]:
        """A task with its own bar or lines; one without work shows nothing."""
        if not total:
            return SilentProgress().task(label, total=total)
        show = self._show_bar if self._console.is_terminal else self._show_lines
        return show(label, total)


def default_progress() -> Progress:
    """A bar where a person watches, in a terminal or a notebook; else nothing."""
    is_notebook = "ipykernel" in sys.modules
    return BarProgress() if is_notebook or sys.stderr.isatty() else SilentProgress()


def _describe_progress(label: str, amount: float, total: float, seconds: float, note: str) -> str:
    """What a task has done, and the time that remains at the speed so far."""
    text = f"{label}: {amount:,.0f} of {total:,.0f}, {_format_duration(seconds)} gone"
    if 0 < amount < total:
        text += f", about {_format_duration(seconds * (total - amount) / amount)} left"
    return f"{text}, {note}" if note else text


def _format_duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
