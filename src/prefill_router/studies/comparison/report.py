"""A comparison on disk.

compare.json    the plan, and every number of every router with its interval
routers.csv     the headline numbers, a row per router
paired.csv      each router minus the reference, and minus the constant predictor
targets.csv     AUC and Brier score of every router and target
figures/        curves and intervals: .png, .svg, .csv
index.html      one page with all of it; opens without a network
routers/        every router, ready to load
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from prefill_router import files
from prefill_router.evaluation.bootstrap import Estimates, plain
from prefill_router.studies.comparison.comparison import ComparedRouter, ComparisonResult

STUDY = "comparison"
"""What the folder is marked as (`reporting.study_report.mark`)."""
NUMBERS = "compare.json"


def write(result: ComparisonResult, folder: Path, *, title: str, known: Mapping[str, str]) -> None:
    """Write the report, each file whole or not at all.

    Args:
        result: What is reported.
        folder: Where to.
        title: Heads the page.
        known: What the reader must know of the data.
    """
    # Here and not above: matplotlib takes longer to import than most commands to run.
    from prefill_router.reporting.figures import inline_svg, write_figure
    from prefill_router.studies.comparison import figures as drawing, page

    figures = {
        "curves": (drawing.draw_curves(result), drawing.curve_rows(result)),
        "intervals": (drawing.draw_intervals(result), drawing.interval_rows(result)),
    }
    (folder / "figures").mkdir(exist_ok=True)
    for name, (figure, rows) in figures.items():
        write_figure(figure, folder / "figures" / name, rows)
    for name, table in tables(result).items():
        files.write_text(folder / f"{name}.csv", table.fill_nan(None).write_csv())
    files.write_json(folder / NUMBERS, {"title": title, "known": dict(known), **to_dict(result)})
    svg = {name: inline_svg(figure, label=name) for name, (figure, _) in figures.items()}
    files.write_text(folder / "index.html", page.render(result, title=title, known=known, svg=svg))


def to_dict(result: ComparisonResult) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "reference": result.plan.reference,
        "seed": result.plan.seed,
        "routers": {one.name: _one(one) for one in result.routers},
        "failed": {one.name: one.why for one in result.failed},
    }


def _one(one: ComparedRouter) -> dict[str, Any]:
    return {
        "recipe": one.fitted.recipe.to_dict(),
        "seconds": plain(one.fitted.seconds),
        "notes": list(one.fitted.router.record.notes),
        "evaluation": {**one.evaluation.to_dict(), **_plain(one.headline)},
        "minus_reference": _plain(one.against),
        "minus_constant": _plain(one.over_constant),
    }


def _plain(estimates: Estimates) -> dict[str, Any]:
    return {name: estimate.to_dict() for name, estimate in estimates.items()}


def tables(result: ComparisonResult) -> dict[str, pl.DataFrame]:
    """The report's tables by name; null where a number isn't defined."""
    routers, paired, targets = [], [], []
    for one in result.routers:
        row: dict[str, Any] = {"router": one.name, "seconds": one.fitted.seconds}
        for name, estimate in one.headline.items():
            row |= {
                name: estimate.value,
                f"{name}_lower": estimate.lower,
                f"{name}_upper": estimate.upper,
            }
        routers.append(row)
        for minus, differences in (("reference", one.against), ("constant", one.over_constant)):
            for name, estimate in differences.items():
                paired.append(
                    {
                        "router": one.name,
                        "minus": minus,
                        "number": name,
                        "difference": estimate.value,
                        "lower": estimate.lower,
                        "upper": estimate.upper,
                        "significant": estimate.lower > 0 or estimate.upper < 0,
                    }
                )
        for target, values in one.evaluation.per_target.items():
            for name in ("auc", "brier"):
                estimate = values[name]
                targets.append(
                    {
                        "router": one.name,
                        "target": target,
                        "number": name,
                        "value": estimate.value,
                        "lower": estimate.lower,
                        "upper": estimate.upper,
                    }
                )
    frames = {"routers": routers, "paired": paired, "targets": targets}
    return {name: pl.DataFrame(rows, infer_schema_length=None) for name, rows in frames.items()}
