"""`prefill-router study layers`: the layer-selection ablation over pools and encoders."""

from pathlib import Path
from typing import Annotated

import typer

from prefill_router.cli.app import err
from prefill_router.cli.study import AsJson, Out, Seed, finish, study
from prefill_router.errors import ConfigError
from prefill_router.progress import BarProgress


@study.command()
def layers(
    data: Annotated[
        list[Path], typer.Argument(metavar="DATA...", help="Dataset folders, one per pool.")
    ],
    to: Out,
    store: Annotated[list[Path], typer.Option(help="A finished store; give one per encoder.")],
    dim: Annotated[int, typer.Option(help="PCA components of the probes.")] = 100,
    pooling: Annotated[str, typer.Option(help="last, mean, or both.")] = "last",
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Layers below the middle too, if held.")
    ] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare the ways to select a layer, for every pool under every encoder.

    Mean five-fold probe AUC on the train part of each pool, at the layers that each way selects.

    Example: prefill-router study layers answers --store states --out layer-selection
    """
    from rich.table import Table

    from prefill_router.activations import ActivationStore
    from prefill_router.cli.poolings import parse_poolings
    from prefill_router.data import read_dataset, split
    from prefill_router.studies.ablations import ablation_study
    from prefill_router.studies.ablations_report import sheet
    from prefill_router.studies.output import check_place, mark

    poolings = parse_poolings(pooling)
    check_place(to, "layers")
    names = [path.resolve().name for path in data]
    if len(set(names)) < len(names):
        raise ConfigError(f"the datasets' folders are called {names}; each needs a name of its own")
    stores = [ActivationStore.open(path) for path in store]
    pools = {}
    for name, path in zip(names, data, strict=True):
        dataset = read_dataset(path)
        pools[name] = dataset.select(split(dataset, seed=seed)["train"])
    mark(to, "layers", {"pools": names, "dim": dim, "poolings": poolings, "seed": seed})
    found = ablation_study(
        pools,
        stores,
        dim=dim,
        poolings=poolings,
        all_layers=all_layers,
        seed=seed,
        progress=BarProgress(console=err),
    )
    ways = [selector.name for selector in found.rows[0].ways.selectors]
    table = Table("pool", "encoder", *ways, box=None, pad_edge=False)
    for row in found.rows:
        table.add_row(row.pool, row.encoder, *(f"{row.ways[name].auc:.4f}" for name in ways))
    known = {
        "pools": ", ".join(f"{name} ({len(part):,} train queries)" for name, part in pools.items()),
        "split": f"seed {seed}; the train part alone",
    }
    made = sheet(found, title="Layer selection over pools and encoders", known=known)
    finish(made, to, table=table, as_json=as_json)
