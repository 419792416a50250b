"""A reproduction on disk.

study.json      what the folder is for, and what was asked
results.json    every number of every table, ours and the paper's
tables/         each table as CSV, one row per number
figures/        each figure: .png, .svg, .csv
index.html      one page with all of it, in the paper's order; opens without a network
work/           what was fitted and computed on the way; interrupted work goes on from there
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from prefill_router import files
from prefill_router.reproduce.claims import check
from prefill_router.reproduce.systems import PoolRun
from prefill_router.reproduce.tables import all_tables

STUDY = "reproduction"
"""What the folder is marked as (`reporting.study_report.mark`)."""
NUMBERS = "results.json"
WORK = "work"


def to_dict(runs: Sequence[PoolRun]) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "pools": {
            run.title: {
                "paper_pool": run.pool,
                "is_counterpart": run.found.is_counterpart,
                "targets": {
                    target: run.found.names.get(target) for target in run.found.dataset.pool.names
                },
                "queries": {part: len(ids) for part, ids in run.drawn.parts.items()},
                "not_fitted": {one.name: one.why for one in run.result.failed},
                "routing_ratio": dict(run.parts.get("ratio", {})),
            }
            for run in runs
        },
        "claims": [vars(claim) for claim in check(runs)],
        "tables": [table.to_dict() for table in all_tables(runs)],
    }


def write(
    runs: Sequence[PoolRun],
    folder: Path,
    *,
    title: str,
    said: Sequence[str],
    known: Mapping[str, str],
) -> None:
    """Write the report, each file whole or not at all.

    Args:
        runs: The pools, worked through.
        folder: Where to, checked and marked before.
        title: Heads the page.
        said: What is to be known first, in sentences.
        known: The data, the encoder, the work.
    """
    # Here and not above: matplotlib takes longer to import than most commands to run.
    from prefill_router.reporting.figures import inline_svg, write_figure
    from prefill_router.reproduce.figures import all_figures
    from prefill_router.reproduce.page import render

    tables, pictures, svg = all_tables(runs), all_figures(runs), {}
    for name in ("tables", "figures"):
        (folder / name).mkdir(exist_ok=True)
    for table in tables:
        frame = pl.DataFrame(table.flat(), infer_schema_length=None).fill_nan(None)
        files.write_text(folder / "tables" / f"{table.file_name}.csv", frame.write_csv())
    for picture in pictures:
        if picture.drawn is not None:
            write_figure(picture.drawn[0], folder / "figures" / picture.name, picture.drawn[1])
            svg[picture.name] = inline_svg(picture.drawn[0], label=picture.title)
    head = {"title": title, "said": list(said), "known": dict(known)}
    files.write_json(folder / NUMBERS, {**head, **to_dict(runs)})
    html = render(tables, pictures, check(runs), title=title, said=said, known=known, svg=svg)
    files.write_text(folder / "index.html", html)
