"""`prefill-router import`: makes a dataset folder of scored answers in another format."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from pydantic import Field

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, out, print_json
from prefill_router.cli.commands import UsageError, parse_choice, usage_errors
from prefill_router.errors import ConfigError
from prefill_router.importers import FORMATS
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from prefill_router.data import Summary
    from prefill_router.importers import ImportReport

_MOST_SHOWN = 10
REPEATS: Final[tuple[Literal["mean"]]] = ("mean",)
SWITCHYARD = "switchyard"
_LISTING = "  \n".join(
    (
        *opt.list_entries(FORMATS),
        f"{SWITCHYARD}: a prefill checkpoint of NVIDIA's Switchyard, as a router",
    )
)


@app.command(
    name="import",
    help=(
        "Read scored answers of another format and write a dataset folder.\n\n"
        f"Formats:\n\n{_LISTING}\n\n"
        "Malformed rows are left out and reported with file and line; if they are more than one in "
        "a hundred, nothing is written. --scale, --threshold, --repeats and the --...-column "
        "options are for long and wide tables; in a wide table --correct-column and the last three "
        "contain {target}, as in '{target}|total_cost'.\n\n"
        "Example: prefill-router import long answers.csv --out answers --prices prices.csv"
    ),
)
def import_command(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help="One of the formats above.")],
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE", help="Files or folders.")],
    to: opt.DatasetOut,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="For switchyard: the hub id or folder of the encoder that the "
            "router was made with."
        ),
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="A pool.yaml, a prices.csv, or RouterArena's prices.")
    ] = None,
    agents: Annotated[
        Path | None,
        typer.Option(
            help="For logs of calls: a gateway's settings; marks of agents in them are used too."
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at a malformed row.")] = False,
    skip_malformed: Annotated[
        bool,
        typer.Option(
            "--skip-malformed", help="Go on, even if more than one row in a hundred is malformed."
        ),
    ] = False,
    overwrite: opt.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    prompt: Annotated[
        str | None, typer.Option("--prompt-column", help="By default prompt.")
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query-column", help="Ids. By default query_id.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target-column", help="By default target, or else model.")
    ] = None,
    effort: Annotated[
        str | None, typer.Option("--effort-column", help="By default reasoning_effort.")
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            "--target-columns",
            help="For a wide table: its columns of targets, separated by "
            "commas; guessed by default.",
        ),
    ] = None,
    correct: Annotated[
        str | None, typer.Option("--correct-column", help="Labels from 0 to 1. By default correct.")
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="WORST-BEST", help="The range of scores that aren't from 0 to 1, such as 1-5."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        Field(ge=-100_000),
        typer.Option(help="An answer is right at this score or above, else wrong."),
    ] = None,
    repeats: Annotated[
        str | None,
        typer.Option(
            help="mean: average rows of the same query and target, which are repeated runs."
        ),
    ] = None,
    benchmark: Annotated[
        str | None, typer.Option("--benchmark-column", help="By default benchmark.")
    ] = None,
    domain: Annotated[
        str | None, typer.Option("--domain-column", help="By default domain.")
    ] = None,
    inputs: Annotated[
        str | None, typer.Option("--input-tokens-column", help="By default input_tokens.")
    ] = None,
    outputs: Annotated[
        str | None, typer.Option("--output-tokens-column", help="By default output_tokens.")
    ] = None,
    cost: Annotated[
        str | None, typer.Option("--cost-column", help="US dollars. By default cost.")
    ] = None,
) -> None:
    """Read scored answers of another format and write a dataset folder."""
    from prefill_router.agents import read_harnesses
    from prefill_router.data import Origin, check_replaceable, summarise, write_dataset
    from prefill_router.importers import Columns, Scale, import_dataset

    if format_ == SWITCHYARD:
        _import_switchyard(sources, to, encoder, prices, overwrite=overwrite, as_json=as_json)
        return
    _check_format(format_)
    with usage_errors():
        scores = Scale.parse(scale, threshold)
    averaged = None if repeats is None else parse_choice("--repeats", repeats, REPEATS)
    origin = Origin.of(f"import {format_}", *sources)
    check_replaceable(to, origin=origin, overwrite=overwrite)
    columns = Columns(
        prompt=prompt,
        query=query,
        benchmark=benchmark,
        domain=domain,
        target=target,
        effort=effort,
        correct=correct,
        input_tokens=inputs,
        output_tokens=outputs,
        cost=cost,
        scale=scores,
        repeats=averaged,
        targets=tuple(name.strip() for name in (targets or "").split(",") if name.strip()),
    )
    with err.status(f"reading {format_}"):
        dataset, report = import_dataset(
            format_,
            sources,
            columns=columns,
            prices=prices,
            strict=strict,
            skip_malformed=skip_malformed,
            harnesses=None if agents is None else read_harnesses(agents),
        )
        write_dataset(dataset, to, origin=origin)
        summary = summarise(dataset)
    if as_json:
        print_json({**report.to_dict(), "out": str(to), "dataset": summary.whole.to_dict()})
        return
    _show_report(report)
    _show_dataset(summary, to)


def _check_format(name: str) -> None:
    if name not in FORMATS:
        formats = ", ".join((*FORMATS, SWITCHYARD))
        raise UsageError(f"there is no format {name!r}; the formats are {formats}")


def _import_switchyard(
    sources: list[Path],
    to: PathOrUrl,
    encoder: str | None,
    prices: Path | None,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write the router that a checkpoint holds; the encoder is the one that the user names."""
    if len(sources) != 1 or encoder is None or prices is not None:
        raise UsageError(
            f"a router is imported from one file, with --encoder and without --prices: "
            f"prefill-router import {SWITCHYARD} FILE --encoder NAME --out ROUTER"
        )
    from prefill_router.encoders import load_encoder
    from prefill_router.router import Router, SwitchyardCheckpoint, check_replaceable, is_router

    check_replaceable(to)
    checkpoint = SwitchyardCheckpoint.read(sources[0])
    read_by = load_encoder(
        encoder, template="chat", dtype="float32", device="cpu", layers=checkpoint.layers
    )
    router = checkpoint.router(read_by.provenance)
    if not overwrite and is_router(to) and Router.load(to).record.options != router.record.options:
        raise ConfigError(
            f"{to} is a router of another file; name another folder, or pass --overwrite"
        )
    router.save(to)
    if as_json:
        print_json({"out": str(to), "targets": list(router.pool.names), "encoder": encoder})
        return
    out.say(f"router: {to}, over {', '.join(router.pool.names)}")
    for note in router.record.notes:
        out.say(f"note: {note}")


def _show_report(report: "ImportReport") -> None:
    out.print(f"read {report.rows_read:,} rows of {report.files_read:,} files")
    for reason, count in report.files_skipped.items():
        out.say(f"  {count:,} files left out: {reason}")
    out.print(
        f"kept {report.rows_kept:,}, dropped {report.duplicates:,} repeats and "
        f"{report.malformed:,} malformed"
    )
    for problem in report.problems[:_MOST_SHOWN]:
        out.say(f"  {problem}")
    if report.malformed > _MOST_SHOWN:
        out.print(f"  and {report.malformed - _MOST_SHOWN:,} more; --json lists them")
    for note in report.notes:
        out.say(f"note: {note}")


def _show_dataset(summary: "Summary", to: PathOrUrl) -> None:
    whole = summary.whole
    labels = sum(target.measured for target in whole.targets)
    missing = sum(target.missing for target in whole.targets)
    out.say(
        f"{to}: {whole.queries:,} queries, {len(whole.targets)} targets, {labels:,} labels, "
        f"{missing:,} missing, {len(summary.by_benchmark)} benchmarks; "
        f"for more: prefill-router describe {to}"
    )
