"""`prefill-router explain`, `canary`, `savings` and `purge`: what the gateway's receipts say.

`explain` says why the gateway sent a request where it went; `canary` compares routed traffic with
the rest; `savings` says what routing saved and cost, with the quality beside it. `purge`
deletes receipts and what was kept to learn from them.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

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
from prefill_router.errors import DataError
from prefill_router.money import decimal_places, dollars
from prefill_router.options import NOT_NEGATIVE
from prefill_router_gateway.cli.texts import shorten_text

if TYPE_CHECKING:
    from prefill_router.router import VersionStep
    from prefill_router_gateway import Receipt
    from prefill_router_gateway.receipts import Explanation, Mean, Savings, SavingsEstimate
    from prefill_router_gateway.records import TargetAttempt

SINCE_HELP = "Only requests since this time: 24h, 7d, or a date or time as 2026-11-22T08:30 (UTC)."
RECEIPTS = "sqlite:///receipts.sqlite"
"""Where a gateway keeps its receipts by default."""
URL = "An SQLite file, sqlite:///FILE, or postgresql://... with its password in PGPASSWORD."
VARIABLE = "PREFILL_ROUTER_RECEIPTS__URL"
"""The environment variable of the gateway's setting."""


def moment(text: str | None) -> float | None:
    """The Unix time of an option's text; None where it isn't given.

    Raises:
        UsageError: It isn't a time.
    """
    if text is None:
        return None
    from prefill_router_gateway.receipts import since_time

    try:
        return since_time(text)
    except DataError as error:
        raise UsageError(str(error)) from None


@app.command()
def explain(
    decision: Annotated[
        str, typer.Argument(metavar="ID", help="The decision's id, or last for the latest.")
    ],
    receipts: Annotated[str, typer.Option(help=URL, envvar=VARIABLE, show_envvar=True)] = RECEIPTS,
    baseline: Annotated[
        str | None,
        typer.Option(help="The target to compare the cost with; by default the receipt's."),
    ] = None,
    versions: Annotated[
        str | None,
        typer.Option(help="The folder or URL of the versions, to show why this version serves."),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Say why the gateway sent a request where it went, from its receipt.

    The id is in the response's header x-prefill-router-decision-id.

    Example: prefill-router explain last --receipts receipts.sqlite
    """
    from prefill_router_gateway.receipts import explain as work_out, latest_feedback, request_saving

    receipt = _find_receipt(receipts, decision)
    scores = latest_feedback(receipts, [receipt.choice.id])
    instead = request_saving(receipts, receipt, baseline)
    explanation = work_out(receipt, scores.get(receipt.choice.id, []), instead=instead)
    step = None if versions is None else _find_step(versions, receipt)
    if as_json:
        more = {} if versions is None else {"step": step and step.model_dump(mode="json")}
        print_json({**explanation.to_dict(), **more})
        return
    _show_explanation(explanation)
    if step is not None:
        out.print()
        out.say(f"{step.at}: {step.words}")
        for name, value in step.figures():
            out.say(f"    {name}: {value}")


def _find_step(versions: str, receipt: "Receipt") -> "VersionStep | None":
    """The step by which the version that decided came to decide; None where it isn't known."""
    from prefill_router.router import VersionRegistry
    from prefill_router_gateway.receipts import version_name_of

    name = version_name_of(receipt)
    if name is None:
        err.say("note: the receipt names no version")
        return None
    return VersionRegistry.at(versions, create=False).state().step_of(name, until=receipt.at)


def _find_receipt(url: str, decision: str) -> "Receipt":
    from prefill_router_gateway.receipts import read_receipts, recent

    last = decision == "last"
    matches = recent(url, 1) if last else list(read_receipts(url, ids=[decision]))
    if not matches:
        raise DataError(
            "there are no receipts yet; ask the gateway something first"
            if last
            else f"there is no receipt {decision!r}; its id is in the response's header "
            "x-prefill-router-decision-id"
        )
    return matches[0]


def _show_explanation(explanation: "Explanation") -> None:
    first, *sentences = explanation.sentences()
    out.say(Text(first, style="bold"))
    for sentence in sentences:
        out.say(sentence)
    prompt = explanation.receipt.prompt
    if prompt is not None:
        text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
        out.say(f"the encoder read: {shorten_text(text)}")
    out.print()
    out.print(_target_table(explanation))
    out.print()
    _show_calls(explanation)
    _show_amounts(explanation)


def _target_table(explanation: "Explanation") -> Table:
    heads = ["target", "place", "P(correct)", "estimated cost", "score"]
    waits = explanation.receipt.choice.waits is not None
    table = columns(*heads, *(["seconds"] if waits else []), fold=True)
    table.add_column("why not", overflow="fold")
    for line in explanation.targets:
        table.add_row(
            line.target,
            "-" if line.place is None else str(line.place),
            "?" if line.probability is None else f"{line.probability:.3f}",
            "?" if line.estimated_cost is None else dollars(line.estimated_cost),
            "?" if line.score is None else f"{line.score:+.4f}",
            *(["?" if line.seconds is None else f"{line.seconds:.2f}"] if waits else []),
            line.excluded or "",
        )
    return table


def _show_calls(explanation: "Explanation") -> None:
    attempts = explanation.receipt.outcome.attempts
    for alike in (list(group) for _, group in groupby(attempts, _what_came)):
        attempt, times = alike[0], f" {len(alike)} times" if len(alike) > 1 else ""
        name = attempt.deployment or attempt.target
        if attempt.end == "breaker_open":
            out.print(f"{name} wasn't asked: its breaker was open")
            continue
        status = "" if attempt.status is None else f", status {attempt.status}"
        end = attempt.end.replace("_", " ")
        seconds = sum(attempt.seconds for attempt in alike)
        out.print(f"asked {name}{times}: {end}{status}, {seconds:.3f} s")
        if attempt.failure is not None:
            out.say(f"  {attempt.failure}")


def _what_came(attempt: "TargetAttempt") -> "TargetAttempt":
    """An attempt without its duration: what retries have in common."""
    return replace(attempt, seconds=0.0)


def _show_amounts(explanation: "Explanation") -> None:
    receipt, outcome = explanation.receipt, explanation.receipt.outcome
    forecast = receipt.forecast_seconds
    reading = "" if forecast is None else f" ({1000 * forecast:.1f} ms for the forecast)"
    first = outcome.first_byte_seconds
    first_byte = "" if first is None else f", first byte after {first:.3f} s"
    out.say(
        f"decided in {1000 * receipt.decision_seconds:.1f} ms{reading}{first_byte}, "
        f"{outcome.total_seconds:.3f} s in all"
    )
    usage = outcome.usage
    if usage is not None:
        parts = (
            (usage.input_tokens, "in"),
            (usage.cached_tokens, "of them cached"),
            (usage.output_tokens, "out"),
            (usage.reasoning_tokens, "of them reasoning"),
        )
        counts = ", ".join(f"{n:,} {what}" for n, what in parts if n is not None)
        about = ", estimated" if outcome.usage_is_estimated else ""
        out.print(f"tokens: {counts or 'unknown'}{about}")
    estimated = format_count(receipt.choice.input_tokens, "input token")
    cost = "?" if receipt.cost is None else dollars(receipt.cost)
    about = ", by estimates" if receipt.cost_is_estimated else ""
    out.print(f"cost: {cost}{about}; {estimated} had been estimated")


_MANY = 1000


@app.command()
def canary(
    receipts: Annotated[str, typer.Argument(metavar="RECEIPTS", help=URL)],
    since: Annotated[str | None, typer.Option(help=SINCE_HELP)] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Compare routed traffic with the rest, if only a share is routed (`traffic.share`).

    The table has the cost of 1,000 conversations, and per conversation the share of failed
    requests, the seconds per answer, and the feedback score. These are means over conversations,
    with 95 % intervals. A difference whose interval contains 0 may be chance.

    Example: prefill-router canary receipts.sqlite --since 7d
    """
    from prefill_router_gateway.receipts import compare_share, scored_receipts

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
    table = columns("", "routed", "the rest", "difference")
    table.add_row("conversations", f"{routed.conversations:,}", f"{rest.conversations:,}", "")
    table.add_row("requests", f"{routed.requests:,}", f"{rest.requests:,}", "")
    for name, difference in differences.items():
        means = (routed.means()[name], rest.means()[name], difference)
        if name == "cost":
            table.add_row("cost of 1,000", *_format_costs(means))
        else:
            table.add_row(name, *(_format_mean(mean, f"{mean.value:.3f}", 3) for mean in means))
    out.print(table)


def _format_costs(means: "Sequence[Mean]") -> list[str]:
    """Costs of 1,000 conversations, since one may cost a millionth of a dollar."""
    many = [replace(m, value=_MANY * m.value, half=_MANY * m.half) for m in means]
    least = min((abs(m.value) for m in many if m.value), default=1.0)
    digits = 2 if math.isnan(least) or least >= 1 else decimal_places(least)
    return [_format_mean(m, dollars(m.value, digits=digits), digits) for m in many]


def _format_mean(mean: "Mean", value: str, digits: int) -> str:
    if math.isnan(mean.value):
        return "?"
    return value if math.isnan(mean.half) else f"{value} ± {mean.half:,.{digits}f}"


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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count what would be deleted.")
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Delete receipts by key or age, with everything that was kept for learning.

    Feedback, sampled requests, side answers and labels are deleted too. Gateways may run meanwhile.
    A gateway that starts reads the last day's spending from receipts. It doesn't count the spending
    of deleted ones.

    Example: prefill-router purge receipts.sqlite --key alice --dry-run
    """
    from prefill_router_gateway.receipts import purge as delete

    if key is None and older_than is None:
        raise UsageError("nothing says what to purge; give --key, --older-than, or both")
    before = moment(older_than)
    counts = delete(receipts, key=key, before=before, texts_only=texts_only, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "texts_only": texts_only, "rows": counts})
        return
    what = "rows with texts" if texts_only else "rows"
    table = columns("table", what if dry_run else f"{what}, purged")
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    out.print(table)


_CHOSEN = {"named": "as asked for", "receipts": "as the receipts say"}
_UNKNOWN = "not known"


@app.command()
def savings(
    receipts: Annotated[str, typer.Argument(metavar="RECEIPTS", help=URL)],
    since: Annotated[str | None, typer.Option(help=SINCE_HELP)] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="Compare everything with this target; by default with the one in each receipt.",
        ),
    ] = None,
    encoder_second_dollars: Annotated[
        float,
        NOT_NEGATIVE,
        typer.Option(help="What a second of waiting for a forecast costs, in US dollars."),
    ] = 0.0,
    encoder_thousand_dollars: Annotated[
        float, NOT_NEGATIVE, typer.Option(help="What 1,000 forecasts cost, in US dollars.")
    ] = 0.0,
    as_json: opt.AsJson = False,
) -> None:
    """Say what routing saved over one target alone, after the router's own costs.

    That target is the baseline. Each receipt has the one that the gateway used, so the page and the
    metrics give the same figure. The baseline's cost is estimated: the recorded cost is scaled by
    the ratio of both targets' estimates. Intervals are 95 %, by a bootstrap over groups of
    conversations. The quality is shown too.

    Example: prefill-router savings receipts.sqlite --since 7d --baseline large
    """
    from prefill_router_gateway import SavingsSettings
    from prefill_router_gateway.receipts import savings_since

    settings = SavingsSettings(
        encoder_second_dollars=encoder_second_dollars,
        encoder_thousand_dollars=encoder_thousand_dollars,
    )
    report = savings_since(receipts, settings, since=moment(since) or 0.0, against=baseline)
    if as_json:
        print_json(report.to_dict())
    else:
        _show_savings(report)


def _show_savings(report: "Savings") -> None:
    compared = format_count(report.requests, "routed request")
    out.say(f"{compared}, against {report.baseline} alone, {_CHOSEN[report.chosen_by]}")
    out.print()
    table = columns("", "", "95 % interval", fold=True)
    table.add_row("spent", dollars(report.spent), "")
    table.add_row(f"at {report.baseline}, estimated", dollars(report.at_baseline), "")
    table.add_row("saved", *_estimate_cells(report.saved, dollars))
    table.add_row("as a share", *_estimate_cells(report.share, "{:.1%}".format))
    for deduction in report.deducted:
        cost = deduction.dollars
        words = "not counted" if cost is None else dollars(0 - cost)
        table.add_row(f"  {deduction.kind}", words, "")
    table.add_row("saved after that", *_estimate_cells(report.net, dollars))
    table.add_row("expected accuracy", _format_accuracy(report.expected), "")
    table.add_row(f"  at {report.baseline}", _format_accuracy(report.expected_baseline), "")
    table.add_row("  difference", *_estimate_cells(report.expected_gain, "{:+.3f}".format))
    scored = f"scored answers ({report.scored:,})" if report.scored else "scored answers"
    table.add_row(scored, *_estimate_cells(report.observed, "{:.3f}".format))
    out.print(table)
    for note in report.notes():
        out.say(f"note: {note}")


def _estimate_cells(estimate: "SavingsEstimate", show: Callable[[float], str]) -> tuple[str, str]:
    if estimate.value is None:
        return _UNKNOWN, ""
    if estimate.low is None or estimate.high is None:
        return show(estimate.value), _UNKNOWN
    return show(estimate.value), f"{show(estimate.low)} to {show(estimate.high)}"


def _format_accuracy(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.3f}"
