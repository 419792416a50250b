"""Can the probabilities be trusted? Three checks.

It checks whether the probabilities are calibrated and better than each target's average. It checks
whether the router is overconfident on queries far from its train rows. And it checks whether
prompts that no target can answer correctly get low probabilities.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.doctor.subject import (
    Finding,
    PerQuery,
    Sign,
    Subject,
    percent,
    points_with_interval,
)
from prefill_router.errors import DataError
from prefill_router.evaluation import (
    Bins,
    Estimate,
    PerResample,
    Weights,
    calibration_error,
    chance_error,
    divide,
    interval,
    known_mean,
    mean_over,
    ones,
    with_chance,
)

TOLERATED_ERROR = 0.05
"""An expected calibration error below this is good, however narrow its interval."""


@final
@dataclass(frozen=True)
class Probabilities:
    """The quality of the probabilities.

    Attributes:
        brier: Brier score over all targets.
        base_brier: Brier score of predicting each target's train accuracy for every query.
        skill: 1 - brier / base_brier.
        calibration_error: Expected calibration error over all targets, in bins of equal mass.
        by_chance: The average calibration error of perfectly calibrated probabilities.
        overconfidence: Mean probability minus mean label of the chosen targets.
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
    errors = trial.squared_error(trial.correctness)
    base_errors = trial.squared_error(np.broadcast_to(base, errors.shape))
    errors = np.where(np.isnan(base_errors), np.nan, errors)
    cells = np.stack([np.nansum(errors, axis=1), np.nansum(base_errors, axis=1)], axis=1)

    def skill(weights: Weights) -> PerResample:
        ours, theirs = (weights @ cells).T
        return 1 - divide(ours, theirs)

    def overconfidence(weights: Weights) -> PerResample:
        return mean_over(weights, subject.confidence - subject.label)

    bins = Bins.of(trial, kind="mass")
    chance = chance_error(bins.sums(ones(len(trial)), noise="sampling"))[0, -1]

    def error(weights: Weights) -> PerResample:
        return calibration_error(bins.sums(weights))[:, -1]

    estimates = {
        "error": subject.estimate(error, resamples=resamples, seed=seed),
        "chance": Estimate(float(chance), np.nan, np.nan),
    }
    count = int((~np.isnan(base_errors)).sum())
    return Probabilities(
        brier=float(cells[:, 0].sum()) / max(count, 1),
        base_brier=float(cells[:, 1].sum()) / max(count, 1),
        skill=subject.estimate(skill, resamples=resamples, seed=seed),
        calibration_error=with_chance(estimates, "error", "chance")["error"],
        by_chance=float(chance),
        overconfidence=subject.estimate(overconfidence, resamples=resamples, seed=seed),
    )


def probability_finding(quality: Probabilities) -> Finding:
    """The finding about the probabilities."""
    off = quality.calibration_error
    holds = off.lower == 0 or off.value <= TOLERATED_ERROR
    sign: Sign = "good" if holds and quality.skill.lower > 0 else "bad"
    if np.isnan(quality.skill.lower) or (holds and quality.skill.lower <= 0 < quality.skill.upper):
        sign = "unclear"
    skill, error = (
        interval(estimate, "number") or "no interval" for estimate in (quality.skill, off)
    )
    result = (
        f"Brier score {quality.brier:.3f}, {quality.base_brier:.3f} for each target's average "
        f"(skill {quality.skill.value:+.3f}, {skill}); calibration error {off.value:.3f} "
        f"({error}), {quality.by_chance:.3f} by chance; predicted minus "
        f"right, of the chosen targets: {points_with_interval(quality.overconfidence)}"
    )
    numbers = {
        "brier": quality.brier,
        "base_rate_brier": quality.base_brier,
        "skill": quality.skill.to_dict(),
        "calibration_error": off.to_dict(),
        "calibration_error_by_chance": quality.by_chance,
        "overconfidence_of_the_chosen": quality.overconfidence.to_dict(),
    }
    return Finding("calibration", "Are the probabilities calibrated", sign, result, numbers)


NEIGHBOURS = 10
BINS = 5
TOLERATED_GAP = 0.05
_MOST = 4000
_ROWS = 256
Features = Float[NDArray[np.floating[Any]], "_row feature"]


@final
@dataclass(frozen=True)
class Region:
    """The queries at some distance from the train part.

    Attributes:
        name: Name of the region.
        queries: Number of its queries.
        confidence: Mean probability of the chosen target.
        accuracy: Mean label of the chosen target.
        gap: Confidence minus accuracy.
    """

    name: str
    queries: int
    confidence: float
    accuracy: float
    gap: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {k: v if np.isfinite(v) else None for k, v in vars(self).items() if k in _NUMBERS}
        return {"name": self.name, "queries": self.queries, **plain, "gap": self.gap.to_dict()}


_NUMBERS = ("confidence", "accuracy")


def distances(train: Features, examined: Features, *, seed: int = 0) -> PerQuery:
    """The mean distance of each row to its nearest train rows, with standardised features.

    Args:
        train: Features of the train part, subsampled where there are many rows.
        examined: Features of other queries.
        seed: Random seed of that sample.

    Raises:
        DataError: There is no train row.
    """
    if not len(train):
        raise DataError("there are no train rows to measure the distance to")
    if len(train) > _MOST:
        sample = np.random.default_rng(seed).choice(len(train), _MOST, replace=False)
        train = train[np.sort(sample)]
    spread = train.std(axis=0, dtype=np.float64)
    scale = 1 / np.where(spread > 0, spread, 1)
    near, far = (part.astype(np.float64) * scale for part in (train, examined))
    count = min(NEIGHBOURS, len(near))
    length = (near**2).sum(axis=1)
    result = np.empty(len(far))
    for begin in range(0, len(far), _ROWS):
        rows = far[begin : begin + _ROWS]
        squares = (rows**2).sum(axis=1)[:, None] + length - 2 * rows @ near.T
        nearest = np.partition(squares, count - 1, axis=1)[:, :count]
        result[begin : begin + _ROWS] = np.sqrt(np.maximum(nearest, 0)).mean(axis=1)
    return result


def regions(
    subject: Subject, distance: PerQuery, *, resamples: int, seed: int
) -> tuple[Region, ...]:
    """Confidence and accuracy by distance from the train part, nearest first.

    Args:
        subject: The examined router.
        distance: The distance of each of its queries.
        resamples: Bootstrap resamples for the intervals.
        seed: Random seed of the resamples.
    """
    count = min(BINS, len(subject))
    order = np.argsort(np.argsort(distance, kind="stable"), kind="stable")
    place = order * count // len(subject)
    names = ["nearest", *(f"{i + 1} of {count}" for i in range(1, count - 1)), "farthest"]
    parts = [
        _measure_region(subject, name, place == i, resamples, seed)
        for i, name in enumerate(names[-count:] if count > 1 else ["all"])
    ]
    trained_kinds = {(query.benchmark, query.domain) for query in subject.train.queries}
    new = np.array([(q.benchmark, q.domain) not in trained_kinds for q in subject.queries])
    if new.any():
        parts.append(
            _measure_region(subject, "benchmarks and domains not trained on", new, resamples, seed)
        )
    return tuple(parts)


def distance_finding(regions: tuple[Region, ...]) -> Finding:
    """The finding whether confidence exceeds accuracy far from the train rows."""
    far = [
        region
        for region in regions
        if region.name not in ("nearest",) and " of " not in region.name
    ]
    signs: list[Sign] = [_judge_gap(region.gap) for region in far]
    sign: Sign = "bad" if "bad" in signs else "unclear" if "unclear" in signs else "good"
    lines = [
        f"{region.name}: predicted {percent(region.confidence)}, right {percent(region.accuracy)}, "
        f"{points_with_interval(region.gap)}"
        for region in dict.fromkeys((regions[0], *far))
    ]
    numbers = {"regions": [region.to_dict() for region in regions], "tolerated": TOLERATED_GAP}
    title = "Overconfidence far from the train rows"
    return Finding("distance", title, sign, "; ".join(lines), numbers)


def _judge_gap(gap: Estimate) -> Sign:
    if gap.lower > TOLERATED_GAP:
        return "bad"
    return "good" if gap.upper <= TOLERATED_GAP else "unclear"


def _measure_region(
    subject: Subject, name: str, member: NDArray[np.bool_], resamples: int, seed: int
) -> Region:
    table = np.stack([subject.confidence, subject.label], axis=1)
    inside = np.where(member[:, None] & ~np.isnan(table).any(axis=1, keepdims=True), table, np.nan)

    def gap(weights: Weights) -> PerResample:
        return mean_over(weights, inside[:, 0] - inside[:, 1])

    confidence, accuracy = known_mean(ones(len(subject)), inside)[0].tolist()
    estimate = subject.estimate(gap, resamples=resamples, seed=seed)
    return Region(name, int(member.sum()), confidence, accuracy, estimate)


_WORDS = (
    "lamp seven under quickly blue because tractor of mild eleven paper shout the orbit never "
    "kettle and across velvet thin number for window bread slowly upon gravel between idea nine"
)
_SIGNS = "!?#%&*+-=/<>()[]{}~^"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_NEARLY_EMPTY = ("?", "a", "...", "ok", "-", "1", "hm", "the")
_UNANSWERABLE = (
    "Wat heb ik gisteren aan mijn buurman verteld, en waarom lachte hij?",
    "Welche Zahl steht auf dem Zettel, den ich in der Hand halte?",
    "Quel mot ai-je en tête en ce moment, et combien de lettres a-t-il ?",
    "¿De qué color era la puerta de la casa que no recuerdo?",
    "Quale dei miei due cassetti è chiuso, e dove si trova la chiave?",
    "Qual é o nome do gato da pessoa que passou há pouco?",
    "Ile kroków zrobiłem dziś rano, zanim zgubiłem klucz?",
    "Vad står det på den sista sidan i boken som jag inte har öppnat?",
)


Routes = Callable[[Sequence[str]], NDArray[np.float64]]
"""Gives the highest predicted probability over the targets, for each prompt."""


@final
@dataclass(frozen=True, eq=False)
class Probe:
    """The router's confidence on prompts that have no right answer.

    Attributes:
        highest: The highest predicted probability over the targets, by kind of prompt.
    """

    highest: Mapping[str, Float[NDArray[np.float64], " prompt"]]

    @property
    def all(self) -> Float[NDArray[np.float64], " prompt"]:
        """The values of all kinds together."""
        return np.concatenate(list(self.highest.values()))


def prompts(*, seed: int = 0, each: int = 8) -> dict[str, tuple[str, ...]]:
    """Prompts without a right answer, by kind."""
    random = np.random.default_rng(seed)

    def strings(alphabet: str, low: int, high: int) -> tuple[str, ...]:
        sizes = random.integers(low, high, each)
        return tuple("".join(random.choice(list(alphabet), size)) for size in sizes)

    words = [random.choice(_WORDS.split(), size) for size in random.integers(8, 40, each)]
    return {
        "random words": tuple(" ".join(line) for line in words),
        "random letters": strings(_LETTERS + " ", 20, 120),
        "signs and digits": strings(_SIGNS + "0123456789", 10, 60),
        "nearly empty": _NEARLY_EMPTY[:each],
        "unanswerable, other languages": _UNANSWERABLE[:each],
    }


def probe(highest: Routes, *, seed: int = 0) -> Probe:
    """Predict the probabilities of these prompts.

    Args:
        highest: Gives the highest probability of each prompt.
        seed: Random seed of the prompts.
    """
    prompts_by_kind = prompts(seed=seed)
    every = highest([prompt for kind in prompts_by_kind.values() for prompt in kind])
    ends = np.cumsum([len(kind) for kind in prompts_by_kind.values()])
    return Probe(dict(zip(prompts_by_kind, np.split(every, ends[:-1]), strict=True)))


def nonsense_finding(probe: Probe, subject: Subject) -> Finding:
    """The finding whether nonsense gets high probabilities."""
    usual = subject.trial.correctness.max(axis=1)
    middle = float(np.median(usual))
    above = float((probe.all > middle).mean())
    sign: Sign = "bad" if above > 0.5 else "good" if above <= 0.25 else "unclear"
    kinds = ", ".join(f"{kind} {percent(float(p.mean()))}" for kind, p in probe.highest.items())
    result = (
        f"on nonsense the most probable target gets {percent(float(probe.all.mean()))} on average, "
        f"on these queries {percent(float(usual.mean()))}; {percent(above)} of the nonsense gets "
        f"more than the median query ({kinds})"
    )
    numbers = {
        "mean_highest": float(probe.all.mean()),
        "mean_highest_of_the_queries": float(usual.mean()),
        "share_above_the_middle_query": above,
        "kinds": {kind: p.tolist() for kind, p in probe.highest.items()},
    }
    return Finding("nonsense", "Confidence on nonsense", sign, result, numbers)
