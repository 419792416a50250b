"""`prefill-router evaluate`: judge a router on scored answers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, out, print_json
from prefill_router.cli.usage import one_of
from prefill_router.errors import DataError, MissingExtraError
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from prefill_router.data import RoutingDataset, Split
    from prefill_router.router import Router


@app.command()
def evaluate(
    folder: opt.RouterFolder,
    data: opt.Data,
    report: opt.ReportOut,
    part: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="train, calibration or test of the router's split, or all."
        ),
    ] = "test",
    store: opt.Stores = None,
    resamples: opt.Resamples = 1000,
    seed: opt.ResampleSeed = 0,
    step: Annotated[
        float | None, typer.Option(help="Compute the curve at steps of lam, not exactly.")
    ] = None,
    linear: Annotated[
        bool, typer.Option("--linear", help="Normalise costs linearly, not by the inverse.")
    ] = False,
    encoder_folder: opt.EncoderFolders = None,
    overwrite: opt.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print metrics.json.")] = False,
) -> None:
    """Judge a router on queries with known outcomes.

    States that no store has are encoded now and kept in the cache. The cost of an answer is the
    recorded one, or else that of its tokens at the router's prices.

    Example: prefill-router evaluate router --data answers --out report
    """
    from prefill_router.cli.headline import show_headline
    from prefill_router.data import PARTS, Origin, read_dataset
    from prefill_router.evaluation import evaluate as judge
    from prefill_router.reporting import check_replaceable, write_report

    one_of("--part", part, (*PARTS, "all"))
    check_replaceable(report)
    origin = Origin.of("evaluate", folder, data)
    opt.check_origin(report, origin, overwrite=overwrite)
    router = opt.load_router(folder, encoder_folder)
    whole = read_dataset(data)
    dataset = _part(whole, router.split, part)
    if part != "all" and whole.fingerprint != router.record.trained_on.fingerprint:
        err.print(
            "note: the dataset has these ids, but it isn't the one that the router was fitted on: "
            "its prompts, targets or labels differ"
        )
    bar = BarProgress(console=err)
    stores = opt.open_stores(store)
    predictions = opt.predict(router, dataset, stores, bar)
    priced = dataset.select(targets=router.pool.names).with_pool(router.pool)
    result = judge(
        predictions,
        priced,
        policy=router.policy,
        resamples=resamples,
        seed=seed,
        step=step,
        axis="linear" if linear else "inverse",
        chosen=router.record.chosen,
        train=_train(router, whole),
        progress=bar,
    )
    facts = _facts(router, dataset, folder, data, part)
    try:
        write_report(
            result, report, title=f"{folder.name} on {data.name}", facts=facts, origin=origin
        )
    except MissingExtraError as error:
        err.say(f"note: {report} has the numbers and no page: {error}")
    if as_json:
        print_json(result.to_dict())
        return
    show_headline(result)
    page = report / "index.html"
    out.say(f"report: {page if page.exists() else report}")


def _train(router: "Router", whole: "RoutingDataset") -> "RoutingDataset | None":
    """The router's train rows at its prices, for the verdict; None if the dataset has none."""
    held = set(whole.query_ids)
    train = [name for name in router.split["train"] if name in held]
    if not train:
        err.print(
            "note: the dataset has none of the queries that the router was trained on, so there is "
            "no verdict: the fixed choices that it is compared with are chosen on these"
        )
        return None
    return whole.select(train, targets=router.pool.names).with_pool(router.pool)


def _facts(
    router: "Router", dataset: "RoutingDataset", folder: PathOrUrl, data: PathOrUrl, part: str
) -> dict[str, str]:
    """The facts on the report's page."""
    return {
        "dataset": str(data),
        "part": part,
        "queries": f"{len(dataset):,}, {_trained_on(dataset, router.split):,} of them trained on",
        "router": str(folder),
        "fitted": router.record.created,
        "prices": router.pool.prices_date or "undated",
    }


def _part(dataset: "RoutingDataset", drawn: "Split", part: str) -> "RoutingDataset":
    """The queries that are judged: those of a part of the router's split, or all."""
    from prefill_router.data import PARTS

    if part == "all":
        seen = _trained_on(dataset, drawn)
        if seen:
            err.print(f"note: the router was trained on {seen:,} of these queries")
        return dataset
    name = one_of("--part", part, PARTS)
    _check_held(dataset, drawn[name], part)
    return dataset.select(drawn[name])


def _trained_on(dataset: "RoutingDataset", drawn: "Split") -> int:
    return len(set(dataset.query_ids) & set(drawn["train"]))


def _check_held(dataset: "RoutingDataset", ids: Sequence[str], part: str) -> None:
    lacking = set(ids) - set(dataset.query_ids)
    if lacking:
        raise DataError(
            f"the dataset lacks {len(lacking):,} of the {len(ids):,} queries in the {part} part "
            "of the router's split, so it isn't the one that the router was fitted on, or not the "
            "whole of it; to judge the router on all of this dataset, say --part all"
        )
