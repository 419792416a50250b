"""`prefill-router check-assignment`: compares an assignment with the results of its batches."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, columns, format_count, out, print_json
from prefill_router.cli.commands import UsageError
from prefill_router.money import dollars

if TYPE_CHECKING:
    from prefill_router.assignment import CheckedResults, ResultFigures


@app.command(name="check-assignment")
def check_assignment(
    folder: Annotated[
        Path, typer.Argument(metavar="BATCHES", help="The folder that assign has made.")
    ],
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULT", help="Files of results, or folders of them.")
    ],
    labels: Annotated[
        Path | None,
        typer.Option(help="A table with id and correct, or the folder of a graded dataset."),
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(help="The prompts as tasks, with answer and grader, to grade the results by."),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Compare the forecast of an assignment with the results of its batches.

    It reads the results that OpenAI and Anthropic give for a batch, and joins them by id. Costs are
    computed from the reported tokens and the router's prices. Labels, or graders that need no
    judge, say which answers are right.

    Example: prefill-router check-assignment batches results.jsonl --labels labels.csv
    """
    from prefill_router.assignment import SavedAssignment, check_results, grade_results, read_labels

    if labels is not None and tasks is not None:
        raise UsageError("--labels and --tasks both say what is right; give one of them")
    saved = SavedAssignment.read(folder)
    graded = None if tasks is None else grade_results(saved, results, tasks)
    right = {} if graded is None else graded.labels
    if labels is not None:
        right = read_labels(labels, saved)
    checked = check_results(saved, results, labels=right)
    ungraded = {} if graded is None else graded.ungraded
    if as_json:
        print_json({**checked.to_dict(), "ungraded": ungraded})
        return
    _show_results(checked)
    if ungraded:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in ungraded.items())
        out.say(f"answers without a grade: {reasons}")


def _show_results(checked: "CheckedResults") -> None:
    table = columns(
        *("target", "prompts", "answered", "expected", "cost"),
        *("labels", "predicted", "right"),
        fold=True,
    )
    for name, figures in checked.targets.items():
        if figures.prompts:
            table.add_row(name, *_format_cells(figures))
    table.add_row("all", *_format_cells(checked.total))
    out.print(table)
    total = checked.total
    if total.failed:
        out.say(f"{format_count(total.failed, 'request')} failed, expired or were cancelled")
    waiting = total.prompts - total.answered - total.failed
    if waiting:
        out.say(f"{format_count(waiting, 'prompt has', 'prompts have')} no result yet")
    if checked.unknown:
        are = format_count(checked.unknown, "result is", "results are")
        out.say(f"left out: {are} of no prompt of the assignment")
    if total.costed:
        ratio = total.observed_cost / total.expected_cost if total.expected_cost else 0
        out.say(
            f"{format_count(total.costed, 'answer')} with known tokens: "
            f"{dollars(total.observed_cost)}, {100 * ratio:.0f} % of the expected "
            f"{dollars(total.expected_cost)}"
        )
    out.say(_accuracy_line(total))


def _format_cells(figures: "ResultFigures") -> tuple[str, ...]:
    chances = (
        "-" if chance is None else f"{chance:.3f}"
        for chance in (figures.predicted, figures.observed)
    )
    return (
        f"{figures.prompts:,}",
        f"{figures.answered:,}",
        dollars(figures.expected_cost) if figures.costed else "?",
        dollars(figures.observed_cost) if figures.costed else "?",
        f"{figures.labelled:,}" if figures.labelled else "-",
        *chances,
    )


def _accuracy_line(total: "ResultFigures") -> str:
    if total.predicted is None or total.observed is None:
        return "no answer has a label: give --labels or --tasks to compare the accuracy"
    difference = total.difference
    interval = (
        ""
        if difference.reason
        else (
            f", a difference of {100 * difference.value:+.1f} points "
            f"({100 * difference.lower:+.1f} to {100 * difference.upper:+.1f})"
        )
    )
    return (
        f"{format_count(total.labelled, 'answer')} with a label: {100 * total.observed:.1f} % "
        f"right, {100 * total.predicted:.1f} % predicted{interval}"
    )
