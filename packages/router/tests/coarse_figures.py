"""Figures of few pixels and without a layout, for tests that aren't about how they look."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from matplotlib.figure import Figure

DPI = 40


@contextmanager
def coarse_figures() -> Iterator[None]:
    """Draw this process's figures with few pixels and without a layout."""
    make, save = Figure.__init__, Figure.savefig

    def make_plainly(figure: Figure, *args: Any, **options: Any) -> None:
        make(figure, *args, **options | {"layout": None})

    def save_coarsely(figure: Figure, *args: Any, **options: Any) -> None:
        save(figure, *args, **options | {"dpi": DPI})

    with (
        mock.patch.object(Figure, "__init__", make_plainly),
        mock.patch.object(Figure, "savefig", save_coarsely),
    ):
        yield
