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

from prefill_router.reporting import report_files
from prefill_router.reporting.report import Report
from prefill_router.reproduce.cells import all_tables
from prefill_router.reproduce.claims import check
from prefill_router.reproduce.systems import PoolRun

STUDY = "reproduction"
"""What the folder is marked as (`reporting.report_files.mark`)."""
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
    from prefill_router.reproduce.figures import all_figures
    from prefill_router.reproduce.page import page_parts

    tables = all_tables(runs)
    report = Report(
        name="results",
        title=title,
        said=said,
        known=known,
        parts=page_parts(tables, all_figures(runs), check(runs)),
        head={"title": title, "said": list(said), "known": dict(known)},
        numbers=to_dict(runs),
        tables={f"tables/{table.file_name}": table.flat() for table in tables},
    )
    report_files.write(report, folder)
