"""`prefill-router study layers` and `study dimensions`: studies of layers, poolings and PCA.

`layers` is the layer-selection ablation over pools and encoders; `dimensions` says which pooling,
and how many PCA components.
"""

from typing import TYPE_CHECKING

from prefill_router.cli.application import err
from prefill_router.cli.options import (
    DataFolder,
    DataFolders,
    NeededStores,
    SplitFile,
    load_or_draw_split,
    open_stores,
    with_engine,
)
from prefill_router.errors import ConfigError
from prefill_router.progress import BarProgress
from prefill_router_lab.cli.study import AsJson, Out, list_facts, study, write_and_print
from prefill_router_lab.cli.typed_options import with_options
from prefill_router_lab.studies import AblationOptions, DimensionOptions

if TYPE_CHECKING:
    from prefill_router.engines import Engine


@study.command()
@with_engine
@with_options
def layers(
    *,
    data: DataFolders,
    to: Out,
    store: NeededStores,
    options: AblationOptions,
    as_json: AsJson = False,
    engine: "Engine | None" = None,
) -> None:
    """Compare the ways to select a layer, for every pool under every encoder.

    Each way is judged by the mean five-fold probe AUC at the layers that it selects, on the train
    part of each pool.

    Example: prefill-router study layers answers --store states --out layer-selection
    """
    from prefill_router.data import read_dataset, split
    from prefill_router.reporting import check_place, mark
    from prefill_router_lab.studies import ablation_study

    check_place(to, "layers")
    names = [path.resolve().name for path in data]
    if len(set(names)) < len(names):
        raise ConfigError(f"the datasets' folders are called {names}; each needs a name of its own")
    stores = open_stores(store)
    pools = {}
    for name, path in zip(names, data, strict=True):
        dataset = read_dataset(path)
        pools[name] = dataset.select(split(dataset, seed=options.seed)["train"])
    own = {"dim": options.dim, "poolings": options.poolings, "seed": options.seed}
    mark(to, "layers", {"pools": names, **own})
    result = ablation_study(
        pools, stores, options, engine=engine, progress=BarProgress(console=err)
    )
    facts = {
        "pools": ", ".join(f"{name} ({len(part):,} train queries)" for name, part in pools.items()),
        "split": f"seed {options.seed}; the train part alone",
    }
    report = result.report(title="Layer selection over pools and encoders", facts=facts)
    write_and_print(report, to, as_json=as_json)


@study.command()
@with_options
def dimensions(
    *,
    data: DataFolder,
    to: Out,
    store: NeededStores,
    options: DimensionOptions,
    split_file: SplitFile = None,
    as_json: AsJson = False,
) -> None:
    """Probe the targets' correctness by encoder, pooling and number of PCA components.

    It prints the mean five-fold AUC on the train part, at the layer that Fisher J selects and at
    the best layer. For each encoder and pooling it also prints the AUC of each way to select the
    layer.

    Example: prefill-router study dimensions answers --store states --out dimensions
    """
    from prefill_router.data import read_dataset
    from prefill_router.reporting import check_place, mark
    from prefill_router_lab.studies import dimension_study

    check_place(to, "dimensions")
    stores = open_stores(store)
    dataset = read_dataset(data)
    parts = load_or_draw_split(dataset, split_file, options.seed)
    own = {"dims": options.dims, "poolings": options.poolings, "seed": options.seed}
    mark(to, "dimensions", {**own, "split": parts.to_dict()})
    train, bar = dataset.select(parts["train"]), BarProgress(console=err)
    result = dimension_study(stores, train, options, progress=bar)
    facts = list_facts(data, parts, options.seed)
    report = result.report(title=f"Pooling and dimension on {data.name}", facts=facts)
    write_and_print(report, to, as_json=as_json)
