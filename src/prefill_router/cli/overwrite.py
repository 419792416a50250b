"""What a command writes takes the place of nothing of another origin, unless that is asked for."""

import filecmp
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router import files
from prefill_router.errors import ConfigError

if TYPE_CHECKING:
    from prefill_router.data import Origin

Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what --out holds, even of another origin.")
]
"""The option that lets a result of another origin be replaced."""


def check_origin(folder: Path, origin: "Origin", *, overwrite: bool) -> None:
    """Check that a report's folder is empty, or of a run on the same router and data.

    Raises:
        ConfigError: It holds a report of something else.
    """
    from prefill_router.data import Origin

    if overwrite or not folder.is_dir() or not any(folder.iterdir()):
        return
    there = Origin.read(folder)
    if there != origin:
        known = "of an unknown origin" if there is None else str(there)
        raise ConfigError(
            f"{folder} is a report {known}, which would be lost; name another folder, or say "
            "--overwrite"
        )


def check_same(place: Path, written: Path, *, overwrite: bool) -> None:
    """Check that a place is free, or holds what would take its place.

    Raises:
        ConfigError: It holds something else.
    """
    if not overwrite and place.exists() and not filecmp.cmp(written, place, shallow=False):
        raise ConfigError(
            f"{place} holds something else, which would be lost; name another file, or say "
            "--overwrite"
        )


@contextmanager
def replacing(place: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a place to write a file at; it becomes `place` unless something else stands there.

    Raises:
        ConfigError: Something does, and `overwrite` isn't said.
    """
    if place.is_dir():
        raise ConfigError(f"{place} is a folder; name a file in it, such as {place / 'new'}")
    with files.replacing_file(place) as temporary:
        yield temporary
        check_same(place, temporary, overwrite=overwrite)
    files.refresh_checksum(place)  # a dataset whose pool it is stays intact
