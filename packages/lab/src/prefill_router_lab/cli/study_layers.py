"""`prefill-router study layers` and `study dimensions`: studies of layers, poolings and PCA.

`layers` is the layer-selection ablation over pools and encoders; `dimensions` says which pooling,
and how many PCA components.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli.application import err
from prefill_router.cli.commands import UsageError
from prefill_router.cli.options import (
    DataFolder,
    DataFolders,
    NeededStores,
    Poolings,
    SplitFile,
    drawn_split,
    open_stores,
    parse_poolings,
    with_engine,
)
from prefill_router.errors import ConfigError
from prefill_router.options import AT_LEAST_ONE
from prefill_router.progress import BarProgress
from prefill_router_lab.cli.study import AsJson, Out, Seed, facts, study, write_and_print

if TYPE_CHECKING:
    from prefill_router.engines import Engine


@study.command()
@with_engine
def layers(
    data: DataFolders,
    to: Out,
    store: NeededStores,
    dim: Annotated[int, AT_LEAST_ONE, typer.Option(help="PCA components of the probes.")] = 100,
    pooling: Poolings = "last",
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Layers below the middle too, if stored.")
    ] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
    engine: "Engine | None" = None,
) -> None:
    """Compare the ways to select a layer, for every pool under every encoder.

    Mean five-fold probe AUC on the train part of each pool, at the layers that each way selects.

    Example: prefill-router study layers answers --store states --out layer-selection
    """
    from prefill_router.data import read_dataset, split
    from prefill_router.reporting import check_place, mark
    from prefill_router_lab.studies import ablation_study

    poolings = parse_poolings(pooling)
    check_place(to, "layers")
    names = [path.resolve().name for path in data]
    if len(set(names)) < len(names):
        raise ConfigError(f"the datasets' folders are called {names}; each needs a name of its own")
    stores = open_stores(store)
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
        engine=engine,
        progress=BarProgress(console=err),
    )
    known = {
        "pools": ", ".join(f"{name} ({len(part):,} train queries)" for name, part in pools.items()),
        "split": f"seed {seed}; the train part alone",
    }
    made = found.report(title="Layer selection over pools and encoders", known=known)
    write_and_print(made, to, as_json=as_json)


@study.command()
def dimensions(
    data: DataFolder,
    to: Out,
    store: NeededStores,
    dims: Annotated[
        str, typer.Option(help="PCA components, separated by commas.")
    ] = "50,100,150,200,300",
    pooling: Poolings = "last,mean",
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Layers below the middle too, if stored.")
    ] = False,
    split_file: SplitFile = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Probe the targets' correctness by encoder, pooling and number of PCA components.

    Mean five-fold AUC on the train part, at the layer that Fisher J chooses and at the best one;
    and, per encoder and pooling, the AUC of each way to choose the layer.

    Example: prefill-router study dimensions answers --store states --out dimensions
    """
    from prefill_router.data import read_dataset
    from prefill_router.reporting import check_place, mark
    from prefill_router_lab.studies import dimension_study

    sizes, poolings = _sizes(dims), parse_poolings(pooling)
    check_place(to, "dimensions")
    stores = open_stores(store)
    dataset = read_dataset(data)
    parts = drawn_split(dataset, split_file, seed)
    asked = {"dims": sizes, "poolings": poolings, "seed": seed, "split": parts.to_dict()}
    mark(to, "dimensions", asked)
    found = dimension_study(
        stores,
        dataset.select(parts["train"]),
        dims=sizes,
        poolings=poolings,
        all_layers=all_layers,
        seed=seed,
        progress=BarProgress(console=err),
    )
    known = facts(data, parts, seed)
    made = found.report(title=f"Pooling and dimension on {data.name}", known=known)
    write_and_print(made, to, as_json=as_json)


def _sizes(text: str) -> list[int]:
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise UsageError(f"--dims is {text!r}; give numbers from 1 up, such as 50,100,200")
    return sizes
