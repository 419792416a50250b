"""`prefill-router purge`: deletes receipts and what was kept to learn from them."""

from typing import Annotated

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, columns, out, print_json
from prefill_router.cli.receipts import URL, moment
from prefill_router.cli.usage import UsageError


@app.command()
def purge(
    receipts: Annotated[str, typer.Argument(metavar="RECEIPTS", help=URL)],
    key: Annotated[
        str | None, typer.Option(help="Only requests with the client key of this name.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(help="Only requests before this time: 30d, 24h, or a date or time (UTC)."),
    ] = None,
    texts_only: Annotated[
        bool, typer.Option("--texts-only", help="Remove only prompts and answers; keep numbers.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Delete receipts, by key or age, with all that was kept to learn from them.

    These are feedback, sampled requests, side answers and labels. Gateways may go on meanwhile.
    When one starts, it reads the last day's spending from receipts: without them, it isn't counted.

    Example: prefill-router purge receipts.sqlite --key alice --dry-run
    """
    from prefill_router.gateway.receipts import purge as delete

    if key is None and older_than is None:
        raise UsageError("nothing says what to purge; give --key, --older-than, or both")
    before = moment(older_than)
    found = delete(receipts, key=key, before=before, texts_only=texts_only, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "texts_only": texts_only, "rows": found})
        return
    what = "rows with texts" if texts_only else "rows"
    table = columns("table", what if dry_run else f"{what}, purged")
    for name, count in found.items():
        table.add_row(name, f"{count:,}")
    out.print(table)
