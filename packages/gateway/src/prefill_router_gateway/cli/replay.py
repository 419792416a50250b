"""`prefill-router replay`: decides recorded requests again, at another lam, price or router."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import (
    app,
    columns,
    err,
    format_count,
    out,
    print_json,
)
from prefill_router.cli.commands import UsageError
from prefill_router.files import check_place
from prefill_router.money import decimal_places, dollars
from prefill_router.options import SHARE
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl
from prefill_router_gateway.cli.receipts import SINCE_HELP, URL, moment
from prefill_router_gateway.limits import DOLLARS_PER_SECOND, SECONDS

if TYPE_CHECKING:
    from prefill_router.targets import Pool
    from prefill_router_gateway import LatencySettings, Receipt
    from prefill_router_gateway.receipts import Replay

_LAMS = (0.0, 0.25, 0.5, 0.75, 1.0)
_MOVES = 3


@app.command()
def replay(
    receipts: Annotated[str, typer.Argument(metavar="RECEIPTS", help=URL)],
    lam: Annotated[
        list[float] | None,
        SHARE,
        typer.Option(
            help="A trade-off to try; repeatable. By default 0, 0.25, 0.5, 0.75 and 1; with "
            "--router, the lam of that router."
        ),
    ] = None,
    router: Annotated[
        PathOrUrl | None,
        typer.Option(
            help="Another router. It needs receipts that keep the prompts.",
            parser=opt.path_or_url,
        ),
    ] = None,
    pool: Annotated[Path | None, typer.Option(help="A pool file with other prices.")] = None,
    deadline_seconds: Annotated[
        float | None,
        SECONDS,
        typer.Option(help="A deadline to try, as in routing.latency."),
    ] = None,
    dollars_per_second: Annotated[
        float,
        DOLLARS_PER_SECOND,
        typer.Option(help="A price of waiting to try, as in routing.latency."),
    ] = 0.0,
    keep: Annotated[
        float | None,
        SHARE,
        typer.Option(
            help="The share of the accuracy to keep, by default 1. It needs a deadline or a "
            "price of waiting."
        ),
    ] = None,
    sessions: Annotated[
        bool,
        typer.Option("--sessions", help="Let conversations keep their target, as in the gateway."),
    ] = False,
    since: Annotated[str | None, typer.Option(help=SINCE_HELP)] = None,
    to: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Draw the curve into this folder.")
    ] = None,
    encoder_folder: opt.EncoderFolders = None,
    as_json: opt.AsJson = False,
) -> None:
    """Decide recorded requests again, with another lam, other prices, or another router.

    Each request is decided alone. With --sessions, conversations keep their target. To try
    deadlines or prices of waiting, receipts need the predicted seconds: set routing.latency before.

    Example: prefill-router replay receipts.sqlite --lam 0.3 --lam 0.9 --since 7d
    """
    from prefill_router.targets import read_pool
    from prefill_router_gateway.receipts import read_receipts

    if to is not None:
        check_place(to)
    prices = None if pool is None else read_pool(pool)
    read = partial(read_receipts, receipts, since=moment(since))
    latency = _make_latency(deadline_seconds, dollars_per_second, keep)
    if not sessions:
        report = _decide(read, lam, router, prices, encoder_folder, latency)
    elif router is None and pool is None:
        from prefill_router_gateway.receipts import replay_sessions

        report = replay_sessions(read(), lam or _LAMS, latency=latency)
    else:
        raise UsageError(
            "--sessions uses the receipts' own forecasts and prices; leave out --router and "
            "--pool, or --sessions"
        )
    paths = [] if to is None else _draw(report, to)
    if as_json:
        print_json(_to_plain(report))
    else:
        _show_replay(report)
    for path in paths:
        err.say(f"wrote {path}")


def _make_latency(
    deadline_seconds: float | None, dollars_per_second: float, keep: float | None
) -> "LatencySettings | None":
    """The effect of waiting that is tried; None for none."""
    from prefill_router_gateway import LatencySettings

    if deadline_seconds is not None or dollars_per_second:
        return LatencySettings(
            deadline_seconds=deadline_seconds,
            dollars_per_second=dollars_per_second,
            keep=1.0 if keep is None else keep,
        )
    if keep is not None:
        raise UsageError("--keep needs --deadline-seconds or --dollars-per-second")
    return None


def _draw(report: "Replay", to: Path) -> list[Path]:
    from prefill_router_gateway.receipts import write_picture

    return write_picture(report, to / "replay")


def _to_plain(report: "Replay") -> dict[str, Any]:
    return {
        "requests": len(report.recorded),
        "sessions": report.sessions,
        "left_out": dict(report.recorded.left_out),
        "notes": list(report.notes),
        "settings": [setting.to_dict() for setting in report.settings],
    }


def _decide(
    receipts: "Callable[[], Iterator[Receipt]]",
    lams: Sequence[float] | None,
    router: PathOrUrl | None,
    pool: "Pool | None",
    encoders: Sequence[Path] | None,
    latency: "LatencySettings | None",
) -> "Replay":
    from prefill_router_gateway.receipts import Recorded, at_prices, by_router, replay as again

    recorded, notes = Recorded.of(receipts()), []
    if router is not None and len(recorded):
        other = opt.load_router(router, encoders)
        other = other if pool is None else other.with_pool(pool.select(other.pool.names))
        lams = lams or (other.setting,)
        progress = BarProgress(console=err)
        recorded, lacking = by_router(recorded, receipts(), other, progress=progress)
        if lacking:
            notes.append(f"{format_count(lacking, 'request')} without a prompt left out")
    elif pool is not None and len(recorded):
        recorded = at_prices(recorded, receipts(), pool)
        notes.append("the scale of costs is the range of these requests' estimates")
    return again(recorded, lams or _LAMS, latency=latency, notes=notes)


def _show_replay(report: "Replay") -> None:
    heads = ("changed", "expected\naccuracy", "estimated\ncost", "observed cost\nof the same")
    table = columns("setting", *heads)
    costs = [setting.estimated_cost for setting in report.settings if setting.estimated_cost > 0]
    digits = decimal_places(min(costs, default=1.0))
    for setting in report.settings:
        estimated, observed = (
            "?" if math.isnan(cost) else dollars(cost, digits=digits)
            for cost in (setting.estimated_cost, setting.observed_cost)
        )
        table.add_row(
            setting.name,
            f"{setting.changed:,} ({100 * setting.changed / setting.requests:.1f} %)",
            f"{setting.accuracy:.3f}",
            estimated,
            f"{observed} ({setting.observed:,})",
        )
    how = "in their conversations" if report.sessions else "each by itself"
    out.print(f"{format_count(len(report.recorded), 'request')} decided again, {how}\n")
    out.print(table)
    out.print()
    for setting in report.settings[1:]:
        moves = ", ".join(f"{n:,} {a} -> {b}" for a, b, n in setting.moves[:_MOVES])
        if moves:
            out.say(f"{setting.name}: {moves}")
    for why, count in report.recorded.left_out.items():
        out.say(f"left out: {count:,} {why}")
    for note in report.notes:
        out.say(f"note: {note}")
