"""The whole check-up, and its verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from prefill_router.errors import ConfigError
from prefill_router.evaluation import Verdict, judge
from prefill_router.evaluation.verdict import Word
from prefill_router.progress import Progress, SilentProgress
from prefill_router.studies.doctor import (
    distance as far,
    lift,
    mixture,
    nonsense,
    probabilities as probable,
    shuffled,
    switching as switches,
)
from prefill_router.studies.doctor.distance import PerQuery, Region
from prefill_router.studies.doctor.finding import Finding
from prefill_router.studies.doctor.lift import Lift
from prefill_router.studies.doctor.nonsense import Probe
from prefill_router.studies.doctor.probabilities import Probabilities
from prefill_router.studies.doctor.shuffled import Shuffled
from prefill_router.studies.doctor.subject import Subject
from prefill_router.studies.doctor.switching import Switching

FORMAT = "prefill-router doctor 1"


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Checkup:
    """Everything that was found.

    Attributes:
        subject: Who was examined.
        ruling: The verdict, and the figures that it is from.
        findings: One for each check.
        shuffled: The shuffled control; None where the labels allow none.
        lifts: Against the best single target, by regime, benchmark and domain.
        switching: What is chosen.
        probabilities: Whether they hold.
        regions: Confidence by distance from the train part; empty where it wasn't measured.
        probe: Confidence on nonsense; None where it wasn't probed.
        notes: What couldn't be checked, and why.
    """

    subject: Subject
    ruling: Verdict
    findings: tuple[Finding, ...]
    shuffled: Shuffled | None
    lifts: tuple[Lift, ...]
    switching: Switching
    probabilities: Probabilities
    regions: tuple[Region, ...]
    probe: Probe | None
    notes: tuple[str, ...]

    @property
    def verdict(self) -> Word:
        """In two or three words."""
        return self.ruling.word

    @property
    def because(self) -> str:
        """Why, in a sentence."""
        return self.ruling.because

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        findings = {found.name: found.to_dict() for found in self.findings}
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "because": self.because,
            "lam": self.subject.lam,
            "queries": len(self.subject),
            "trained_on": len(self.subject.train),
            "checks": findings,
            "notes": list(self.notes),
        }


def examine(
    subject: Subject,
    *,
    distances: PerQuery | None = None,
    probe: Probe | None = None,
    resamples: int = 1000,
    shuffles: int = 1000,
    seed: int = 0,
    notes: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Checkup:
    """Examine a router.

    Args:
        subject: The router at one lam, on queries that it was not trained on.
        distances: Of each query from the train part (`distance.distances`), if known.
        probe: Its probabilities on nonsense (`nonsense.probe`), if asked.
        resamples: For the intervals.
        shuffles: Of the shuffled control.
        seed: Of everything that is drawn.
        notes: What couldn't be checked, and why.
        progress: Shows how far it is.

    Raises:
        ConfigError: There are too few resamples or shuffles for a verdict, or the seed is negative.
    """
    for name, count in (("resamples", resamples), ("shuffles", shuffles)):
        if count < 20:
            raise ConfigError(f"{count} {name}; a verdict needs at least 20, 1000 is usual")
    if seed < 0:
        raise ConfigError(f"the seed is {seed}; it must be 0 or more")
    with (progress or SilentProgress()).task("checks", total=6.0) as advance:
        dealt = shuffled.shuffle(subject, count=shuffles, seed=seed)
        advance(1)
        ruling = judge(
            subject.trial, subject.train, lam=subject.lam, resamples=resamples, seed=seed
        )
        advance(1)
        lifts = lift.lifts(subject, resamples=resamples, seed=seed)
        advance(1)
        switched = switches.switching(subject)
        advance(1)
        judged = probable.probabilities(subject, resamples=resamples, seed=seed)
        advance(1)
        regions: tuple[Region, ...] = ()
        if distances is not None:
            regions = far.regions(subject, distances, resamples=resamples, seed=seed)
        advance(1)
    findings = [
        shuffled.finding(dealt),
        *mixture.findings(ruling),
        lift.finding(lifts, subject),
        switches.finding(switched),
        probable.finding(judged),
        *([far.finding(regions)] if regions else []),
        *([nonsense.finding(probe, subject)] if probe else []),
    ]
    return Checkup(
        subject=subject,
        ruling=ruling,
        findings=tuple(findings),
        shuffled=dealt,
        lifts=lifts,
        switching=switched,
        probabilities=judged,
        regions=regions,
        probe=probe,
        notes=notes,
    )


SIGNS: Mapping[str, str] = {"good": "ok", "bad": "!!", "unclear": "??", "note": "--"}
"""How a sign is shown in a terminal."""
