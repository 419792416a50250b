"""`prefill-router tasks` and `collect`: questions, and every target's answers to them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.text import Text

from prefill_router.cli import options as opt
from prefill_router.cli.application import (
    Terminal,
    app,
    columns,
    err,
    format_count,
    out,
    print_json,
    round_up,
)
from prefill_router.cli.commands import check_suffix, parse_choice
from prefill_router.errors import ConfigError
from prefill_router.files import check_place
from prefill_router.money import dollars
from prefill_router.options import AT_LEAST_ONE, NOT_NEGATIVE
from prefill_router_lab.benchmarks import BENCHMARKS

if TYPE_CHECKING:
    from prefill_router.runs import Retry, Task
    from prefill_router.targets import Pool
    from prefill_router_lab.collection import CollectionEstimate, CollectionSummary


_LISTING = "  \n".join(f"{name}: {benchmark.summary}" for name, benchmark in BENCHMARKS.items())


@app.command(
    help=(
        "Write the tasks of a benchmark or of a file of your own as JSON Lines, to look at or edit."
        "\n\nSPEC is a file of questions, or one of these, whose files come from the Hugging Face "
        "hub or, with NAME=FOLDER, from a copy. Options follow after commas.\n\n"
        f"{_LISTING}\n\n"
        "Example: prefill-router tasks mmlu_pro,shots=5 --sample 500 --out tasks.jsonl"
    )
)
def tasks(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A benchmark, or a file.")],
    to: Annotated[Path, typer.Option("--out", help="The file to write.")],
    sample: Annotated[
        int | None, AT_LEAST_ONE, typer.Option(help="Draw a sample of this size.")
    ] = None,
    seed: Annotated[int, NOT_NEGATIVE, typer.Option(help="Seed of the sample.")] = 0,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of the hub's repository.")
    ] = None,
    overwrite: opt.Overwrite = False,
    json: opt.AsDocument = False,
) -> None:
    """Write the tasks of a benchmark or a file as JSON Lines."""
    from prefill_router_lab.benchmarks import LoadReport, load_tasks, sample_tasks, write_tasks

    check_suffix("--out", to, (".jsonl", ".ndjson"))
    check_place(to)
    report, kinds = LoadReport(), Counter[str]()
    questions: Iterable[Task] = load_tasks(spec, revision=revision, report=report)
    with opt.replacing(to, overwrite=overwrite) as temporary, err.status(f"reading {spec}"):
        if sample is not None:
            questions = sample_tasks(questions, sample, seed=seed)
        count = write_tasks(_count_kinds(questions, kinds), temporary)
    if json:
        print_json(
            {
                "out": str(to),
                "source": report.source,
                "tasks": count,
                "graders": dict(kinds),
                "skipped": dict(report.skipped),
            }
        )
        return
    graders = ", ".join(f"{number:,} {name}" for name, number in kinds.most_common())
    out.say(f"{to}: {count:,} tasks of {report.source}; graders: {graders}")
    for reason, left_out in report.skipped.items():
        out.say(f"  {left_out:,} left out: {reason}")


def _count_kinds(questions: Iterable["Task"], kinds: Counter[str]) -> Iterator["Task"]:
    for task in questions:
        kinds[task.grader] += 1
        yield task


@app.command()
def collect(
    pool: Annotated[Path, typer.Option(help="The targets and who serves them, pool.yaml.")],
    tasks: Annotated[
        str, typer.Option(help="A benchmark such as mmlu_pro, or a JSONL file of your own.")
    ],
    run: Annotated[
        Path, typer.Option("--out", help="The run's folder: a new one, or one to resume.")
    ],
    max_cost: Annotated[
        float | None,
        NOT_NEGATIVE,
        typer.Option(help="US dollars that the whole run may cost, earlier calls included."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Ask only these targets, separated by commas.")
    ] = None,
    efforts: Annotated[
        str | None,
        typer.Option(
            help="Reasoning efforts, such as low,high; each target is asked with each of them."
        ),
    ] = None,
    sample: Annotated[
        int | None,
        AT_LEAST_ONE,
        typer.Option(help="Ask only a sample of this size; a larger one contains it."),
    ] = None,
    seed: Annotated[
        int, NOT_NEGATIVE, typer.Option(help="Seed of the sample and of the waits.")
    ] = 0,
    attempts: Annotated[int, AT_LEAST_ONE, typer.Option(help="Most calls for one question.")] = 5,
    retry: Annotated[
        str,
        typer.Option(
            help="Which missing answers to ask again: failed (those that a retry may "
            "answer), all, or none."
        ),
    ] = "failed",
    backoff: Annotated[
        float, NOT_NEGATIVE, typer.Option(help="Longest wait before the first retry, in seconds.")
    ] = 1.0,
    patience: Annotated[
        float,
        NOT_NEGATIVE,
        typer.Option(help="Give up on a provider that asks for a longer wait, in seconds."),
    ] = 600.0,
    assume_output_tokens: Annotated[
        int,
        NOT_NEGATIVE,
        typer.Option(help="Expected tokens of an answer, for estimates without recorded answers."),
    ] = 1000,
    assume_free: Annotated[
        bool,
        typer.Option(
            "--assume-free", help="Treat targets without a price as free; for --max-cost."
        ),
    ] = False,
    settled: Annotated[
        bool,
        typer.Option(
            "--settled",
            help="You know the bills of failed calls: stop counting them as possible costs.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only estimate calls, tokens, dollars and time.")
    ] = False,
    json: opt.AsDocument = False,
) -> None:
    """Ask every target every question, and keep each answer as it arrives.

    It can be interrupted at any moment; the same command goes on from there. A call that fails
    leaves a missing answer with its reason, never a wrong one.

    Example: prefill-router collect --pool pool.yaml --tasks mmlu_pro --max-cost 20 --out run
    """
    from prefill_router.endpoints import Upstream
    from prefill_router.progress import BarProgress
    from prefill_router_lab.benchmarks import LoadReport, load_tasks, sample_tasks
    from prefill_router_lab.collection import CollectOptions, collect, estimate_collection

    options = CollectOptions(
        limit=max_cost,
        attempts=attempts,
        retry=_read_retry(retry),
        backoff_seconds=backoff,
        patience_seconds=patience,
        assume_output_tokens=assume_output_tokens,
        assume_free=assume_free,
        settled=settled,
        seed=seed,
    )
    at_efforts = opt.read_efforts(efforts)
    targets, report = _read_pool(pool, only, at_efforts), LoadReport()
    chosen: Iterable[Task] = load_tasks(tasks, report=report)
    if sample is not None:
        chosen = sample_tasks(chosen, sample, seed=seed)
    if dry_run:
        _print_estimate(estimate_collection(run, targets, chosen, options=options), json=json)
        return
    summary = collect(
        run,
        targets,
        chosen,
        asker=Upstream(targets),
        options=options,
        progress=BarProgress(console=err),
        on_estimate=_show_estimate,
        on_interrupted=partial(_print_summary, json=json),
    )
    for reason, left_out in report.skipped.items():
        err.say(f"{format_count(left_out, 'task')} left out: {reason}")
    _print_summary(summary, json=json)
    _check_answers(summary)


def _read_pool(path: Path, only: str | None, efforts: Sequence[str]) -> "Pool":
    from prefill_router.targets import read_pool

    pool = read_pool(path)
    if only is not None:
        names = pool.with_efforts(name.strip() for name in only.split(","))
        pool = pool.select(dict.fromkeys(names))
    return pool.at_efforts(efforts)


def _read_retry(text: str) -> "Retry":
    from prefill_router.runs import Retry

    choices: tuple[Retry, ...] = get_args(Retry)
    return parse_choice("--retry", text, choices)


def _print_estimate(estimate: "CollectionEstimate", *, json: bool) -> None:
    if json:
        print_json(estimate.to_dict())
    else:
        _show_estimate(estimate, to=out)


def _show_estimate(estimate: "CollectionEstimate", to: Terminal = err) -> None:
    """Print the estimate: a line for each target, and sums."""
    if not estimate.calls:
        to.print("nothing is left to ask")
        return
    table = columns("to ask", "calls", "tokens in", "tokens out", "dollars", "at most")
    for row in estimate.targets:
        table.add_row(
            Text(row.target),
            f"{row.calls:,}",
            f"{row.input_tokens:,}",
            f"{row.output_tokens:,}",
            _format_dollars(row.dollars),
            _format_dollars(row.most_dollars),
        )
    to.print(table)
    time = "" if estimate.seconds is None else f", about {_format_duration(estimate.seconds)}"
    priced = any(row.dollars is not None for row in estimate.targets)
    usual, most = (
        _format_dollars(x if priced else None) for x in (estimate.dollars, estimate.most_dollars)
    )
    to.say(
        f"{format_count(estimate.calls, 'call')}, {usual} estimated, "
        f"{most} if every answer is as long as it may be{time}"
    )


def _print_summary(summary: "CollectionSummary", *, json: bool) -> None:
    if json:
        print_json(summary.to_dict())
    else:
        _print_table(summary)


def _print_table(summary: "CollectionSummary") -> None:
    table = columns("target", "answered", "missing", "not asked")
    table.add_column("missing by reason")
    for row in summary.targets:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in sorted(row.missing.items()))
        numbers = (row.answered, sum(row.missing.values()), row.not_asked)
        table.add_row(Text(row.target), *(f"{n:,}" for n in numbers), Text(reasons))
    out.print(table)
    rate = summary.calls / max(summary.seconds, 1e-9)
    out.say(
        f"{format_count(summary.calls, 'call')} in {_format_duration(summary.seconds)} "
        f"({rate:,.1f}/s), {_format_dollars(summary.cost)}; the run has cost "
        f"{_format_dollars(summary.spent)}"
    )
    if summary.at_risk > 0:
        out.say(
            f"up to {_format_dollars(summary.at_risk)} more may have been billed, by calls whose "
            "bill is unknown; it counts against --max-cost until you give --settled"
        )
    for error in summary.errors:
        out.say(f"missing since {error}")
    for why, number in summary.not_asked.items():
        out.say(f"{format_count(number, 'question')} not asked: {why}")
    before = sum(row.missing_before for row in summary.targets)
    if before:
        out.say(f"missing from an earlier call, of those not asked: {before:,}")
    if summary.limit_that_would_do is not None:
        enough = round_up(summary.limit_that_would_do)
        out.say(
            f"--max-cost {enough} would do for the rest, by an estimate from what each target's "
            "questions cost so far, dollars at risk included"
        )


def _check_answers(summary: "CollectionSummary") -> None:
    """Raise an error where questions were left and none was asked, or none was answered."""
    if summary.not_asked and not summary.calls:
        raise ConfigError(
            f"nothing was asked ({', '.join(summary.not_asked)}); if the budget is the reason, "
            "give a larger --max-cost; otherwise ask again later"
        )
    if summary.missing and not summary.answered:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in sorted(summary.missing.items()))
        raise ConfigError(
            f"nothing was answered ({reasons}); see the attempts in the run, and check the pool's "
            "endpoints, models and keys"
        )


def _format_dollars(value: float | None) -> str:
    return "?" if value is None else dollars(value)


def _format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"
