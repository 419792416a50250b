"""`prefill-router evaluate`: judge a router on scored answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli.app import app, err, out, print_json
from prefill_router.cli.options import Overwrite, check_origin
from prefill_router.cli.usage import one_of
from prefill_router.errors import DataError, MissingExtraError
from prefill_router.progress import BarProgress

if TYPE_CHECKING:
    from prefill_router.data import RoutingDataset, Split
    from prefill_router.router import Router


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="ROUTER", help="The router's folder.")],
    data: Annotated[Path, typer.Option(help="The dataset's folder.")],
    report: Annotated[Path, typer.Option("--out", help="The report's folder.")],
    part: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="train, calibration or test of the router's split, or all."
        ),
    ] = "test",
    store: Annotated[
        list[Path] | None, typer.Option(help="A store of states; may be given again.")
    ] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples; 0 for none.")] = 1000,
    seed: Annotated[int, typer.Option(help="Another seed, other resamples.")] = 0,
    step: Annotated[
        float | None, typer.Option(help="Read the curve on a grid of lam, as 0.01, not exactly.")
    ] = None,
    linear: Annotated[
        bool, typer.Option("--linear", help="Normalise linear and not inverse cost.")
    ] = False,
    encoder_folder: Annotated[
        list[Path] | None, typer.Option(help="The folder of a local encoder; may be given again.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print metrics.json.")] = False,
) -> None:
    """Judge a router on queries with known outcomes.

    Queries whose states are in no store are encoded on the way and kept in the cache. An answer
    costs what was recorded, or else its tokens at the router's prices.

    Example: prefill-router evaluate router --data answers --out report
    """
    from prefill_router.activations import ActivationStore
    from prefill_router.cli.headline import show_headline
    from prefill_router.cli.options import sources
    from prefill_router.data import PARTS, Origin, read_dataset
    from prefill_router.evaluation import evaluate as judge
    from prefill_router.reporting import check_replaceable, write_report
    from prefill_router.router import Router
    from prefill_router.router.states import default_cache

    one_of("--part", part, (*PARTS, "all"))
    check_replaceable(report)
    origin = Origin.of("evaluate", folder, data)
    check_origin(report, origin, overwrite=overwrite)
    router = Router.load(folder, sources=sources(encoder_folder))
    whole = read_dataset(data)
    dataset = _part(whole, router.split, part)
    if part != "all" and whole.fingerprint != router.record.trained_on.fingerprint:
        err.print(
            "note: the dataset has these ids, but it isn't the one that the router was fitted on: "
            "its prompts, targets or labels differ"
        )
    bar = BarProgress(console=err)
    stores = [ActivationStore.open(path) for path in store or []]
    predictions = router.predict(dataset, stores=stores, cache=default_cache(), progress=bar)
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
        write_report(result, report, title=f"{folder.name} on {data.name}", facts=facts)
    except MissingExtraError as error:
        err.print(f"note: {report} has the numbers and no page: {error}", soft_wrap=True)
    origin.write(report)
    if as_json:
        print_json(result.to_dict())
        return
    show_headline(result)
    page = report / "index.html"
    out.print(f"report: {page if page.exists() else report}", soft_wrap=True)


def _train(router: "Router", whole: "RoutingDataset") -> "RoutingDataset | None":
    """What the router was trained on, at its prices, for the verdict; None if it isn't there."""
    held = set(whole.query_ids)
    train = [name for name in router.split["train"] if name in held]
    if not train:
        err.print(
            "note: the dataset has none of the queries that the router was trained on, so there is "
            "no verdict: the fixed choices that it is held against are chosen on these"
        )
        return None
    return whole.select(train, targets=router.pool.names).with_pool(router.pool)


def _facts(
    router: "Router", dataset: "RoutingDataset", folder: Path, data: Path, part: str
) -> dict[str, str]:
    """What the report's page says of the evaluation."""
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
