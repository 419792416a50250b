"""Progress as it is shown: a bar on a terminal, and lines elsewhere."""

import io

import pytest
from rich.console import Console

from prefill_router.progress import BarProgress


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_bar(*, terminal: bool) -> tuple[BarProgress, Clock, io.StringIO]:
    text, clock = io.StringIO(), Clock()
    console = Console(file=text, force_terminal=terminal, width=200)
    return BarProgress(console=console, clock=clock), clock, text


def test_where_there_is_no_terminal_a_line_comes_every_ten_seconds() -> None:
    bar, clock, text = make_bar(terminal=False)
    counts = []
    with bar.task("training [a]", total=1200) as advance:
        for _ in range(60):
            clock.now += 2
            advance(20)
            counts.append(len(text.getvalue().splitlines()))
    assert counts[:11] == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]
    lines = text.getvalue().splitlines()
    assert len(lines) == 12  # eleven on the way, and the end
    assert lines[0] == "training [a]: 100 of 1,200, 0:00:10 gone, about 0:01:50 left"
    assert lines[-1] == "training [a]: 1,200 of 1,200, 0:02:00 gone"


def test_the_note_stands_behind_what_is_left() -> None:
    bar, clock, text = make_bar(terminal=False)
    with bar.task("trials", total=4) as advance:
        clock.now += 30
        advance(note="best 0.7")
    assert text.getvalue().splitlines()[0] == (
        "trials: 1 of 4, 0:00:30 gone, about 0:01:30 left, best 0.7"
    )


def test_a_step_that_takes_long_is_told_once_it_is_done() -> None:
    bar, clock, text = make_bar(terminal=False)
    with bar.task("files", total=2) as advance:
        clock.now += 3600
        advance()
        advance()
    assert text.getvalue().splitlines() == [
        "files: 1 of 2, 1:00:00 gone, about 1:00:00 left",
        "files: 2 of 2, 1:00:00 gone",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_work_that_is_already_done_shows_nothing(terminal: bool) -> None:
    bar, _, text = make_bar(terminal=terminal)
    with bar.task("bootstrap", total=0):
        pass
    assert text.getvalue() == ""


def test_what_fails_has_no_last_line() -> None:
    bar, _, text = make_bar(terminal=False)
    with pytest.raises(RuntimeError), bar.task("files", total=2):
        raise RuntimeError
    assert text.getvalue() == ""


def test_a_terminal_has_a_bar() -> None:
    bar, _, text = make_bar(terminal=True)
    with bar.task("training", total=2) as advance:
        advance(2, note="done [here]")
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in text.getvalue()
    assert "done [here]" in text.getvalue()
