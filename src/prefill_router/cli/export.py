"""`prefill-router export`: a dataset of receipts and feedback."""

from pathlib import Path
from typing import Annotated

import typer

from prefill_router.cli.app import app, out, print_json
from prefill_router.cli.options import Overwrite
from prefill_router.cli.receipts import HELP, URL, moment


@app.command()
def export(
    receipts: Annotated[str, typer.Argument(metavar="RECEIPTS", help=URL)],
    to: Annotated[Path, typer.Option("--out", metavar="DIR", help="The dataset folder to write.")],
    pool: Annotated[
        Path | None, typer.Option(help="The pool file; without it, targets have no prices.")
    ] = None,
    since: Annotated[str | None, typer.Option(help=HELP)] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Make a dataset for the next fit: requests with their prompts, and the feedback on answers.

    Example: prefill-router export receipts.sqlite --out traffic --pool pool.yaml --since 30d
    """
    import numpy as np

    from prefill_router.data import Origin
    from prefill_router.data.storage import check_replaceable, write_dataset
    from prefill_router.gateway.receipts import export as make, scored_receipts
    from prefill_router.gateway.receipts.store import file_of
    from prefill_router.targets import read_pool

    start = moment(since)
    origin = Origin.of("export", file_of(receipts) or receipts)
    check_replaceable(to, origin=origin, overwrite=overwrite)
    prices = None if pool is None else read_pool(pool)
    found = make(scored_receipts(receipts, since=start), pool=prices)
    write_dataset(found.dataset, to, origin=origin)
    labels = int((~np.isnan(found.dataset.correct)).sum())
    if as_json:
        print_json(
            {
                "receipts": found.receipts,
                "queries": len(found.dataset),
                "targets": list(found.dataset.pool.names),
                "labels": labels,
                "left_out": dict(found.left_out),
                "notes": list(found.notes),
            }
        )
        return
    out.print(
        f"{to}: {len(found.dataset):,} queries and {labels:,} labels, "
        f"of {found.receipts:,} receipts",
        soft_wrap=True,
    )
    for why, count in found.left_out.items():
        out.print(f"left out: {count:,} {why}", soft_wrap=True)
    for note in found.notes:
        out.print(f"note: {note}", soft_wrap=True)
