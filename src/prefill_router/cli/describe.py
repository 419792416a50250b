"""`prefill-router describe`: what a dataset holds."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

import typer
from rich.table import Table
from rich.text import Text

from prefill_router.cli.app import app, out, print_json

if TYPE_CHECKING:
    from prefill_router.data import PartSummary
    from prefill_router.targets import Pool

_BAR = 24


@final
class By(StrEnum):
    """What the queries are grouped by."""

    BENCHMARK = "benchmark"
    DOMAIN = "domain"


@app.command()
def describe(
    folder: Annotated[Path, typer.Argument(metavar="DATA", help="The dataset folder.")],
    by: Annotated[By | None, typer.Option(help="Show each target in each of these, too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Say what a dataset holds: queries, targets, accuracy, cost, oracle, consensus regimes.

    Example: prefill-router describe answers --by domain
    """
    from prefill_router.data import read_dataset, summarise

    dataset = read_dataset(folder)
    summary = summarise(dataset)
    if as_json:
        print_json({"folder": str(folder), **summary.to_dict()})
        return
    _show_whole(summary.whole, dataset.pool)
    groups = {By.BENCHMARK: summary.by_benchmark, By.DOMAIN: summary.by_domain}
    for name, parts in groups.items():
        if by is name or (by is None and len(parts) > 1):
            out.print()
            out.print(_overview(name, parts))
    if by is not None:
        _show_matrix(by, groups[by], dataset.pool.names)


def _show_whole(whole: "PartSummary", pool: "Pool") -> None:
    rest = f", {whole.distinct_prompts:,} distinct prompts, {len(whole.targets)} targets"
    out.print(Text.assemble((f"{whole.queries:,} queries", "bold"), rest))
    if whole.unmeasured:
        out.print(f"{whole.unmeasured:,} queries have no label at all", style="yellow")
    out.print()
    out.print(_targets(whole, pool))
    out.print()
    _show_comparison(whole)


def _show_comparison(whole: "PartSummary") -> None:
    """What targets would give together, as far as they were asked the same queries."""
    best = Text.assemble("best single target ", (_percent(whole.best_single_accuracy), "bold"))
    labelled = whole.queries - whole.unmeasured
    fewer = f", on the {whole.compared:,} queries that have the labels of all compared targets"
    why = "fewer than two queries have the labels of all compared targets"
    best.append(f" ({whole.best_single or why})")
    few = whole.single_label if len(whole.targets) > 1 else 0
    if few and few == labelled:
        out.print(best)
        out.print(
            "no query has the labels of two targets: there is no oracle and no consensus to tell, "
            "and accuracies are of different queries",
            style="yellow",
            soft_wrap=True,
        )
        return
    best.append(", oracle ").append(_percent(whole.oracle_accuracy), "bold")
    if whole.best_single is not None and whole.compared < whole.queries:
        best.append(fewer)
    out.print(best, soft_wrap=True)
    out.print()
    out.print(_regimes(whole))
    if few:
        out.print(
            f"{few:,} of {labelled:,} labelled queries have one target's label alone, which "
            "consensus takes for everybody's",
            style="yellow",
            soft_wrap=True,
        )


def _targets(whole: "PartSummary", pool: "Pool") -> Table:
    """Targets by accuracy, the best first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("target", overflow="fold")
    for title in ("accuracy", "missing", "mean cost", "per million tokens"):
        table.add_column(title, justify="right")
    for target in sorted(whole.targets, key=lambda t: -1 if t.accuracy is None else -t.accuracy):
        listed = pool[target.name]
        cost = "?" if target.mean_cost is None else f"${target.mean_cost:.6f}"
        price = f"${listed.input_price:g} / ${listed.output_price:g}" if listed.has_price else "?"
        style = "bold green" if target.name == whole.best_single else ""
        missing = f"{target.missing:,}" if target.missing else "-"
        table.add_row(target.name, _percent(target.accuracy), missing, cost, price, style=style)
    return table


def _regimes(whole: "PartSummary") -> Table:
    from prefill_router.data.summary import MEASURED

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("consensus")
    table.add_column("queries", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for regime in MEASURED:
        share = whole.share(regime)
        bar = "█" * round((share or 0) * _BAR)
        table.add_row(regime.value, f"{whole.regimes[regime]:,}", _percent(share), bar)
    return table


def _overview(name: str, parts: Mapping[str, "PartSummary"]) -> Table:
    """A row per benchmark or domain, shares and accuracies in per cent."""
    from prefill_router.data.summary import MEASURED

    table = Table(
        box=None, pad_edge=False, header_style="bold", caption="shares and accuracies in %"
    )
    table.add_column(name, overflow="ellipsis", no_wrap=True)
    for title in ("queries", "all\ncorrect", "all\nwrong", "dis-\nagree", "oracle", "best"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("single", overflow="ellipsis")  # what gives way in a narrow terminal
    for part_name, part in parts.items():
        shares = [_number(part.share(regime)) for regime in MEASURED]
        ends = [_number(part.oracle_accuracy), _number(part.best_single_accuracy)]
        best = part.best_single or "?"
        table.add_row(part_name or "(unknown)", f"{part.queries:,}", *shares, *ends, best)
    return table


def _show_matrix(by: By, parts: Mapping[str, "PartSummary"], names: tuple[str, ...]) -> None:
    """Accuracy of each target in each part, as many parts side by side as the terminal holds."""
    width = max(map(len, names))
    fitting = max(1, (out.width - width) // 12)
    keys = list(parts)
    for start in range(0, len(keys), fitting):
        shown = keys[start : start + fitting]
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column(f"accuracy by {by.value}", overflow="fold")
        for key in shown:
            table.add_column(key or "(unknown)", justify="right", overflow="fold", max_width=11)
        for row, name in enumerate(names):
            table.add_row(name, *(_percent(parts[key].targets[row].accuracy) for key in shown))
        out.print()
        out.print(table)


def _number(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.1f}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.1f} %"
