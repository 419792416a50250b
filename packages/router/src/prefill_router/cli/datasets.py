"""`prefill-router describe`, `split` and `merge`: summarise, split and join datasets."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

import typer
from rich.table import Table
from rich.text import Text

from prefill_router import files
from prefill_router.cli import options as opt
from prefill_router.cli.application import app, columns, out, print_json
from prefill_router.cli.commands import parse_choice
from prefill_router.cli.import_ import REPEATS
from prefill_router.errors import ConfigError, FormatError
from prefill_router.money import dollars, list_price
from prefill_router.options import NOT_NEGATIVE

if TYPE_CHECKING:
    from prefill_router.data import LabelMeaning, PartSummary, Split
    from prefill_router.targets import Pool, Target


_BAR = 24


@final
class DescribeBy(StrEnum):
    """What the queries are grouped by."""

    BENCHMARK = "benchmark"
    DOMAIN = "domain"


@app.command()
def describe(
    folder: opt.DataFolder,
    by: Annotated[
        DescribeBy | None, typer.Option(help="Also show each target's accuracy in each of these.")
    ] = None,
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
    _show_whole(summary.whole, dataset.pool, summary.meaning)
    groups = {DescribeBy.BENCHMARK: summary.by_benchmark, DescribeBy.DOMAIN: summary.by_domain}
    for name, parts in groups.items():
        if by is name or (by is None and len(parts) > 1):
            out.print()
            out.print(_make_overview(name, parts))
    if by is not None:
        _show_matrix(by, groups[by], dataset.pool.names)


def _show_whole(whole: "PartSummary", pool: "Pool", meaning: "LabelMeaning") -> None:
    rest = f", {whole.distinct_prompts:,} distinct prompts, {len(whole.targets)} targets"
    out.print(Text.assemble((f"{whole.queries:,} queries", "bold"), rest))
    if whole.unmeasured:
        out.print(f"{whole.unmeasured:,} queries have no label at all", style="yellow")
    out.print()
    out.print(_make_target_table(whole, pool, meaning))
    out.print()
    if meaning.note:
        out.say(f"{meaning.note}\n")
    if meaning.kind != "vote":
        _show_comparison(whole, meaning)


def _show_comparison(whole: "PartSummary", meaning: "LabelMeaning") -> None:
    """Print the best single target, the oracle and consensus, on queries that targets share."""
    best = Text.assemble(
        "best single target ", (_format_mean(whole.best_single_accuracy, meaning), "bold")
    )
    labelled = whole.queries - whole.unmeasured
    fewer = f", on the {whole.compared:,} queries that have the labels of all compared targets"
    why = "fewer than two queries have the labels of all compared targets"
    best.append(f" ({whole.best_single or why})")
    few = whole.single_label if len(whole.targets) > 1 else 0
    if few and few == labelled:
        out.print(best)
        out.say(
            "no query has the labels of two targets: oracle and consensus are unknown, and "
            "accuracies are of different queries",
            style="yellow",
        )
        return
    best.append(", oracle ").append(_format_mean(whole.oracle_accuracy, meaning), "bold")
    if whole.best_single is not None and whole.compared < whole.queries:
        best.append(fewer)
    out.say(best)
    out.print()
    out.print(_make_regime_table(whole))
    if few:
        out.say(
            f"{few:,} of {labelled:,} labelled queries have the label of one target only, which "
            "counts as the consensus of all",
            style="yellow",
        )


def _format_mean(mean: float | None, meaning: "LabelMeaning") -> str:
    return "unknown" if mean is None else meaning.words(mean)


def _format_prices(target: "Target") -> str:
    if target.input_price is None or target.output_price is None:
        return "unknown"
    return f"{list_price(target.input_price)} / {list_price(target.output_price)}"


def _make_target_table(whole: "PartSummary", pool: "Pool", meaning: "LabelMeaning") -> Table:
    """Targets by their mean labels, the best first."""
    names = ("target", meaning.title, "missing", "mean cost", "per million tokens")
    table = columns(*names, fold=True)
    for target in sorted(whole.targets, key=lambda t: 1 if t.accuracy is None else -t.accuracy):
        cost = "unknown" if target.mean_cost is None else dollars(target.mean_cost)
        price = _format_prices(pool[target.name])
        style = "bold green" if target.name == whole.best_single else ""
        missing = f"{target.missing:,}" if target.missing else "-"
        mean = _format_mean(target.accuracy, meaning)
        table.add_row(target.name, mean, missing, cost, price, style=style)
    return table


def _make_regime_table(whole: "PartSummary") -> Table:
    from prefill_router.data import MEASURED

    table = Table(box=None, pad_edge=False)
    table.add_column("consensus")
    table.add_column("queries", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for regime in MEASURED:
        share = whole.share(regime)
        bar = "█" * round((share or 0) * _BAR)
        table.add_row(regime.value, f"{whole.regimes[regime]:,}", _format_percent(share), bar)
    return table


def _make_overview(name: str, parts: Mapping[str, "PartSummary"]) -> Table:
    """A row per benchmark or domain, shares and accuracies in per cent."""
    from prefill_router.data import MEASURED

    table = Table(
        box=None, pad_edge=False, header_style="bold", caption="shares and accuracies in %"
    )
    table.add_column(name, overflow="ellipsis", no_wrap=True)
    for title in ("queries", "all\ncorrect", "all\nwrong", "dis-\nagree", "oracle", "best"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("single", overflow="ellipsis")  # shortened in a narrow terminal
    for part_name, part in parts.items():
        shares = [_format_number(part.share(regime)) for regime in MEASURED]
        ends = [_format_number(part.oracle_accuracy), _format_number(part.best_single_accuracy)]
        best = part.best_single or "unknown"
        table.add_row(part_name or "(unknown)", f"{part.queries:,}", *shares, *ends, best)
    return table


def _show_matrix(
    by: DescribeBy, parts: Mapping[str, "PartSummary"], names: tuple[str, ...]
) -> None:
    """Accuracy of each target in each part, as many parts side by side as the terminal holds."""
    width = max(map(len, names))
    fitting = max(1, (out.width - width) // 12)
    keys = list(parts)
    for start in range(0, len(keys), fitting):
        chunk = keys[start : start + fitting]
        table = Table(box=None, pad_edge=False)
        table.add_column(f"accuracy by {by.value}", overflow="fold")
        for key in chunk:
            table.add_column(key or "(unknown)", justify="right", overflow="fold", max_width=11)
        for row, name in enumerate(names):
            table.add_row(
                name, *(_format_percent(parts[key].targets[row].accuracy) for key in chunk)
            )
        out.print()
        out.print(table)


def _format_number(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.1f}"


def _format_percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.1f} %"


@app.command(name="split")
def split_command(
    folder: opt.DataFolder,
    to: Annotated[Path, typer.Option("--out", help="The JSON file to write.")],
    seed: Annotated[int, NOT_NEGATIVE, typer.Option(help="Seed of the split.")] = 0,
    calibration: Annotated[
        bool,
        typer.Option(
            "--calibration", help="Also draw a calibration part: 75/10/15 instead of 85/15."
        ),
    ] = False,
    overwrite: opt.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Draw train and test parts, which every later command can use.

    The parts are stratified. The file has the ids of their queries.

    Example: prefill-router split answers --seed 0 --out split.json
    """
    from prefill_router.data import (
        FRACTIONS,
        WITH_CALIBRATION,
        read_dataset,
        save_split,
        split as draw_split,
    )

    files.check_place(to)
    if to.is_dir():
        raise ConfigError(f"{to} is a folder; a split is a file: name one, such as {to}/split.json")
    dataset = read_dataset(folder)
    split = draw_split(dataset, seed=seed, fractions=WITH_CALIBRATION if calibration else FRACTIONS)
    if to.exists() and not overwrite and not _is_same(split, to):
        raise ConfigError(
            f"{to} is another split, or something else; name another file, or pass --overwrite"
        )
    save_split(split, to)
    sizes = {part: len(ids) for part, ids in split.parts.items()}
    if as_json:
        print_json({"parts": sizes, "merged_strata": dict(split.merged), "file": str(to)})
        return
    out.print(", ".join(f"{part} {count:,}" for part, count in sizes.items()), f"-> {to}")
    if split.merged:
        small = ", ".join(f"{name} ({count})" for name, count in split.merged.items())
        out.say(f"strata too small to split alone, merged by regime: {small}")


def _is_same(split: "Split", there: Path) -> bool:
    """Whether a file holds this same split."""
    from prefill_router.data import load_split

    try:
        return load_split(there) == split
    except FormatError:
        return False


@final
class MergePreference(StrEnum):
    """Which dataset counts where two contradict each other."""

    FIRST = "first"
    LAST = "last"


@app.command(name="merge")
def merge_command(
    folders: opt.DataFolders,
    to: opt.DatasetOut,
    prefer: Annotated[
        MergePreference | None,
        typer.Option(help="The dataset that counts where labels or prices contradict each other."),
    ] = None,
    repeats: Annotated[
        str | None,
        typer.Option(help="mean: the datasets are repeated runs; average their labels."),
    ] = None,
    overwrite: opt.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Join datasets by the ids of their queries and the names of their targets.

    A label that no dataset has is missing. Labels or prices that contradict each other are refused.
    To accept them, name the dataset that counts with --prefer. If the datasets are repeated runs of
    the same questions, average the labels with --repeats mean.

    Example: prefill-router merge answers more --out both
    """
    from prefill_router.data import (
        Origin,
        check_replaceable,
        merge,
        read_dataset,
        summarise,
        write_dataset,
    )

    averaged = None if repeats is None else parse_choice("--repeats", repeats, REPEATS)
    origin = Origin.of("merge", *folders)
    check_replaceable(to, origin=origin, overwrite=overwrite)
    datasets = {str(folder): read_dataset(folder) for folder in folders}
    merged = merge(
        datasets,
        prefer=None if prefer is None else prefer.value,
        repeats=averaged,
    )
    write_dataset(merged, to, origin=origin)
    whole = summarise(merged).whole
    if as_json:
        print_json({"out": str(to), "dataset": whole.to_dict()})
        return
    labels, missing = (sum(getattr(t, n) for t in whole.targets) for n in ("measured", "missing"))
    out.say(
        f"{to}: {whole.queries:,} queries, {len(whole.targets)} targets, {labels:,} labels, "
        f"{missing:,} missing"
    )
