"""Notices when a target or the traffic changes, and what follows from it.

Quality: each label of a target's answers is compared with the probability that the router
predicted, and each answer to an *anchor*, a question that is asked again at intervals, with the
target's earlier grades on it. Price: what the provider billed against the list price. Mix: each
request's predictions against those of earlier requests. Quality and mix are tested by betting
(`statistics.ChangeDetector`), so that however long one watches, false alarms stay as rare as asked.

What follows from changes is here, too: a version that leaves the targets that got worse and has the
present prices, and which labels still count.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field

from prefill_router.errors import ConfigError
from prefill_router.fitting import remove_target
from prefill_router.options import NOT_NEGATIVE, SHARE_BETWEEN, Count, check_options
from prefill_router.policy import OperatingPoints
from prefill_router.router import Router, VersionRegistry, VersionState, read_light
from prefill_router.statistics import ChangeDetector
from prefill_router.targets import Pool
from prefill_router_gateway import Receipt
from prefill_router_gateway.receipts import Feedback, LabelledSample, RecordedChange

Values = Float[NDArray[np.float64], " observation"]
_SURE = 0.98
"""No answer is expected with more certainty, nor with less than the rest."""
_PRICE_OFF, _PRICE_RUN = 0.1, 5
"""The relative deviation of a bill that counts, and how many in a row are a change."""


@final
@dataclass(frozen=True, kw_only=True)
class ChangeSettings:
    """How sure a change must be before it is told.

    Attributes:
        false_alarms: The probability of any false alarm of one kind, within `horizon`.
        horizon: The number of observations, over all targets, for which that holds.
        tolerance: The shortfall of the mean, in probability, that isn't a change.
        reference: The number of first labels by which predictions that are too high are corrected.

    Raises:
        ConfigError: A number is out of range.
    """

    false_alarms: Annotated[float, SHARE_BETWEEN] = 0.05
    horizon: Count = 10_000
    tolerance: Annotated[float, Field(ge=0, lt=0.5)] = 0.05
    reference: Annotated[int, NOT_NEGATIVE] = 100

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def threshold(self) -> float:
        """The logarithm of the detector's value that is an alarm.

        Within `horizon` observations without a change it is reached with a probability of at most
        `false_alarms`.
        """
        return math.log(self.horizon / self.false_alarms)


@final
@dataclass(frozen=True, kw_only=True)
class TargetChange:
    """A change that was noticed.

    Attributes:
        kind: What changed.
        target: The target; None for the mix of traffic.
        seen: The position of the observation that made it sure.
        since: The position from which on it probably holds.
        evidence: The numbers that it rests on.
    """

    kind: Literal["quality", "price", "mix"]
    target: str | None
    seen: int
    since: int
    evidence: Mapping[str, Any] = field(hash=False)


@final
class QualityWatch:
    """Watches whether a target's answers become worse than expected, label by label.

    Args:
        target: The target.
        settings: How sure a change must be.

    Attributes:
        change: The first change; None while there isn't enough evidence for one.
        suspicion: The evidence now, as a share of what is needed. Where it is well above 0, more
            labels are worth their cost, and asking for them makes no alarm less valid.
    """

    def __init__(self, target: str, settings: ChangeSettings | None = None) -> None:
        self.change: TargetChange | None = None
        self.suspicion = 0.0
        self._target, self._settings = target, settings or ChangeSettings()
        self._detector = ChangeDetector()
        self._overrated = 0.0
        self._seen: list[tuple[float, float, float]] = []  # score, expected, shortfall

    def add(self, score: float, expected: float, *, error: float = 0.0) -> None:
        """Take the next label.

        Args:
            score: The label, in [0, 1].
            expected: The probability of a correct answer that was predicted.
            error: The probability that the label is wrong.
        """
        settings = self._settings
        told = error + (1 - 2 * error) * expected
        least = _certain(_certain(told) + self._overrated - settings.tolerance)
        self._seen.append((score, told, least - score))
        evidence = self._detector.add(least - score, worst=1 - least)
        self.suspicion = max(0.0, evidence / settings.threshold)
        if len(self._seen) == settings.reference:
            self._overrated = _overrated([one[0] - one[1] for one in self._seen])
        if self.change is None and evidence >= settings.threshold:
            self.change = self._told()

    def _told(self) -> TargetChange:
        backwards = np.cumsum([shortfall for _, _, shortfall in reversed(self._seen)])
        seen = len(self._seen) - 1
        since = seen - int(backwards.argmax())
        scores, expected, _ = np.mean(self._seen[since:], axis=0).tolist()
        evidence = {"labels": seen - since + 1, "expected": expected, "observed": scores}
        return TargetChange(
            kind="quality", target=self._target, seen=seen, since=since, evidence=evidence
        )


def price_change(target: str, billed: Values, listed: Values) -> TargetChange | None:
    """Whether a provider bills a target at other prices than the list has.

    Args:
        target: The target.
        billed: US dollars that the provider reported for each answer, in order of time.
        listed: The same by list prices.
    """
    known = np.nonzero((listed > 0) & np.isfinite(billed))[0]
    ratios = billed[known] / listed[known]
    for sign in (1, -1):
        off = sign * (ratios - 1) > _PRICE_OFF
        total = np.cumsum(np.concatenate([[0], off]))
        run = np.flatnonzero(total[_PRICE_RUN:] - total[:-_PRICE_RUN] == _PRICE_RUN)
        if len(run):
            part = slice(run[0], run[0] + _PRICE_RUN)
            return TargetChange(
                kind="price",
                target=target,
                seen=int(known[part][-1]),
                since=int(known[part][0]),
                evidence={"answers": _PRICE_RUN, "times the list": float(np.median(ratios[part]))},
            )
    return None


def mix_change(
    reference: Float[NDArray[np.float64], "request summary"],
    seen: Float[NDArray[np.float64], "later summary"],
    *,
    names: tuple[str, ...],
) -> TargetChange | None:
    """Whether requests differ from earlier ones.

    Args:
        reference: Numbers that describe earlier requests, for example the predicted probabilities.
        seen: The same of later requests, in order of time.
        names: What each number is.

    Returns:
        The first change; None where there is none.
    """
    settings = ChangeSettings()
    threshold = settings.threshold + math.log(2 * len(names))  # each number, in both directions
    half = 0.5 - settings.tolerance
    found = []
    for column, name in enumerate(names):
        ranks = _ranks(reference[:, column], seen[:, column])
        for direction, values in (("lower", ranks), ("higher", 1 - ranks)):
            alarm = _alarm(values, half, threshold)
            if alarm is not None:
                part = slice(alarm[1], alarm[0] + 1)
                told = {"what": name, "direction": direction, "rank": float(ranks[part].mean())}
                found.append((*alarm, told))
    if not found:
        return None
    at, since, told = min(found, key=lambda one: one[0])
    return TargetChange(kind="mix", target=None, seen=at, since=since, evidence=told)


def _ranks(reference: Float[NDArray[np.float64], " request"], seen: Values) -> Values:
    """The share of the reference below each value; ties count half."""
    held = np.sort(reference)
    below = np.searchsorted(held, seen, side="left") + np.searchsorted(held, seen, side="right")
    found: Values = below / (2 * max(1, len(held)))
    return found


def _certain(probability: float) -> float:
    return min(max(probability, 1 - _SURE), _SURE)


def _overrated(off: Sequence[float]) -> float:
    """How far the first labels fall short at most; 0 where that may be chance."""
    if len(off) < 2:
        return 0.0
    mean, error = float(np.mean(off)), float(np.std(off, ddof=1)) / math.sqrt(len(off))
    return mean - error if mean + error < 0 else 0.0


def _alarm(ranks: Values, half: float, threshold: float) -> tuple[int, int] | None:
    """The position where ranks are surely too low, and where that began."""
    detector = ChangeDetector()
    for seen, rank in enumerate(ranks.tolist()):
        if detector.add(half - rank, worst=1 - half) >= threshold:
            backwards = np.cumsum(half - ranks[seen::-1])
            return seen, seen - int(backwards.argmax())
    return None


def follow_changes(
    registry: VersionRegistry,
    changes: Sequence[RecordedChange],
    pool: Pool,
    *,
    charged: Sequence[str] = (),
    day: str | None = None,
) -> str | None:
    """Let a version serve that leaves the targets that got worse, and has the present prices.

    A target is left once for each change, so that an operator may take the step back.

    Args:
        registry: The versions.
        changes: All changes so far.
        pool: The targets at the prices that their providers charge.
        charged: Those of which these aren't the list prices.
        day: The day of the prices, ISO 8601.

    Returns:
        Its name; None where the version that serves is as it should be, or none serves.
    """
    state = registry.state()
    if state.current is None:
        return None
    version, place = state[state.current], registry.router(state.current)
    running = read_light(place).pool
    known = {target.name: target for target in pool if target.has_price}
    targets = tuple(t.priced_as(known[t.name]) if t.name in known else t for t in running)
    moved = {new.name for old, new in zip(running, targets, strict=True) if old != new}
    worse = _worse(state, changes, len(pool))
    left = [one for one in worse if one.target in running.names]
    if not moved and not left:
        return None
    router = Router.load(place)
    points = router.record.chosen
    if moved:
        router = router.with_pool(replace(running, targets=targets, prices_date=day))
    for one in left:
        with suppress(ConfigError):  # a router needs two targets
            router = remove_target(router, one.target)
    left = [one for one in left if one.target not in router.pool.names]
    if not moved and not left:
        return None
    if left and points is not None:
        router = _at_its_lam(router, points)
    prices = {one.target: one for one in changes if one.kind == "price" and one.target in moved}
    answered = [*left, *prices.values()]
    name = registry.add(
        router,
        {
            **version.model_dump(include={"data", "labels", "traffic", "changes"}),
            "charged": tuple(name for name in charged if name in router.pool.names),
            "notes": tuple(map(change_words, answered)),
        },
    )
    told = {one.id: {"since": one.since, **one.evidence} for one in answered}
    why = "; ".join(map(change_words, answered))
    registry.promote(name, evidence={"why": why, "changes": told})
    return name


def _at_its_lam(router: Router, points: OperatingPoints) -> Router:
    """The router with the lam that it had before targets left."""
    names, reference = router.pool.names, router.reference
    if points.best not in names:
        if reference is None:
            return router
        points = replace(points, best=names[int(np.nanargmax(reference.accuracy))])
    record = router.record.model_copy(update={"chosen": replace(points, thrifty=None)})
    return replace(router, record=record)


def _worse(
    state: VersionState, changes: Iterable[RecordedChange], targets: int
) -> list[RecordedChange]:
    """The changes for the worse that the version that serves doesn't know, and no step answered.

    Empty where more than half of the targets seem worse: then the judge is probably another.
    """
    told = {one for step in state.steps for one in step.evidence.get("changes", ())}
    known = () if state.current is None else state[state.current].changes
    worse = [one for one in changes if one.evidence.get("direction") == "worse"]
    new = [one for one in worse if one.id not in known]
    if 2 * len({one.target for one in new}) > targets:
        return []
    return [one for one in new if one.id not in told]


def follows_change(state: VersionState, version: str) -> bool:
    """Whether a version serves because of a change, and not because of labels."""
    return any("changes" in step.evidence for step in state.steps if step.version == version)


def fit_is_due(state: VersionState, changes: Iterable[RecordedChange]) -> bool:
    """Whether targets or traffic changed since any version was fitted."""
    known = {one for version in state.versions for one in version.changes}
    return any(one.kind != "price" and one.id not in known for one in changes)


def current_samples(
    samples: Mapping[str, LabelledSample], since: Mapping[str, float]
) -> dict[str, LabelledSample]:
    """Samples without the labels of answers that a target gave before it was another.

    Args:
        samples: The samples, by decision.
        since: By target, the time from which on its answers count, in seconds since 1970.
    """
    return {name: _current(one, since) for name, one in samples.items()}


def _current(sample: LabelledSample, since: Mapping[str, float]) -> LabelledSample:
    questions, answers = sample.questions, sample.answers
    if questions is None:
        return sample
    given = {name: answers[name].at if name in answers else sample.sample.at for name in since}
    old = [name for name in since if given[name] < since[name]]
    kept = [name for name in questions.drawn if name not in old]
    chances = {**questions.propensity, **dict.fromkeys(old, 0.0)}
    return replace(sample, questions=replace(questions, drawn=kept, propensity=chances))


def current_scores(
    scored: Iterable[tuple[Receipt, list[Feedback]]], since: Mapping[str, float]
) -> Iterator[tuple[Receipt, list[Feedback]]]:
    """Receipts without the feedback on such answers; arguments as in `current_samples`."""
    for receipt, scores in scored:
        start = since.get(receipt.outcome.target or "", -math.inf)
        yield receipt, scores if receipt.at >= start else []


def change_words(change: RecordedChange) -> str:
    """A change and its evidence, in words."""
    told, name = change.evidence, change.target
    when = datetime.fromtimestamp(change.since, UTC).isoformat(timespec="seconds")
    if change.kind == "quality":
        return (
            f"{name} is {told['direction']} since {when}: {told['observed']:.0%} of "
            f"{told['labels']:,} answers were right, and {told['expected']:.0%} were expected"
        )
    if change.kind == "mix":
        what = f"predictions for {told['what']} are {told['direction']}"
        return f"the mix of requests is another since {when}: {what}"
    if "answers" not in told:
        return f"{name} has other list prices since {when}"
    return f"{name} costs {told['times the list']:.3g} times its list price since {when}"
