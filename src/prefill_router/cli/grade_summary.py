"""What `grade` prints of what came of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from prefill_router.cli.amounts import counted, dollars, needed, rounded_up
from prefill_router.cli.app import out

if TYPE_CHECKING:
    from prefill_router.harness.grading import GradingReport
    from prefill_router.harness.grading.bill import Bill
    from prefill_router.harness.grading.tally import TargetSummary

_OTHER_FIX = "check the judge's endpoint in its pool file and grade again"
_FIXES: Final[Mapping[str, str]] = {
    "judge_unauthorised": "check the judge's key, which its pool file names by api_key_env",
    "judge_unknown_model": "check the judge's model in its pool file",
    "judge_context_too_long": "give a judge that can read longer prompts",
    "judge_unreadable": "raise max_tokens in the judge's pool file, give another judge, "
    "or ask it once more with --judge-again",
}


def show_grading(report: "GradingReport", folder: Path) -> None:
    """Print what came of grading: a line for each target, what lacks labels, what judging cost."""
    out.print(_table(report.targets))
    for name in report.skipped:
        out.print(f"left ungraded, as asked: answers for the grader {name}")
    for target in report.targets:
        if target.missing:
            reasons = ", ".join(f"{n:,} {reason}" for reason, n in target.missing.items())
            out.print(f"{target.target} lacks labels: {reasons}", soft_wrap=True)
    _show_examples(report, folder)
    if report.reused:
        verdicts = counted(report.reused, "verdict was", "verdicts were")
        out.print(f"{verdicts} kept from before")
    if report.left_out:
        answers = counted(report.left_out, "answer", "answers")
        out.print(f"{answers} of targets that the pool no longer has")
    if report.judging is not None:
        _show_bill(report.judging)


def _show_examples(report: "GradingReport", folder: Path) -> None:
    from prefill_router.harness.grading.sheet import GRADES

    shown = {reason: one for reason, one in report.examples.items() if reason != "skipped"}
    for reason, one in shown.items():
        told = f": {one.detail}" if one.detail else ""
        out.print(f"{reason}: for one, {one.query_id} of {one.target}{told}", soft_wrap=True)
    if shown:
        out.print(f"the rest: {folder / GRADES}, column detail", soft_wrap=True)


def judge_warning(report: "GradingReport") -> str:
    """Why no answer has a judge's label though some needed one, and what to do about it."""
    failed = report.judge_failed
    reasons = ", ".join(f"{n:,} {reason}" for reason, n in failed.items())
    fixes = dict.fromkeys(_FIXES.get(reason, _OTHER_FIX) for reason in failed)
    return f"warning: the judge gave no verdict at all ({reasons}); {'; '.join(fixes)}"


def _show_bill(bill: "Bill") -> None:
    calls = counted(bill.calls, "judge call")
    out.print(f"{calls} in all gradings of this run: {dollars(bill.cost)}", soft_wrap=True)
    if bill.at_risk:
        out.print(
            f"up to {dollars(bill.at_risk)} more may have been billed, by judge calls whose bill "
            "is unknown; it counts against --judge-max-cost",
            soft_wrap=True,
        )
    if bill.unpriced:
        replies = counted(bill.unpriced, "judge reply", "judge replies")
        out.print(f"{replies} without a known cost: the judge's pool file has no prices")
    if bill.limit_that_would_do is not None:
        enough = rounded_up(bill.limit_that_would_do)
        out.print(f"about --judge-max-cost {enough} would do for all of them", soft_wrap=True)


def _table(targets: tuple["TargetSummary", ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("target", overflow="fold")
    for title in ("graded", "accuracy", "95 % interval", "missing", "cut off", "mean cost"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("median", justify="right", no_wrap=True)
    digits = max((needed(t.mean_cost) for t in targets if t.mean_cost is not None), default=0)
    for target in targets:
        table.add_row(*_cells(target, digits))
    return table


def _cells(target: "TargetSummary", digits: int) -> tuple[str, ...]:
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
