"""`prefill-router canary`: what is routed against the rest, where a share of traffic is."""

import math
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from prefill_router.cli.amounts import dollars, needed
from prefill_router.cli.app import app, out, print_json
from prefill_router.cli.explain import URL
from prefill_router.cli.moments import HELP, moment

if TYPE_CHECKING:
    from prefill_router.gateway.receipts.canary import Mean


@app.command()
def canary(
    receipts: Annotated[str, typer.Argument(metavar="RECEIPTS", help=URL)],
    since: Annotated[str | None, typer.Option(help=HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Compare what was routed with the rest, where a share of traffic is (`traffic.share`).

    Of every conversation its cost, the share of its requests that failed, the seconds of its
    answers, and the score that feedback gave them; means over conversations, with 95 % intervals.
    A difference whose interval holds 0 may be chance.

    Example: prefill-router canary receipts.sqlite --since 7d
    """
    from prefill_router.gateway.receipts import scored_receipts
    from prefill_router.gateway.receipts.canary import compare_share

    routed, rest = compare_share(scored_receipts(receipts, since=moment(since)))
    differences = {n: mean.less(rest.means()[n]) for n, mean in routed.means().items()}
    if as_json:
        print_json(
            {
                "routed": routed.to_dict(),
                "rest": rest.to_dict(),
                "difference": {name: mean.to_dict() for name, mean in differences.items()},
            }
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "routed", "the rest", "difference"):
        table.add_column(title, justify="right" if title else "left")
    table.add_row("conversations", f"{routed.conversations:,}", f"{rest.conversations:,}", "")
    table.add_row("requests", f"{routed.requests:,}", f"{rest.requests:,}", "")
    for name, difference in differences.items():
        three = (routed.means()[name], rest.means()[name], difference)
        least = min((abs(m.value) for m in three if m.value), default=1.0)
        digits = needed(least) if name == "cost" and not math.isnan(least) else 3
        table.add_row(name, *(_told(mean, name, digits) for mean in three))
    out.print(table)


def _told(mean: "Mean", name: str, digits: int) -> str:
    if math.isnan(mean.value):
        return "unknown"
    value = f"{mean.value:.{digits}f}"
    if name == "cost":
        value = ("-" if mean.value < 0 else "") + dollars(abs(mean.value), digits=digits)
    return value if math.isnan(mean.half) else f"{value} ± {mean.half:.{digits}f}"
