"""`prefill-router export-receipts`: makes a dataset of the gateway's receipts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, out, print_json
from prefill_router.remote import PathOrUrl
from prefill_router_gateway.cli.receipts import SINCE_HELP, URL, moment

if TYPE_CHECKING:
    from prefill_router_gateway.receipts import DatasetExport


@app.command(name="export-receipts")
def export_receipts(
    receipts: Annotated[str, typer.Argument(metavar="RECEIPTS", help=URL)],
    to: opt.DatasetOut,
    pool: Annotated[
        Path | None, typer.Option(help="The pool file; without it, targets have no prices.")
    ] = None,
    since: Annotated[str | None, typer.Option(help=SINCE_HELP)] = None,
    unscored: Annotated[
        bool, typer.Option("--unscored", help="Keep answers without feedback, too.")
    ] = False,
    overwrite: opt.Overwrite = False,
    as_json: opt.AsJson = False,
) -> None:
    """Make a dataset of receipts and feedback.

    Example: prefill-router export-receipts receipts.sqlite --out traffic --pool pool.yaml
    --since 30d
    """
    dataset_export = _write_dataset(
        receipts, to, pool=pool, since=moment(since), unscored=unscored, overwrite=overwrite
    )
    _show_dataset(dataset_export, to, as_json=as_json)


def _write_dataset(
    receipts: str,
    to: PathOrUrl,
    *,
    pool: Path | None,
    since: float | None,
    unscored: bool,
    overwrite: bool,
) -> "DatasetExport":
    from prefill_router.data import Origin, check_replaceable, write_dataset
    from prefill_router.targets import read_pool
    from prefill_router_gateway.receipts import (
        export as make,
        file_of,
        labelled_samples,
        scored_receipts,
        turns_by_request,
    )

    origin = Origin.of("export", file_of(receipts) or receipts)
    check_replaceable(to, origin=origin, overwrite=overwrite)
    prices = None if pool is None else read_pool(pool)
    samples = labelled_samples(receipts, since=since)
    scored = scored_receipts(receipts, since=since)
    turns = turns_by_request(receipts, since=since)
    dataset_export = make(scored, pool=prices, samples=samples, turns=turns, unscored=unscored)
    write_dataset(dataset_export.dataset, to, origin=origin)
    return dataset_export


def _show_dataset(dataset_export: "DatasetExport", to: PathOrUrl, *, as_json: bool) -> None:
    import numpy as np

    labels = int((~np.isnan(dataset_export.dataset.correct)).sum())
    if as_json:
        print_json(
            {
                "receipts": dataset_export.receipts,
                "queries": len(dataset_export.dataset),
                "targets": list(dataset_export.dataset.pool.names),
                "labels": labels,
                "sources": dict(dataset_export.sources),
                "left_out": dict(dataset_export.left_out),
                "notes": list(dataset_export.notes),
            }
        )
        return
    out.say(
        f"{to}: {len(dataset_export.dataset):,} queries and {labels:,} labels, "
        f"of {dataset_export.receipts:,} receipts"
    )
    for source, count in dataset_export.sources.items():
        out.say(f"labels by {source}: {count:,}")
    for why, count in dataset_export.left_out.items():
        out.say(f"left out: {count:,} {why}")
    for note in dataset_export.notes:
        out.say(f"note: {note}")
