"""`prefill-router canary`: what is routed against the rest, where a share of traffic is."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from prefill_router.cli.amounts import dollars, needed
from prefill_router.cli.app import app, out, print_json
from prefill_router.cli.explain import URL
from prefill_router.cli.moments import HELP, moment

if TYPE_CHECKING:
    from prefill_router.gateway.receipts.canary import Mean

_MANY = 1000


@app.command()
def canary(
    receipts: Annotated[str, typer.Argument(metavar="RECEIPTS", help=URL)],
    since: Annotated[str | None, typer.Option(help=HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Compare what was routed with the rest, where a share of traffic is (`traffic.share`).

    The cost of 1,000 conversations; of every conversation the share of its requests that failed,
    the seconds of its answers, and the score that feedback gave them. These are means over
    conversations, with 95 % intervals. A difference whose interval holds 0 may be chance.

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
        told = _costs(three) if name == "cost" else [_told(m, f"{m.value:.3f}", 3) for m in three]
        table.add_row("cost of 1,000" if name == "cost" else name, *told)
    out.print(table)


def _costs(means: "Sequence[Mean]") -> list[str]:
    """Of 1,000 conversations: one alone may cost a millionth of a dollar."""
    many = [replace(m, value=_MANY * m.value, half=_MANY * m.half) for m in means]
    least = min((abs(m.value) for m in many if m.value), default=1.0)
    digits = 2 if math.isnan(least) or least >= 1 else needed(least)
    signs = ("-" if m.value < 0 else "" for m in many)
    return [
        _told(m, sign + dollars(abs(m.value), digits=digits), digits)
        for m, sign in zip(many, signs, strict=True)
    ]


def _told(mean: "Mean", value: str, digits: int) -> str:
    if math.isnan(mean.value):
        return "?"
    return value if math.isnan(mean.half) else f"{value} ± {mean.half:,.{digits}f}"
