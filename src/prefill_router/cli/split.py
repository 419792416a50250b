"""`prefill-router split`: draw a split and save it by query id."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router import files
from prefill_router.cli.app import app, out, print_json
from prefill_router.cli.overwrite import Overwrite
from prefill_router.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from prefill_router.data import (
        Split,
    )


@app.command(name="split")
def split_command(
    folder: Annotated[Path, typer.Argument(metavar="DATA", help="The dataset folder.")],
    to: Annotated[Path, typer.Option("--out", help="The JSON file to write.")],
    seed: Annotated[int, typer.Option(help="Another seed, another split.")] = 0,
    calibration: Annotated[
        bool, typer.Option("--calibration", help="75/10/15 with a calibration part, not 85/15.")
    ] = False,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Draw train and test parts, stratified and saved by query id, for every stage to share.

    Example: prefill-router split answers --seed 0 --out split.json
    """
    from prefill_router.data import FRACTIONS, WITH_CALIBRATION, read_dataset, save_split, split

    files.check_place(to)
    if to.is_dir():
        raise ConfigError(f"{to} is a folder; a split is a file: name one, such as {to}/split.json")
    dataset = read_dataset(folder)
    drawn = split(dataset, seed=seed, fractions=WITH_CALIBRATION if calibration else FRACTIONS)
    if to.exists() and not overwrite and not _is_same(drawn, to):
        raise ConfigError(
            f"{to} is another split, or something else; name another file, or say --overwrite"
        )
    save_split(drawn, to)
    sizes = {part: len(ids) for part, ids in drawn.parts.items()}
    if as_json:
        print_json({"parts": sizes, "merged_strata": dict(drawn.merged), "file": str(to)})
        return
    out.print(", ".join(f"{part} {count:,}" for part, count in sizes.items()), f"-> {to}")
    if drawn.merged:
        small = ", ".join(f"{name} ({count})" for name, count in drawn.merged.items())
        out.print(f"strata too small to split alone, merged by regime: {small}", soft_wrap=True)


def _is_same(drawn: "Split", there: Path) -> bool:
    """Whether a file holds this very split."""
    from prefill_router.data import load_split

    try:
        return load_split(there) == drawn
    except FormatError:
        return False
