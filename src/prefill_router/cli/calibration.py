"""`prefill-router calibration`: how well a router is calibrated, and what would improve it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router import files
from prefill_router.cli import options as opt
from prefill_router.cli.application import app, columns, err, out, print_json
from prefill_router.errors import ConfigError, DataError
from prefill_router.progress import BarProgress

if TYPE_CHECKING:
    from rich.table import Table

    from prefill_router.activations import ActivationStore
    from prefill_router.data import RoutingDataset
    from prefill_router.evaluation import CalibratorComparison, Estimate, Reliability, Trial
    from prefill_router.router import Router

_HOW = (
    "the router's split has no calibration part to fit calibrators on, so none was tried; draw a "
    "split with one (prefill-router split DIR --calibration --out split.json) and fit the router "
    "with --split split.json"
)


@app.command()
def calibration(
    folder: opt.RouterFolder,
    data: opt.Data,
    to: Annotated[Path, typer.Option("--out", help="A folder for the figure and the tables.")],
    store: opt.Stores = None,
    bins: Annotated[
        int, typer.Option(help="Bins of the calibration error and of the figure.")
    ] = 15,
    resamples: opt.Resamples = 1000,
    seed: opt.ResampleSeed = 0,
    encoder_folder: opt.EncoderFolders = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show how well a router is calibrated on its test part, and what calibrators would change.

    Of the answers predicted at 0.7, seven in ten should be right. Each calibrator is fitted
    on the calibration part of the router's split, if it has one, and judged on the test part; the
    router's own calibrator is left out there, and counts in everything else.

    Example: prefill-router calibration router --data answers --out calibration
    """
    from prefill_router.data import read_dataset
    from prefill_router.evaluation import reliability_of, try_calibrators

    _check(to)
    router = opt.load_router(folder, encoder_folder)
    dataset = read_dataset(data)
    stores = opt.open_stores(store)
    bar = BarProgress(console=err)
    found = reliability_of(
        _trial(router, dataset, "test", stores, bar),
        bins=bins,
        resamples=resamples,
        seed=seed,
        progress=bar,
    )
    tried: Sequence[CalibratorComparison] = ()
    if "calibration" in router.split.parts:
        bare = replace(router, calibrator=None)  # its own was fitted on this part
        parts = [_trial(bare, dataset, part, stores, bar) for part in ("calibration", "test")]
        tried = try_calibrators(*parts, resamples=resamples, seed=seed, progress=bar)
    _write(found, tried, to, title=f"Reliability of {folder.name} on {data.name}, test part")
    if as_json:
        print_json(found.to_dict() | {"calibrators": [one.to_dict() for one in tried]})
    else:
        _show(found, tried)
        out.say(f"figure and tables: {to}")
    if not tried:
        err.say(f"note: {_HOW}")


def _check(to: Path) -> None:
    """Check, before long work, that the folder can be written."""
    if to.exists() and not to.is_dir():
        raise ConfigError(f"{to} is a file; --out takes a folder")
    files.check_place(to / "reliability.png")


def _trial(
    router: "Router",
    dataset: "RoutingDataset",
    part: str,
    stores: Sequence["ActivationStore"],
    progress: BarProgress,
) -> "Trial":
    """The router's predictions on a part of its split, joined with the outcomes."""
    from prefill_router.evaluation import Trial

    ids = router.split["calibration" if part == "calibration" else "test"]
    lacking = set(ids) - set(dataset.query_ids)
    if lacking:
        raise DataError(
            f"the dataset lacks {len(lacking):,} of the {len(ids):,} queries in the {part} part of "
            "the router's split; give the dataset that the router was fitted on, all of it"
        )
    chosen = dataset.select(ids)
    predicted = opt.predict(router, chosen, stores, progress)
    return Trial.join(predicted, chosen)


def _write(
    found: "Reliability", tried: "Sequence[CalibratorComparison]", to: Path, *, title: str
) -> None:
    import polars as pl

    from prefill_router.reporting import write_diagrams

    write_diagrams(found, to / "reliability", title=title)
    plain = found.to_dict() | {"calibrators": [one.to_dict() for one in tried]}
    files.write_json(to / "calibration.json", plain)
    tables = {"targets.csv": found.rows(), "calibrators.csv": [one.row() for one in tried]}
    for name, rows in tables.items():
        if rows:
            table = pl.DataFrame(rows, infer_schema_length=None).fill_nan(None)
            files.write_text(to / name, table.write_csv())
        else:  # left by an earlier run on another split
            (to / name).unlink(missing_ok=True)


def _show(found: "Reliability", tried: "Sequence[CalibratorComparison]") -> None:
    out.print(_errors(found))
    out.print()
    out.print(_brier(found))
    if found.resamples:
        out.print()
        out.say(_verdict(found.off))
    if tried:
        out.print()
        out.print(_calibrators(tried))
    for note in dict.fromkeys(note for one in tried for note in one.fit.notes):
        out.say(f"note: {note}")


def _verdict(off: Sequence[str]) -> str:
    if not off:
        return "no target's probabilities are further off than chance explains"
    return f"further off than chance explains, worst first: {', '.join(off)}"


def _errors(found: "Reliability") -> "Table":
    """How far off the probabilities are, and which way."""
    table = _table(f"{found.queries:,} test queries", "ECE", "95 %", "chance", "bias", "log loss")
    for name, row in found.estimates.items():
        table.add_row(
            name,
            _number(row["ece"].value),
            _interval(row["ece"]),
            _number(row["ece_by_chance"].value),
            _number(row["bias"].value, "+.3f"),
            _number(row["log_loss"].value),
        )
    return table


def _brier(found: "Reliability") -> "Table":
    """The decomposition of the Brier score."""
    table = _table("Brier score", "", "= rel.", "- resol.", "+ uncert.", "+ within")
    parts = ("brier", "reliability", "resolution", "uncertainty", "within")
    for name, row in found.estimates.items():
        table.add_row(name, *(_number(row[part].value) for part in parts))
    return table


def _calibrators(tried: "Sequence[CalibratorComparison]") -> "Table":
    """The metrics of each calibrator, with the interval of its change in Brier score."""
    from prefill_router.calibration import find

    table = _table("calibrator", "ECE", "chance", "Brier", "change, 95 %", "loss", "AUC", "lam 1")
    for one in tried:
        values = {name: value.value for name, value in one.values.items()}
        table.add_row(
            find(one.kind).label,
            _number(values["ece"]),
            _number(values["ece_by_chance"]),
            _number(values["brier_mean"], ".4f"),
            "" if one.kind == "none" else _interval(one.differences["brier_mean"], "+.4f"),
            _number(values["log_loss"]),
            _number(values["auc_mean"], ".4f"),
            _number(100 * values["argmax_accuracy"], ".1f") + "%",
        )
    return table


def _table(first: str, *others: str) -> "Table":
    return columns(first, *others, fold=True, no_wrap=True)


def _number(value: float, style: str = ".3f") -> str:
    return "-" if math.isnan(value) else f"{value:{style}}"


def _interval(estimate: "Estimate", style: str = ".3f") -> str:
    if math.isnan(estimate.lower):
        return "-"
    return f"{estimate.lower:{style}} to {estimate.upper:{style}}"
