"""`prefill-router savings`: what routing saved, with what it cost and the quality beside it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, columns, counted, dollars, out, print_json
from prefill_router.cli.receipts import HELP, URL, moment

if TYPE_CHECKING:
    from prefill_router.gateway.receipts import Savings, SavingsEstimate

_CHOSEN = {
    "named": "as named",
    "train accuracy": "the best single target by train accuracy",
    "expected accuracy": "the best single target by its mean predicted probability",
}
_UNKNOWN = "not known"


@app.command()
def savings(
    receipts: Annotated[str, typer.Argument(metavar="RECEIPTS", help=URL)],
    since: Annotated[str | None, typer.Option(help=HELP)] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="By default the best single target."),
    ] = None,
    encoder_second_dollars: Annotated[
        float, typer.Option(help="Dollars of a second of waiting for forecasts.")
    ] = 0.0,
    encoder_thousand_dollars: Annotated[
        float, typer.Option(help="Dollars of 1,000 forecasts.")
    ] = 0.0,
    as_json: opt.AsJson = False,
) -> None:
    """Tell what routing saved against one target alone, its own costs deducted.

    The baseline's cost is estimated, by the ratio of the estimates of both targets. Intervals are
    95 %, by a bootstrap over groups of conversations. Quality is told beside it.

    Example: prefill-router savings receipts.sqlite --since 7d --baseline large
    """
    from prefill_router.gateway.receipts import savings_since
    from prefill_router.gateway.settings import SavingsSettings

    settings = SavingsSettings(
        baseline=baseline,
        encoder_second_dollars=encoder_second_dollars,
        encoder_thousand_dollars=encoder_thousand_dollars,
    )
    found = savings_since(receipts, settings, since=moment(since) or 0.0)
    if as_json:
        print_json(found.to_dict())
    else:
        _show(found)


def _show(found: "Savings") -> None:
    compared = counted(found.requests, "routed request")
    out.say(f"{compared}, against {found.baseline} alone, {_CHOSEN[found.chosen_by]}")
    out.print()
    table = columns("", "", "95 % interval", fold=True)
    table.add_row("spent", dollars(found.spent), "")
    table.add_row(f"at {found.baseline}, estimated", dollars(found.at_baseline), "")
    table.add_row("saved", *_told(found.saved, _dollars))
    table.add_row("as a share", *_told(found.share, "{:.1%}".format))
    for one in found.deducted:
        told = "not counted" if one.dollars is None else _dollars(0 - one.dollars)
        table.add_row(f"  {one.kind}", told, "")
    table.add_row("saved after that", *_told(found.net, _dollars))
    table.add_row("expected accuracy", _accuracy(found.expected), "")
    table.add_row(f"  at {found.baseline}", _accuracy(found.expected_baseline), "")
    table.add_row("  difference", *_told(found.expected_gain, "{:+.3f}".format))
    scored = f"scored answers ({found.scored:,})" if found.scored else "scored answers"
    table.add_row(scored, *_told(found.observed, "{:.3f}".format))
    out.print(table)
    for note in found.notes():
        out.say(f"note: {note}")


def _told(found: "SavingsEstimate", show: Callable[[float], str]) -> tuple[str, str]:
    if found.value is None:
        return _UNKNOWN, ""
    if found.low is None or found.high is None:
        return show(found.value), _UNKNOWN
    return show(found.value), f"{show(found.low)} to {show(found.high)}"


def _dollars(value: float) -> str:
    return f"-{dollars(-value)}" if value < 0 else dollars(value)


def _accuracy(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.3f}"
