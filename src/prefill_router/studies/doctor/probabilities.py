"""Do the probabilities hold, and do they say more than each target's average?"""

from dataclasses import dataclass
from typing import final

import numpy as np

from prefill_router.evaluation import Estimate
from prefill_router.evaluation.binning import Bins
from prefill_router.evaluation.reliability import calibration_error, chance_error, with_chance
from prefill_router.evaluation.weighted import (
    PerResample,
    Weights,
    divide,
    known_mean,
    mean_over,
    ones,
)
from prefill_router.evaluation.wording import interval
from prefill_router.studies.doctor.finding import Finding, Sign, points
from prefill_router.studies.doctor.subject import Subject

TOLERATED = 0.05
"""An expected calibration error below this is good however sure it is."""


@final
@dataclass(frozen=True)
class Probabilities:
    """How good the probabilities are.

    Attributes:
        brier: Mean squared difference from the labels, over all targets.
        base_brier: That of each target's accuracy on the train part, predicted for every query.
        skill: 1 - brier / base_brier.
        calibration_error: Expected calibration error over all targets, bins of equal mass.
        by_chance: What it would be on average if every probability held.
        overconfidence: Of the chosen targets: mean probability minus mean label.
    """

    brier: float
    base_brier: float
    skill: Estimate
    calibration_error: Estimate
    by_chance: float
    overconfidence: Estimate


def probabilities(subject: Subject, *, resamples: int, seed: int) -> Probabilities:
    """Judge the probabilities of all targets, and those of the chosen ones."""
    trial = subject.trial
    base = known_mean(ones(len(subject.train)), subject.train.correct)
    lost = (trial.correctness - trial.correct) ** 2
    usual = (base - trial.correct) ** 2
    lost = np.where(np.isnan(usual), np.nan, lost)
    cells = np.stack([np.nansum(lost, axis=1), np.nansum(usual, axis=1)], axis=1)

    def skill(weights: Weights) -> PerResample:
        ours, theirs = (weights @ cells).T
        return 1 - divide(ours, theirs)

    def overconfidence(weights: Weights) -> PerResample:
        return mean_over(weights, subject.confidence - subject.label)

    bins = Bins.of(trial, kind="mass")
    chance = chance_error(bins.sums(ones(len(trial)), noise="sampling"))[0, -1]

    def error(weights: Weights) -> PerResample:
        return calibration_error(bins.sums(weights))[:, -1]

    judged = {
        "error": subject.estimate(error, resamples=resamples, seed=seed),
        "chance": Estimate(float(chance), np.nan, np.nan),
    }
    count = int((~np.isnan(usual)).sum())
    return Probabilities(
        brier=float(cells[:, 0].sum()) / max(count, 1),
        base_brier=float(cells[:, 1].sum()) / max(count, 1),
        skill=subject.estimate(skill, resamples=resamples, seed=seed),
        calibration_error=with_chance(judged, "error", "chance")["error"],
        by_chance=float(chance),
        overconfidence=subject.estimate(overconfidence, resamples=resamples, seed=seed),
    )


def finding(found: Probabilities) -> Finding:
    """What the probabilities are worth."""
    off = found.calibration_error
    holds = off.lower == 0 or off.value <= TOLERATED
    sign: Sign = "good" if holds and found.skill.lower > 0 else "bad"
    if holds and found.skill.lower <= 0 < found.skill.upper:
        sign = "unclear"
    said = (
        f"Brier score {found.brier:.3f}, {found.base_brier:.3f} for each target's average (skill "
        f"{found.skill.value:+.3f}, {found.skill.lower:.3f} to {found.skill.upper:.3f}); "
        f"calibration error {off.value:.3f} ({interval(off, 'number')}), {found.by_chance:.3f} by "
        f"chance; predicted minus "
        f"right, of the chosen targets: {points(found.overconfidence)}"
    )
    numbers = {
        "brier": found.brier,
        "base_rate_brier": found.base_brier,
        "skill": found.skill.to_dict(),
        "calibration_error": off.to_dict(),
        "calibration_error_by_chance": found.by_chance,
        "overconfidence_of_the_chosen": found.overconfidence.to_dict(),
    }
    return Finding("calibration", "Do the probabilities hold", sign, said, numbers)
