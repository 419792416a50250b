"""A check-up on disk.

    doctor.json    the verdict and every check, for programs
    index.html     the same on one page, with its figures; works offline
    figures/       plane, shuffled, lift and, where it was measured, confidence: .png, .svg, .csv

The folder is written whole or not at all. Costs in files are US dollars per query.
"""

from collections.abc import Mapping
from pathlib import Path

from prefill_router.data import Origin
from prefill_router.doctor.checkup import FORMAT, Checkup
from prefill_router.doctor.subject import SIGNS
from prefill_router.reporting import Banner, Checks, Lines, Note, Report, ReportKind, Section

KIND = ReportKind("a check-up", "doctor.json", FORMAT)
_READING = (
    "ok: passed; !!: failed; ??: too few queries to decide; --: for information. The verdict "
    "follows from the comparison with the best fixed mix of targets at equal cost; a router that "
    "can't beat it has learned nothing useful about the queries. The other checks show where to "
    "look. Intervals are 95 %."
)


def write_checkup(
    checkup: Checkup,
    folder: Path | str,
    *,
    title: str = "Check-up",
    facts: Mapping[str, str] | None = None,
    origin: Origin | None = None,
) -> None:
    """Write a check-up, whole or not at all; an earlier one in the folder is replaced.

    Args:
        checkup: The reported check-up.
        folder: The folder to write: missing, empty, or an earlier check-up.
        title: Title of the page.
        facts: Facts about the run by name, for example the router, the data, the date.
        origin: The command that made it, to be recorded with it.

    Raises:
        DataError: The folder holds something other than a check-up.
    """
    KIND.check_replaceable(Path(folder))
    report = report_of(checkup, title=title, facts=dict(facts or {}))
    KIND.replace(report, Path(folder), origin=origin)


def report_of(checkup: Checkup, *, title: str, facts: Mapping[str, str]) -> Report:
    """The content of the check-up's report; the arguments are those of `write_checkup`."""
    # Here and not above: matplotlib takes longer to import than most commands to run.
    from prefill_router.doctor.figures import make_figures

    checks = [
        (finding.sign, SIGNS[finding.sign], finding.title, finding.result)
        for finding in checkup.findings
    ]
    return Report(
        name="doctor",
        title=title,
        parts=[
            Banner([f"{checkup.because}."], word=checkup.verdict.capitalize()),
            facts,
            Section("What was checked", [Note(_READING), Checks(checks), Lines(checkup.notes)]),
            Section("Figures", make_figures(checkup)),
        ],
        head={"title": title, "facts": dict(facts)},
        numbers=checkup.to_dict(),
    )
