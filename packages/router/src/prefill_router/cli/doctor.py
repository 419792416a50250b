"""`prefill-router doctor` and `calibration`: what a router is worth, and its probabilities.

`doctor` says whether a router is more than a fixed choice; `calibration` how well it is calibrated,
and what would improve it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from prefill_router import files
from prefill_router.cli import options as opt
from prefill_router.cli.application import ExitCode, app, columns, err, out, print_json
from prefill_router.cli.judged_queries import CROSS_FIT, JudgedQueries, check_part_name
from prefill_router.errors import ConfigError, DataError, PrefillRouterError
from prefill_router.options import AT_LEAST_ONE, NOT_NEGATIVE
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from rich.table import Table

    from prefill_router.activations import Activations, ActivationStore
    from prefill_router.data import RoutingDataset
    from prefill_router.doctor import Checkup, PerQuery, Probe
    from prefill_router.evaluation import CalibratorComparison, Estimate, Reliability, Trial
    from prefill_router.robustness import RobustnessStudy
    from prefill_router.router import Router


CODES = {
    "worth it": ExitCode.DONE,
    "not worth it": ExitCode.NO_BETTER,
    "can't tell": ExitCode.CANT_TELL,
}
"""Exit codes by verdict."""


@app.command()
def doctor(
    folder: opt.RouterFolder,
    data: opt.Data,
    to: Annotated[Path | None, typer.Option("--out", help="A folder for the report.")] = None,
    given_lam: opt.OwnLam = None,
    part: opt.UnseenPart = None,
    store: opt.Stores = None,
    resamples: Annotated[
        int, Field(ge=20), typer.Option(help="Bootstrap resamples and shuffles, at least 20.")
    ] = 1000,
    seed: Annotated[int, NOT_NEGATIVE, typer.Option(help="Seed of everything that is random.")] = 0,
    probe: Annotated[
        bool, typer.Option(help="Also predict on nonsense prompts; needs the encoder.")
    ] = True,
    robustness: Annotated[
        int,
        NOT_NEGATIVE,
        typer.Option(
            help="How many queries to perturb, to count the decisions that change; 0 for "
            "none. It needs the encoder."
        ),
    ] = 50,
    encoder_folder: opt.EncoderFolders = None,
    overwrite: opt.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print doctor.json.")] = False,
) -> None:
    """Examine whether a router is more than a fixed choice.

    The router is judged on queries that it wasn't fitted on. It is compared with its own choices,
    shuffled over the queries, and with the best fixed mix of targets at the same cost. Exit codes:
    0 worth it, 4 not worth it, 5 can't tell.

    Example: prefill-router doctor router --data answers --out check-up
    """
    from prefill_router.data import Origin, read_dataset
    from prefill_router.doctor import KIND, write_checkup

    check_part_name(part)
    origin = Origin.of("doctor", folder, data)
    if to is not None:
        KIND.check_replaceable(to)
        opt.check_origin(to, origin, overwrite=overwrite)
    router = opt.load_router(folder, encoder_folder)
    lam = opt.own_lam(router, given_lam)
    dataset = read_dataset(data)
    dataset.meaning.refuse_votes("doctor")
    queries = JudgedQueries.of(router, dataset, part)
    stores = opt.open_stores(store)
    checkup = _examine_router(
        queries,
        stores,
        lam=lam,
        given_lam=given_lam,
        resamples=resamples,
        seed=seed,
        nonsense=probe,
        perturb=robustness,
    )
    if to is not None:
        facts = _list_facts(queries, folder, data, lam)
        title = f"Check-up of {folder.name} on {data.name}"
        write_checkup(checkup, to, title=title, facts=facts, origin=origin)
    if as_json:
        print_json(checkup.to_dict())
    else:
        _show_checkup(checkup, to)
    raise typer.Exit(CODES[checkup.verdict])


def _list_facts(
    queries: JudgedQueries, folder: PathOrUrl, data: PathOrUrl, lam: float
) -> dict[str, str]:
    """The facts on the report's page."""
    return {
        "router": str(folder),
        "dataset": f"{data}, {queries.words}",
        "queries": f"{len(queries.judged):,}",
        "trained on": f"{len(queries.router.split['train']):,}",
        "lam": f"{lam:g}",
        "prices": queries.router.pool.prices_date or "undated",
    }


def _examine_router(
    queries: JudgedQueries,
    stores: Sequence["Activations"],
    *,
    lam: float,
    given_lam: float | None,
    resamples: int,
    seed: int,
    nonsense: bool,
    perturb: int,
) -> "Checkup":
    from prefill_router.doctor import Subject, examine
    from prefill_router.evaluation import Trial

    router, judged = queries.router, queries.judged
    if queries.train is None:
        raise DataError(
            "the dataset has none of the queries that the router was fitted on, and the "
            "fixed choices are learned from these; give the whole dataset"
        )
    bar, notes = BarProgress(console=err), []
    trial = Trial.join(queries.predict(stores, bar), judged, policy=router.policy)
    parts = tuple(queries.judged_parts(trial, lam=given_lam))
    is_crossed = queries.part == CROSS_FIT  # there, the train rows themselves are judged
    distances = None if is_crossed else _find_distances(router, queries.train, judged, stores)
    if distances is None and not is_crossed:
        notes.append(
            "the distance from the train rows wasn't measured: no store holds their states; "
            "give it with --store"
        )
    probed, reason = _probe_router(router, lam, seed) if nonsense else (None, "it was left out")
    if probed is None:
        notes.append(f"confidence on nonsense wasn't probed: {reason}")
    if is_crossed and perturb:
        notes.append("the decisions that flip are those on queries that it was fitted on")
    flips, reason = _count_flips(router, judged, stores, lam, perturb, seed, bar)
    if flips is None:
        notes.append(f"the share of decisions that flip wasn't measured: {reason}")
    return examine(
        Subject(trial, judged.queries, queries.train, lam, parts),
        distances=distances,
        probe=probed,
        flips=flips,
        resamples=resamples,
        shuffles=resamples,
        seed=seed,
        notes=tuple(notes),
        progress=bar,
    )


def _find_distances(
    router: "Router",
    train: "RoutingDataset",
    judged: "RoutingDataset",
    stores: Sequence["Activations"],
) -> "PerQuery | None":
    """Distances in the router's features, where the stores hold the states of the train part."""
    from prefill_router.doctor import distances
    from prefill_router.features import PromptStates
    from prefill_router.router import find_finished_store

    keys = [*train.prompt_keys, *judged.prompt_keys]
    features = router.features
    stored = [
        find_finished_store(
            stores, source.provenance, features.sites_of(source.provenance), source.rounding, keys
        )
        for source in features.sources
    ]
    states = [store for store in stored if store is not None]
    if len(states) < len(stored):
        return None
    near, far = (features.read(PromptStates.of_dataset(part, states)) for part in (train, judged))
    return distances(near, far)


def _probe_router(router: "Router", lam: float, seed: int) -> "tuple[Probe | None, str]":
    import numpy as np

    from prefill_router.doctor import probe

    def highest(prompts: Sequence[str]) -> "PerQuery":
        decisions = router.route_many(prompts, lam=lam)
        return np.array([max(decision.correctness.values()) for decision in decisions])

    try:
        return probe(highest, seed=seed), ""
    except PrefillRouterError as error:
        return None, str(error)


def _count_flips(
    router: "Router",
    judged: "RoutingDataset",
    stores: Sequence["Activations"],
    lam: float,
    count: int,
    seed: int,
    bar: BarProgress,
) -> "tuple[RobustnessStudy | None, str]":
    from prefill_router.robustness import CHANGES, perturb, robustness_study, sample_queries

    if not count:
        return None, "it was left out"
    some = sample_queries(judged, count, seed=seed)
    versions = {kind: perturb(some.queries, kind, seed=seed) for kind in CHANGES}
    cache = files.default_cache()
    try:
        return robustness_study(
            router, some, versions, lam=lam, stores=stores, cache=cache, seed=seed, progress=bar
        ), ""
    except PrefillRouterError as error:
        return None, str(error)


def _show_checkup(checkup: "Checkup", to: Path | None) -> None:
    from rich.table import Table

    from prefill_router.doctor import SIGNS

    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in checkup.findings:
        table.add_row(SIGNS[finding.sign], finding.title, finding.result)
    out.print(table)
    out.print(", ".join(f"{mark} {sign}" for sign, mark in SIGNS.items()), style="dim")
    for note in checkup.notes:
        out.say(f"note: {note}")
    out.say(f"\nverdict: {checkup.verdict}: {checkup.because}")
    if to is not None:
        out.say(f"report: {to / 'index.html'}")


_NO_CALIBRATION_PART = (
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
        int, AT_LEAST_ONE, typer.Option(help="Bins of the calibration error and of the figure.")
    ] = 15,
    resamples: opt.Resamples = 1000,
    seed: opt.ResampleSeed = 0,
    encoder_folder: opt.EncoderFolders = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show how well a router is calibrated on its test part, and what calibrators would change.

    Of the answers predicted at 0.7, seven in ten should be right. If the router's split has a
    calibration part, each calibrator is fitted on it and judged on the test part. That comparison
    leaves out the router's own calibrator; all other figures include it.

    Example: prefill-router calibration router --data answers --out calibration
    """
    from prefill_router.data import read_dataset
    from prefill_router.evaluation import reliability_of, try_calibrators

    _check_folder(to)
    router = opt.load_router(folder, encoder_folder)
    dataset = read_dataset(data)
    stores = opt.open_stores(store)
    bar = BarProgress(console=err)
    queries = JudgedQueries.of(router, dataset)
    reliability = reliability_of(
        _join_trial(queries, stores, bar), bins=bins, resamples=resamples, seed=seed, progress=bar
    )
    comparisons: Sequence[CalibratorComparison] = ()
    if {"calibration", "test"} <= router.split.parts.keys():
        bare = replace(router, calibrator=None)  # its own was fitted on this part
        parts = [
            _join_trial(JudgedQueries.of(bare, dataset, part), stores, bar)
            for part in ("calibration", "test")
        ]
        comparisons = try_calibrators(*parts, resamples=resamples, seed=seed, progress=bar)
    title = f"Reliability of {folder.name} on {data.name}, {queries.words}"
    _write_calibration(reliability, comparisons, to, title=title)
    if as_json:
        print_json(
            reliability.to_dict()
            | {"calibrators": [comparison.to_dict() for comparison in comparisons]}
        )
    else:
        _show_reliability(reliability, comparisons)
        out.say(f"figure and tables: {to}")
    if not comparisons:
        err.say(f"note: {_NO_CALIBRATION_PART}")


def _check_folder(to: Path) -> None:
    """Check, before long work, that the folder can be written."""
    if to.exists() and not to.is_dir():
        raise ConfigError(f"{to} is a file; --out takes a folder")
    files.check_place(to / "reliability.png")


def _join_trial(
    queries: JudgedQueries, stores: Sequence["ActivationStore"], progress: BarProgress
) -> "Trial":
    """The router's predictions for the judged queries, joined with the outcomes."""
    from prefill_router.evaluation import Trial

    crossed = queries.router.cross_fit
    if queries.part == CROSS_FIT and crossed is not None:  # as they were, not made comparable
        predictions = crossed.predictions.select(queries.judged.query_ids)
    else:
        predictions = queries.predict(stores, progress)
    return Trial.join(predictions, queries.judged)


def _write_calibration(
    reliability: "Reliability",
    comparisons: "Sequence[CalibratorComparison]",
    to: Path,
    *,
    title: str,
) -> None:
    import polars as pl

    from prefill_router.reporting import write_diagrams

    write_diagrams(reliability, to / "reliability", title=title)
    plain = reliability.to_dict() | {
        "calibrators": [comparison.to_dict() for comparison in comparisons]
    }
    files.write_json(to / "calibration.json", plain)
    tables = {
        "targets.csv": reliability.rows(),
        "calibrators.csv": [comparison.row() for comparison in comparisons],
    }
    for name, rows in tables.items():
        if rows:
            table = pl.DataFrame(rows, infer_schema_length=None).fill_nan(None)
            files.write_text(to / name, table.write_csv())
        else:  # left by an earlier run on another split
            (to / name).unlink(missing_ok=True)


def _show_reliability(
    reliability: "Reliability", comparisons: "Sequence[CalibratorComparison]"
) -> None:
    out.print(_make_error_table(reliability))
    out.print()
    out.print(_make_brier_table(reliability))
    if reliability.resamples:
        out.print()
        out.say(_calibration_words(reliability.off))
    if comparisons:
        out.print()
        out.print(_make_calibrator_table(comparisons))
    for note in dict.fromkeys(note for tried in comparisons for note in tried.fit.notes):
        out.say(f"note: {note}")


def _calibration_words(off: Sequence[str]) -> str:
    if not off:
        return "no target's probabilities are further off than chance explains"
    return f"further off than chance explains, worst first: {', '.join(off)}"


def _make_error_table(reliability: "Reliability") -> "Table":
    """How far off the probabilities are, and which way."""
    table = _make_table(
        f"{reliability.queries:,} test queries", "ECE", "95 %", "chance", "bias", "log loss"
    )
    for name, row in reliability.estimates.items():
        table.add_row(
            name,
            _format_number(row["ece"].value),
            _format_interval(row["ece"]),
            _format_number(row["ece_by_chance"].value),
            _format_number(row["bias"].value, "+.3f"),
            _format_number(row["log_loss"].value),
        )
    return table


def _make_brier_table(reliability: "Reliability") -> "Table":
    """The decomposition of the Brier score."""
    table = _make_table("Brier score", "", "= rel.", "- resol.", "+ uncert.", "+ within")
    parts = ("brier", "reliability", "resolution", "uncertainty", "within")
    for name, row in reliability.estimates.items():
        table.add_row(name, *(_format_number(row[part].value) for part in parts))
    return table


def _make_calibrator_table(tried: "Sequence[CalibratorComparison]") -> "Table":
    """The metrics of each calibrator, with the interval of its change in Brier score."""
    from prefill_router.calibration import find

    table = _make_table(
        "calibrator", "ECE", "chance", "Brier", "change, 95 %", "loss", "AUC", "lam 1"
    )
    for comparison in tried:
        values = {name: value.value for name, value in comparison.values.items()}
        table.add_row(
            find(comparison.kind).label,
            _format_number(values["ece"]),
            _format_number(values["ece_by_chance"]),
            _format_number(values["brier_mean"], ".4f"),
            ""
            if comparison.kind == "none"
            else _format_interval(comparison.differences["brier_mean"], "+.4f"),
            _format_number(values["log_loss"]),
            _format_number(values["auc_mean"], ".4f"),
            _format_number(100 * values["argmax_accuracy"], ".1f") + "%",
        )
    return table


def _make_table(first: str, *others: str) -> "Table":
    return columns(first, *others, fold=True, no_wrap=True)


def _format_number(value: float, style: str = ".3f") -> str:
    return "-" if math.isnan(value) else f"{value:{style}}"


def _format_interval(estimate: "Estimate", style: str = ".3f") -> str:
    if math.isnan(estimate.lower):
        return "-"
    return f"{estimate.lower:{style}} to {estimate.upper:{style}}"
