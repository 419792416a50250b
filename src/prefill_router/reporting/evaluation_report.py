"""The report of an evaluation on disk: numbers for programs, tables, figures, one page for people.

    metrics.json           every number with its interval, and the definitions used
    curve.csv              every exact operating point of the accuracy-cost curve
    targets.csv            every number of every target
    operating_points.csv   the paper's lambda table
    index.html             one page with all of it; opens without a network
    figures/               accuracy_cost and accuracy_cost_normalised: .png, .svg, .csv

The folder is written whole or not at all. Costs in files are US dollars per query.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from prefill_router import files
from prefill_router.errors import DataError, MissingExtraError
from prefill_router.evaluation.evaluation import Evaluation

FORMAT = "prefill-router report 1"
METRICS = "metrics.json"
PAGE = "index.html"
VIEWS = {"raw": "accuracy_cost", "normalised": "accuracy_cost_normalised"}


def is_report(folder: Path) -> bool:
    """Whether a folder is a report that this package wrote."""
    try:
        value = json.loads((folder / METRICS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and str(value.get("format", "")).startswith(FORMAT[:-1])


def write_report(
    evaluation: Evaluation,
    folder: Path | str,
    *,
    title: str = "Evaluation",
    facts: Mapping[str, str] | None = None,
) -> None:
    """Write a report, whole or not at all; an earlier report in the folder is replaced.

    Args:
        evaluation: What is reported.
        folder: Where to; empty, not there yet, or an earlier report.
        title: Heads the page.
        facts: What the reader must know of it, such as the router, the data, the date.

    Raises:
        DataError: The folder holds something else than a report.
        MissingExtraError: Matplotlib isn't installed; all but the figures and the page is written.
    """
    folder = Path(folder)
    check_replaceable(folder)
    facts = dict(facts or {})
    missing: MissingExtraError | None = None
    with files.replacing_folder(folder) as temporary:
        head = {"format": FORMAT, "title": title, "facts": facts}
        files.write_json(temporary / METRICS, head | evaluation.to_dict())
        for name, frame in tables(evaluation).items():
            (temporary / f"{name}.csv").write_text(frame.write_csv(), encoding="utf-8")
        try:
            _write_figures(evaluation, temporary, title, facts)
        except MissingExtraError as error:
            missing = error
    if missing is not None:
        raise missing


def check_replaceable(folder: Path) -> None:
    """Check that a report may be written here; worth doing before long work.

    Raises:
        DataError: The folder holds something else than a report.
        ConfigError: It can't be made.
    """
    if folder.exists() and not is_report(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(
            f"{folder} exists and isn't a report; name another folder, or remove this one"
        )
    files.check_place(folder)


def tables(evaluation: Evaluation) -> dict[str, pl.DataFrame]:
    """The report's tables by name; null where a number isn't defined."""
    targets = [{"target": name, **_flat(values)} for name, values in evaluation.per_target.items()]
    return {
        "curve": pl.DataFrame(evaluation.curve.columns()).fill_nan(None),
        "targets": pl.DataFrame(targets, infer_schema_length=None).fill_nan(None),
        "operating_points": pl.DataFrame(
            [step.to_dict() for step in evaluation.steps], infer_schema_length=None
        ),
    }


def _flat(values: Mapping[str, Any]) -> dict[str, float]:
    row: dict[str, float] = {}
    for name, estimate in values.items():
        row |= {
            name: estimate.value,
            f"{name}_lower": estimate.lower,
            f"{name}_upper": estimate.upper,
        }
    return row


def _write_figures(
    evaluation: Evaluation, folder: Path, title: str, facts: Mapping[str, str]
) -> None:
    # Here and not above: matplotlib takes longer to import than most commands to run.
    from prefill_router.reporting import (
        accuracy_cost_figures,
        evaluation_page,
        figures as rendering,
    )

    (folder / "figures").mkdir()
    inline = {}
    for view, name in VIEWS.items():
        what = accuracy_cost_figures.drawing(evaluation, "raw" if view == "raw" else "normalised")
        figure = accuracy_cost_figures.draw(what)
        path = folder / "figures" / name
        path.with_suffix(".png").write_bytes(rendering.png(figure))
        path.with_suffix(".svg").write_text(rendering.svg(figure), encoding="utf-8")
        rows = pl.DataFrame(what.rows(), infer_schema_length=None).fill_nan(None)
        path.with_suffix(".csv").write_text(rows.write_csv(), encoding="utf-8")
        inline[view] = rendering.inline_svg(figure, label=what.title)
    text = evaluation_page.render(evaluation, title=title, facts=facts, figures=inline)
    (folder / PAGE).write_text(text, encoding="utf-8")
