"""A check-up on disk.

    doctor.json    the verdict and every check, for programs
    index.html     the same on one page, with its figures; opens without a network
    figures/       plane, shuffled, lift and, where it was measured, confidence: .png, .svg, .csv

The folder is written whole or not at all. Costs in files are US dollars per query.
"""

from collections.abc import Mapping
from pathlib import Path

from prefill_router.reporting import Banner, Checks, Lines, Note, Report, ReportKind, Section
from prefill_router.studies.doctor.checkup import FORMAT, SIGNS, Checkup

KIND = ReportKind("a check-up", "doctor.json", FORMAT)
_READING = (
    "ok: passed; !!: failed; ??: too few queries to say; --: for information. The verdict follows "
    "from the first two checks: a router that can't beat its own choices dealt out at random, or a "
    "mix of targets drawn by lot for the same money, knows nothing of the queries. The other "
    "checks say where to look. Intervals are 95 %."
)


def write_checkup(
    checkup: Checkup,
    folder: Path | str,
    *,
    title: str = "Check-up",
    facts: Mapping[str, str] | None = None,
) -> None:
    """Write a check-up, whole or not at all; an earlier one in the folder is replaced.

    Args:
        checkup: What is reported.
        folder: Where to; empty, not there yet, or an earlier check-up.
        title: Heads the page.
        facts: What the reader must know of it, such as the router, the data, the date.

    Raises:
        DataError: The folder holds something else than a check-up.
    """
    KIND.check_replaceable(Path(folder))
    KIND.replace(report_of(checkup, title=title, facts=dict(facts or {})), Path(folder))


def report_of(checkup: Checkup, *, title: str, facts: Mapping[str, str]) -> Report:
    """Everything that the check-up says; the arguments are those of `write_checkup`."""
    # Here and not above: matplotlib takes longer to import than most commands to run.
    from prefill_router.studies.doctor.figures import figures

    checks = [(one.sign, SIGNS[one.sign], one.title, one.said) for one in checkup.findings]
    return Report(
        name="doctor",
        title=title,
        parts=[
            Banner([f"{checkup.because}."], word=checkup.verdict.capitalize()),
            facts,
            Section("What was checked", [Note(_READING), Checks(checks), Lines(checkup.notes)]),
            Section("Figures", figures(checkup)),
        ],
        head={"title": title, "facts": dict(facts)},
        numbers=checkup.to_dict(),
    )
