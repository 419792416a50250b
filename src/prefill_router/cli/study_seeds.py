"""`prefill-router study seeds`: how far the numbers move with the seed of the training alone."""

from typing import Annotated

import typer

from prefill_router.cli.options import SplitFile
from prefill_router.cli.study import (
    AsJson,
    Config,
    Data,
    Folders,
    Out,
    Seed,
    Stores,
    begin,
    finish,
    require_some,
    study,
)

_COLUMNS = ("mean AUC", "Brier", "best lam", "P-AUCCC", "lam 1")


@study.command()
def seeds(
    config: Config,
    data: Data,
    to: Out,
    store: Stores = None,
    count: Annotated[int, typer.Option(help="How many seeds, from --seed on.")] = 10,
    split_file: SplitFile = None,
    seed: Seed = 0,
    encoder_folder: Folders = None,
    as_json: AsJson = False,
) -> None:
    """Fit each router with several seeds on one split: mean, standard deviation, extremes.

    A router whose predictions are the same whatever the seed is said to be deterministic.

    Example: prefill-router study seeds routers.yaml --data answers --store states --out seeds
    """
    from rich.table import Table

    from prefill_router.evaluation.wording import digits
    from prefill_router.studies.output import ROUTERS
    from prefill_router.studies.seeds import NUMBERS, seed_study
    from prefill_router.studies.seeds_report import sheet

    opened = begin(
        "seeds",
        config,
        data=data,
        to=to,
        store=store,
        split_file=split_file,
        seed=seed,
        encoder_folder=encoder_folder,
        asked={"count": count},
    )
    found = seed_study(
        opened.dataset,
        opened.recipes,
        opened.states,
        opened.drawn,
        count=count,
        seed=seed,
        folder=to / ROUTERS,
        progress=opened.bar,
    )
    require_some(found.spreads, found.failed)
    table = Table("router", *_COLUMNS, box=None, pad_edge=False)
    for one in found.spreads:
        cells = (
            digits(one.mean(n), ".4f") + ("" if one.still(n) else f" ± {one.sd(n):.4f}")
            for n in NUMBERS
        )
        table.add_row(one.name, *cells)
    made = sheet(found, title=f"Seed variability on {data.name}", known=opened.known)
    lost = [f"{one.name} could not be fitted: {one.why}" for one in found.failed]
    finish(made, to, table=table, notes=lost, as_json=as_json)
