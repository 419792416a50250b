"""`prefill-router grade`: grades a run's answers and makes a dataset of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table

from prefill_router.cli import options as opt
from prefill_router.cli.application import (
    app,
    columns,
    err,
    format_count,
    out,
    print_json,
    round_up,
)
from prefill_router.cli.commands import parse_choice, usage_errors
from prefill_router.grading import GRADERS
from prefill_router.money import decimal_places, dollars
from prefill_router.options import AT_LEAST_ONE, NOT_NEGATIVE
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from prefill_router.grading import GradedTarget, GradingReport, JudgeBill


_LISTING = "  \n".join(opt.list_entries(GRADERS))


@app.command(
    help=(
        "Grade a run's answers and write a dataset folder.\n\n"
        "No target is asked again, and answers are never changed.\n\n"
        f"Graders:\n\n{_LISTING}\n\n"
        "It can be interrupted at any moment; the same command goes on from there.\n\n"
        "Example: prefill-router grade runs/first --out answers"
    )
)
def grade(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that collect has made.")],
    to: opt.DatasetOut,
    judge: Annotated[
        Path | None, typer.Option(help="A pool.yaml of the one target that judges.")
    ] = None,
    soft: Annotated[
        bool, typer.Option("--soft", help="Take the judge's score from 0 to 1, not its yes or no.")
    ] = False,
    judge_samples: Annotated[
        int,
        AT_LEAST_ONE,
        typer.Option(help="How often the judge is asked about each answer; the score is the mean."),
    ] = 1,
    judge_max_cost: Annotated[
        float | None,
        NOT_NEGATIVE,
        typer.Option(help="Dollars that judging this run may cost in all."),
    ] = None,
    judge_again: Annotated[
        bool, typer.Option("--judge-again", help="Ask again where a judge's reply can't be read.")
    ] = False,
    jobs: Annotated[
        int, AT_LEAST_ONE, typer.Option(help="Programs and calculations that run at once.")
    ] = 2,
    interpreter: Annotated[
        Path | None,
        typer.Option(
            "--python",
            help="The interpreter that runs the programs, for example one with NumPy.",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="A grader whose answers are left ungraded; repeatable.")
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Run programs and calculations again, although results are kept."
        ),
    ] = False,
    unextracted: Annotated[
        str,
        typer.Option(help="What an MMLU-Pro answer without a letter is: wrong, missing or random."),
    ] = "wrong",
    grader_function: Annotated[
        str | None,
        typer.Option(help="For the grader python: your function, as path/to/file.py:function."),
    ] = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.AsDocument = False,
) -> None:
    """Grade a run's answers and write a dataset folder."""
    from prefill_router.grading import UNEXTRACTED, Settings, grade_run, place_and_name
    from prefill_router.runs import Run
    from prefill_router.targets import read_pool

    choice = parse_choice("--unextracted", unextracted, UNEXTRACTED)
    left_out = frozenset(parse_choice("--skip", name, tuple(GRADERS)) for name in skip or ())
    if grader_function is not None:
        with usage_errors():
            place_and_name(grader_function)
    settings = Settings(
        judge=None if judge is None else read_pool(judge),
        soft=soft,
        judge_samples=judge_samples,
        judge_limit=judge_max_cost,
        judge_again=judge_again,
        jobs=jobs,
        skip=left_out,
        fresh=fresh,
        unextracted=choice,
        interpreter=interpreter,
        function=grader_function,
    )
    with Run.open(run) as opened:
        bar = BarProgress(console=err)
        report = grade_run(opened, to, settings=settings, overwrite=overwrite, progress=bar)
    if as_json:
        print_json({"out": str(to), "reused": report.reused, **report.to_dict()})
    else:
        show_grading(report, to)
        out.say(f"{to}: for more, prefill-router describe {to}")
    if report.judge_useless:
        err.say(judge_warning(report), style="yellow")
        raise typer.Exit(1)


_OTHER_FIX = "check the judge's endpoint in its pool file and grade again"
_FIXES: Final[Mapping[str, str]] = {
    "judge_unauthorised": "check the judge's key, which its pool file names by api_key_env",
    "judge_unknown_model": "check the judge's model in its pool file",
    "judge_context_too_long": "give a judge that can read longer prompts",
    "judge_unreadable": "raise max_tokens in the judge's pool file, give another judge, "
    "or ask it once more with --judge-again",
}


def show_grading(report: "GradingReport", folder: PathOrUrl) -> None:
    """Print a line for each target, the reasons for missing labels, and the cost of judging."""
    out.print(_make_table(report.targets))
    for name in report.skipped:
        out.print(f"left ungraded, as asked: answers for the grader {name}")
    for target in report.targets:
        if target.missing:
            reasons = ", ".join(f"{n:,} {reason}" for reason, n in target.missing.items())
            out.say(f"{target.target} lacks labels: {reasons}")
    _show_examples(report, folder)
    if report.reused:
        verdicts = format_count(report.reused, "verdict was", "verdicts were")
        out.print(f"{verdicts} kept from an earlier grading")
    if report.left_out:
        answers = format_count(report.left_out, "answer", "answers")
        out.print(f"left out: {answers} of targets that the pool no longer has")
    if report.judging is not None:
        _show_bill(report.judging)


def _show_examples(report: "GradingReport", folder: PathOrUrl) -> None:
    from prefill_router.grading import GRADES

    examples = {
        reason: example for reason, example in report.examples.items() if reason != "skipped"
    }
    for reason, example in examples.items():
        detail = f": {example.detail}" if example.detail else ""
        out.say(f"{reason}: for example {example.query_id} of {example.target}{detail}")
    if examples:
        out.say(f"all of them: {folder / GRADES}, column detail")


def judge_warning(report: "GradingReport") -> str:
    """Why no answer has a judge's label though some needed one, and what to do about it."""
    failed = report.judge_failed
    reasons = ", ".join(f"{n:,} {reason}" for reason, n in failed.items())
    fixes = dict.fromkeys(_FIXES.get(reason, _OTHER_FIX) for reason in failed)
    return f"warning: the judge gave no verdict at all ({reasons}); {'; '.join(fixes)}"


def _show_bill(bill: "JudgeBill") -> None:
    calls = format_count(bill.calls, "judge call")
    out.say(f"{calls} in all gradings of this run: {dollars(bill.cost)}")
    if bill.at_risk:
        out.say(
            f"up to {dollars(bill.at_risk)} more may have been billed, by judge calls whose bill "
            "is unknown; it counts against --judge-max-cost"
        )
    if bill.unpriced:
        replies = format_count(bill.unpriced, "judge reply", "judge replies")
        out.print(f"{replies} without a known cost: the judge's pool file has no prices")
    if bill.limit_that_would_do is not None:
        enough = round_up(bill.limit_that_would_do)
        out.say(f"about --judge-max-cost {enough} would be enough for all of them")


def _make_table(targets: tuple["GradedTarget", ...]) -> Table:
    heads = ("graded", "accuracy", "95 % interval", "missing", "cut off", "mean cost", "median")
    table = columns("target", *heads, fold=True, no_wrap=True)
    digits = max(
        (decimal_places(t.mean_cost) for t in targets if t.mean_cost is not None), default=0
    )
    for target in targets:
        table.add_row(*_format_cells(target, digits))
    return table


def _format_cells(target: "GradedTarget", digits: int) -> tuple[str, ...]:
    interval = target.interval
    missing = sum(target.missing.values())
    return (
        target.target,
        f"{target.graded:,}",
        "?" if target.accuracy is None else f"{100 * target.accuracy:.1f} %",
        "?" if interval is None else f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}",
        f"{missing:,}" if missing else "-",
        f"{target.truncated:,}" if target.truncated else "-",
        "?" if target.mean_cost is None else dollars(target.mean_cost, digits=digits),
        "?" if target.median_seconds is None else f"{target.median_seconds:.2f} s",
    )
