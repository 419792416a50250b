"""`prefill-router sweep`: which encoder says most about which target."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router import files
from prefill_router.cli.app import app, err, out, print_json
from prefill_router.cli.layers import drawn
from prefill_router.cli.options import SplitFile
from prefill_router.progress import BarProgress

if TYPE_CHECKING:
    from prefill_router.layers import Sweep


@app.command()
def sweep(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The dataset's folder.")],
    store: Annotated[list[Path], typer.Option(help="A finished store; give one per encoder.")],
    to: Annotated[Path, typer.Option("--out", help="A folder for the heat map and its CSV.")],
    split_file: SplitFile = None,
    seed: Annotated[int, typer.Option(help="Of the split and of the folds.")] = 0,
    pooling: Annotated[str, typer.Option(help="last, mean, or both.")] = "last",
    dim: Annotated[int, typer.Option(help="PCA components.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Compare encoders: the test AUC of a linear probe for every target under each of them.

    Each target is read at the layer of greatest Fisher J on the train part.

    Example: prefill-router sweep answers --store states-a --store states-b --out sweep
    """
    from prefill_router.activations import ActivationStore
    from prefill_router.cli.poolings import parse_poolings
    from prefill_router.data import read_dataset
    from prefill_router.layers import sweep as run
    from prefill_router.layers.figures import draw_sweep

    poolings = parse_poolings(pooling)
    files.check_place(to / "sweep.png")
    stores = [ActivationStore.open(path) for path in store]
    dataset = read_dataset(data)
    parts = drawn(dataset, split_file, seed)
    found = run(
        stores,
        dataset.select(parts["train"]),
        dataset.select(parts["test"]),
        dim=dim,
        poolings=poolings,
        seed=seed,
        progress=BarProgress(console=err),
    )
    draw_sweep(found, to)
    if as_json:
        print_json(found.rows())
        return
    _print(found)
    out.print(f"heat map: {to}", soft_wrap=True)


def _print(found: "Sweep") -> None:
    from rich.table import Table

    table = Table(title="test AUC (site) of every target under every encoder")
    table.add_column("target")
    for encoder in found.encoders:
        table.add_column(encoder, justify="right")
    for k, target in enumerate(found.targets):
        cells = zip(found.auc[:, k], found.sites, strict=True)
        table.add_row(target, *(f"{auc:.4f} ({sites[k].name})" for auc, sites in cells))
    table.add_section()
    table.add_row("mean", *(f"{auc:.4f}" for auc in found.mean()))
    table.add_row("mean, five-fold on train", *(f"{auc:.4f}" for auc in _folded(found)))
    out.print(table)


def _folded(found: "Sweep") -> list[float]:
    from prefill_router.layers.survey import mean_over_targets

    folded: list[float] = mean_over_targets(found.cross_validated).tolist()
    return folded
