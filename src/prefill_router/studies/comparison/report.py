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

from prefill_router.evaluation.bootstrap import Estimate, plain
from prefill_router.evaluation.evaluation import Estimates
from prefill_router.reporting import report_files
from prefill_router.reporting.report import Report, Rows, flat
from prefill_router.studies.comparison.comparison import ComparedRouter, ComparisonResult

STUDY = "comparison"
"""What the folder is marked as (`reporting.report_files.mark`)."""


def write(result: ComparisonResult, folder: Path, *, title: str, known: Mapping[str, str]) -> None:
    """Write the report, each file whole or not at all.

    Args:
        result: What is reported.
        folder: Where to.
        title: Heads the page.
        known: What the reader must know of the data.
    """
    # Here and not above: matplotlib takes longer to import than most commands to run.
    from prefill_router.studies.comparison.page import page_parts, verdict

    report = Report(
        name="compare",
        title=title,
        said=verdict(result),
        known=known,
        parts=page_parts(result),
        numbers=to_dict(result),
        tables=tables(result),
    )
    report_files.write(report, folder)


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


def tables(result: ComparisonResult) -> dict[str, Rows]:
    """The rows of the report's tables by name."""
    routers, paired, targets = [], [], []
    for one in result.routers:
        own = {"router": one.name}
        routers.append({**own, "seconds": one.fitted.seconds, **flat(one.headline)})
        for minus, differences in (("reference", one.against), ("constant", one.over_constant)):
            for name, found in differences.items():
                row = {**own, "minus": minus, "number": name, **_ends("difference", found)}
                paired.append({**row, "significant": found.lower > 0 or found.upper < 0})
        for target, values in one.evaluation.per_target.items():
            for name in ("auc", "brier"):
                row = {**own, "target": target, "number": name}
                targets.append({**row, **_ends("value", values[name])})
    return {"routers": routers, "paired": paired, "targets": targets}


def _ends(name: str, found: Estimate) -> dict[str, float]:
    return {name: found.value, "lower": found.lower, "upper": found.upper}
