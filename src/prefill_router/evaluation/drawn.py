"""A figure on disk: PNG and SVG to look at, CSV to read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from prefill_router import files
from prefill_router.evaluation.rendering import png, svg


def write_figure(figure: Figure, path: Path, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write a figure and its data, each file whole or not at all.

    Args:
        figure: What is drawn.
        path: Where to, without a suffix.
        rows: The data of the figure, one mapping per point.

    Returns:
        The files: `.png`, `.svg` and `.csv`.
    """
    written = [path.with_name(path.name + suffix) for suffix in (".png", ".svg", ".csv")]
    with files.replacing_file(written[0]) as temporary:
        temporary.write_bytes(png(figure))
    files.write_text(written[1], svg(figure))
    frame = pl.DataFrame([dict(row) for row in rows], infer_schema_length=None)
    files.write_text(written[2], frame.fill_nan(None).write_csv())
    return written
