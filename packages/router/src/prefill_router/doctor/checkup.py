"""The whole check-up, and its verdict: the router compared with fixed mixes at equal cost."""

from dataclasses import dataclass
from typing import Any, final

from prefill_router.doctor import confidence, fixed_choice
from prefill_router.doctor.confidence import Probabilities, Probe, Region
from prefill_router.doctor.fixed_choice import Lift, ShuffledControl, SwitchRate
from prefill_router.doctor.subject import (
    Finding,
    PerQuery,
    Sign,
    Subject,
    percent,
    points_with_interval,
)
from prefill_router.errors import ConfigError
from prefill_router.evaluation import (
    WORTH,
    ReferenceGain,
    Verdict,
    Word,
    count_groups,
    interval,
    judge,
    points,
    warn_of_few,
)
from prefill_router.progress import Progress, SilentProgress
from prefill_router.robustness import RobustnessStudy
from prefill_router.short_repr import short_repr


def flip_finding(study: RobustnessStudy) -> Finding:
    """The finding about the share of decisions that flip.

    It fails a router only if the decisions that flip are significantly less accurate: that some
    flip is no fault where targets are about equally good.
    """
    sign: Sign = "bad" if any(kind.accuracy.upper < 0 for kind in study.kinds) else "note"
    lines = [
        f"{kind.kind}: {percent(1 - kind.kept_share.value)} of {kind.queries:,} flip (stay: "
        f"{interval(kind.kept_share, 'share')}; by chance {percent(kind.by_chance)})"
        for kind in study.kinds
    ]
    labelled = [kind for kind in study.kinds if not kind.accuracy.reason]
    if labelled:
        worst = min(labelled, key=lambda kind: kind.accuracy.value)
        lines.append(f"accuracy after {worst.kind}: {points_with_interval(worst.accuracy)}")
    title = "Do decisions flip if prompts are perturbed"
    return Finding("robustness", title, sign, "; ".join(lines), study.to_dict())


def reference_findings(verdict: Verdict) -> list[Finding]:
    """The findings of the comparisons at equal cost, at the router's setting."""
    point = verdict.setting
    references = (
        ("mix", "Against the best fixed mix at equal cost", "the best fixed mix", point.mix),
        ("price", "Against price alone at equal cost", "price alone", point.price),
        ("domains", "Against price and domain at equal cost", "price and domain", point.domains),
    )
    return [
        _make_reference_finding(name, title, who, verdict, gain)
        for name, title, who, gain in references
        if gain is not None
    ]


def _make_reference_finding(
    name: str, title: str, who: str, verdict: Verdict, against: ReferenceGain
) -> Finding:
    sign: Sign = "good" if against.exceeds(0) else "bad" if against.excludes(WORTH) else "unclear"
    cost = "where no cost is known" if verdict.setting.price is None else "for the same money"
    result = against.gain.reason or (
        f"{who} answers {100 * against.accuracy:.1f} % correctly {cost}; the router answers "
        f"{points(against.gain)} more, on {verdict.compared:,} queries"
    )
    return Finding(name, title, sign, result, {**against.to_dict(), "worth": WORTH})


FORMAT = "prefill-router doctor 1"


@final
@short_repr
@dataclass(frozen=True, eq=False, kw_only=True)
class Checkup:
    """The results of all checks.

    Attributes:
        subject: The examined router.
        ruling: The verdict, and the numbers that it is based on.
        findings: One for each check.
        shuffled: The shuffled control; None where the labels don't allow one.
        lifts: Accuracy above the best single target, by regime, benchmark and domain.
        switching: The shares of the chosen targets.
        probabilities: The quality of the probabilities.
        regions: Confidence by distance from the train part; empty where it wasn't measured.
        probe: Confidence on nonsense; None where it wasn't measured.
        flips: Decisions on perturbed prompts; None where they weren't made.
        notes: Checks that couldn't be made, and why; what the labels or conversations don't allow.
    """

    subject: Subject
    ruling: Verdict
    findings: tuple[Finding, ...]
    shuffled: ShuffledControl | None
    lifts: tuple[Lift, ...]
    switching: SwitchRate
    probabilities: Probabilities
    regions: tuple[Region, ...]
    probe: Probe | None
    flips: RobustnessStudy | None
    notes: tuple[str, ...]

    @property
    def verdict(self) -> Word:
        """The verdict in two or three words."""
        return self.ruling.word

    @property
    def because(self) -> str:
        """The reason of the verdict, in a sentence."""
        return self.ruling.because

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        findings = {finding.name: finding.to_dict() for finding in self.findings}
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
    flips: RobustnessStudy | None = None,
    resamples: int = 1000,
    shuffles: int = 1000,
    seed: int = 0,
    notes: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Checkup:
    """Examine a router.

    Args:
        subject: The router at one lam, on queries that it was not fitted on.
        distances: Each query's distance from the train part (`confidence.distances`), if known.
        probe: Its probabilities on nonsense (`confidence.probe`), if measured.
        flips: Its decisions on perturbed prompts, if made.
        resamples: Bootstrap resamples for the intervals.
        shuffles: Number of shuffles of the shuffled control.
        seed: Random seed of resamples and shuffles.
        notes: Checks that couldn't be made, and why.
        progress: Reports the progress of the work.

    Raises:
        ConfigError: There are too few resamples or shuffles for a verdict, or the seed is negative.
    """
    _check_counts(resamples, shuffles, seed)
    with (progress or SilentProgress()).task("checks", total=6.0) as advance:
        control = fixed_choice.shuffle(subject, count=shuffles, seed=seed)
        advance(1)
        ruling = judge(subject.parts, lam=subject.lam, resamples=resamples, seed=seed)
        advance(1)
        lifts = fixed_choice.lifts(subject, resamples=resamples, seed=seed)
        advance(1)
        switching = fixed_choice.switching(subject)
        advance(1)
        probabilities = confidence.probabilities(subject, resamples=resamples, seed=seed)
        advance(1)
        regions: tuple[Region, ...] = ()
        if distances is not None:
            regions = confidence.regions(subject, distances, resamples=resamples, seed=seed)
        advance(1)
    findings = [
        fixed_choice.shuffled_finding(control),
        *reference_findings(ruling),
        fixed_choice.lift_finding(lifts, subject),
        fixed_choice.switching_finding(switching),
        confidence.probability_finding(probabilities),
        *([confidence.distance_finding(regions)] if regions else []),
        *([confidence.nonsense_finding(probe, subject)] if probe else []),
        *([flip_finding(flips)] if flips else []),
    ]
    return Checkup(
        subject=subject,
        ruling=ruling,
        findings=tuple(findings),
        shuffled=control,
        lifts=lifts,
        switching=switching,
        probabilities=probabilities,
        regions=regions,
        probe=probe,
        flips=flips,
        notes=(*notes, *_list_limits(subject)),
    )


def _check_counts(resamples: int, shuffles: int, seed: int) -> None:
    for name, count in (("resamples", resamples), ("shuffles", shuffles)):
        if count < 20:
            raise ConfigError(f"{name} are {count}; a verdict needs at least 20 (1000 is usual)")
    if seed < 0:
        raise ConfigError(f"the seed is {seed}; it must be 0 or more")


def _list_limits(subject: Subject) -> list[str]:
    """What labels that chance selected, and few conversations, leave open."""
    overlap = subject.trial.overlap_of([subject.choice])
    few = warn_of_few(count_groups(subject.trial.conversations))
    return list(filter(None, ["" if overlap is None else overlap.note, few]))
