"""`prefill-router study ratio`: accuracy when a share of the queries is forced on one target."""

from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli.options import SplitFile
from prefill_router.cli.study import (
    AsJson,
    Config,
    Data,
    Folders,
    Opened,
    Out,
    Resamples,
    Seed,
    Stores,
    begin,
    finish,
    require_some,
    study,
)
from prefill_router.cli.usage import one_of
from prefill_router.errors import ConfigError

if TYPE_CHECKING:
    from prefill_router.data import RoutingDataset, Split
    from prefill_router.router import Router
    from prefill_router.studies.fitted import Failed

_BY = ("train", "test")


@study.command()
def ratio(
    config: Config,
    data: Data,
    to: Out,
    store: Stores = None,
    strong: Annotated[
        str | None, typer.Option(help="The strong target; the most accurate one if not given.")
    ] = None,
    strong_by: Annotated[
        str, typer.Option(help="Where the most accurate is sought: train, or test as the paper.")
    ] = "train",
    split_file: SplitFile = None,
    resamples: Resamples = 1000,
    seed: Seed = 0,
    encoder_folder: Folders = None,
    as_json: AsJson = False,
) -> None:
    """Force each share of the queries on the strong target, by the router's own order.

    The others go where the router's probability is highest. Prices play no part.

    Example: prefill-router study ratio routers.yaml --data answers --store states --out ratio
    """
    from rich.table import Table

    from prefill_router.studies.ratio import routing_ratio, strongest
    from prefill_router.studies.ratio_order import RATIOS
    from prefill_router.studies.ratio_report import sheet

    one_of("--strong-by", strong_by, _BY)

    def check(dataset: "RoutingDataset", drawn: "Split") -> None:
        del drawn
        if strong is not None and strong not in dataset.pool.names:
            raise ConfigError(
                f"the strong target is {strong!r}; the dataset has {list(dataset.pool.names)}"
            )

    opened = begin(
        "ratio",
        config,
        data=data,
        to=to,
        store=store,
        split_file=split_file,
        seed=seed,
        encoder_folder=encoder_folder,
        asked={"strong": strong, "strong_by": strong_by, "resamples": resamples},
        check=check,
    )
    routers, failed = _routers(opened, seed)
    part = opened.dataset.select(opened.drawn["train" if strong_by == "train" else "test"])
    test = opened.dataset.select(opened.drawn["test"])
    found = routing_ratio(
        {name: one.predict(test, stores=opened.states) for name, one in routers.items()},
        test,
        strong=strong or strongest(part),
        resamples=resamples,
        seed=seed,
        progress=opened.bar,
    )
    table = Table("router", *(f"{100 * r:g} %" for r in RATIOS), box=None, pad_edge=False)
    for curve in found.curves:
        table.add_row(curve.name, *(f"{100 * value.value:.1f}" for value in curve.at))
    how = "named" if strong else f"the most accurate on the {strong_by} part"
    known = {**opened.known, "chosen": how, "intervals": f"95 %, {resamples:,} resamples"}
    made = sheet(found, title=f"Accuracy against routing ratio on {data.name}", known=known)
    lost = [f"{one.name} could not be fitted: {one.why}" for one in failed]
    finish(made, to, table=table, notes=lost, as_json=as_json)


def _routers(opened: Opened, seed: int) -> "tuple[dict[str, Router], list[Failed]]":
    """The router itself where its folder was given, else those of the recipes."""
    from prefill_router.fitting import FitConfig
    from prefill_router.studies.fitted import fit_all
    from prefill_router.studies.output import ROUTERS

    if opened.router is not None:
        return {next(iter(opened.recipes)): opened.router}, []
    fitted, failed = fit_all(
        opened.dataset,
        opened.recipes,
        opened.states,
        opened.drawn,
        config=FitConfig(seed=seed),
        folder=opened.folder / ROUTERS,
        progress=opened.bar,
    )
    require_some(fitted, failed)
    return {one.name: one.router for one in fitted}, failed
