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
    """How sure a change must be before it is reported.

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
        alarm: The position of the observation that made it sure.
        since: The position from which on it probably holds.
        evidence: The numbers that it rests on.
    """

    kind: Literal["quality", "price", "mix"]
    target: str | None
    alarm: int
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
        self._excess = 0.0
        self._labels: list[tuple[float, float, float]] = []  # score, expected, shortfall

    def add(self, score: float, expected: float, *, error: float = 0.0) -> None:
        """Take the next label.

        Args:
            score: The label, in [0, 1].
            expected: The probability of a correct answer that was predicted.
            error: The probability that the label is wrong.
        """
        settings = self._settings
        predicted = error + (1 - 2 * error) * expected
        least = _clip_certainty(_clip_certainty(predicted) + self._excess - settings.tolerance)
        self._labels.append((score, predicted, least - score))
        evidence = self._detector.add(least - score, worst=1 - least)
        self.suspicion = max(0.0, evidence / settings.threshold)
        if len(self._labels) == settings.reference:
            self._excess = _estimate_excess([label[0] - label[1] for label in self._labels])
        if self.change is None and evidence >= settings.threshold:
            self.change = self._describe_change()

    def _describe_change(self) -> TargetChange:
        backwards = np.cumsum([shortfall for _, _, shortfall in reversed(self._labels)])
        alarm = len(self._labels) - 1
        since = alarm - int(backwards.argmax())
        scores, expected, _ = np.mean(self._labels[since:], axis=0).tolist()
        evidence = {"labels": alarm - since + 1, "expected": expected, "observed": scores}
        return TargetChange(
            kind="quality", target=self._target, alarm=alarm, since=since, evidence=evidence
        )


def price_change(target: str, billed: Values, listed: Values) -> TargetChange | None:
    """Whether a provider bills a target at other prices than the list has.

    Args:
        target: The target.
        billed: US dollars that the provider reported for each answer, in order of time.
        listed: The same by list prices.
    """
    rows = np.nonzero((listed > 0) & np.isfinite(billed))[0]
    ratios = billed[rows] / listed[rows]
    for sign in (1, -1):
        off = sign * (ratios - 1) > _PRICE_OFF
        total = np.cumsum(np.concatenate([[0], off]))
        run = np.flatnonzero(total[_PRICE_RUN:] - total[:-_PRICE_RUN] == _PRICE_RUN)
        if len(run):
            part = slice(run[0], run[0] + _PRICE_RUN)
            return TargetChange(
                kind="price",
                target=target,
                alarm=int(rows[part][-1]),
                since=int(rows[part][0]),
                evidence={"answers": _PRICE_RUN, "times the list": float(np.median(ratios[part]))},
            )
    return None


def mix_change(
    reference: Float[NDArray[np.float64], "request summary"],
    later: Float[NDArray[np.float64], "later summary"],
    *,
    names: tuple[str, ...],
) -> TargetChange | None:
    """Whether requests differ from earlier ones.

    Args:
        reference: Numbers that describe earlier requests, for example the predicted probabilities.
        later: The same of later requests, in order of time.
        names: What each number is.

    Returns:
        The first change; None where there is none.
    """
    settings = ChangeSettings()
    threshold = settings.threshold + math.log(2 * len(names))  # each number, in both directions
    half = 0.5 - settings.tolerance
    alarms = []
    for column, name in enumerate(names):
        ranks = _rank_values(reference[:, column], later[:, column])
        for direction, values in (("lower", ranks), ("higher", 1 - ranks)):
            alarm = _find_alarm(values, half, threshold)
            if alarm is not None:
                part = slice(alarm[1], alarm[0] + 1)
                evidence = {"what": name, "direction": direction, "rank": float(ranks[part].mean())}
                alarms.append((*alarm, evidence))
    if not alarms:
        return None
    at, since, evidence = min(alarms, key=lambda alarm: alarm[0])
    return TargetChange(kind="mix", target=None, alarm=at, since=since, evidence=evidence)


def _rank_values(reference: Float[NDArray[np.float64], " request"], values: Values) -> Values:
    """The share of the reference below each value; ties count half."""
    ordered = np.sort(reference)
    below = np.searchsorted(ordered, values, side="left") + np.searchsorted(
        ordered, values, side="right"
    )
    shares: Values = below / (2 * max(1, len(ordered)))
    return shares


def _clip_certainty(probability: float) -> float:
    return min(max(probability, 1 - _SURE), _SURE)


def _estimate_excess(off: Sequence[float]) -> float:
    """How far the first labels fall short at most; 0 where that may be chance."""
    if len(off) < 2:
        return 0.0
    mean, error = float(np.mean(off)), float(np.std(off, ddof=1)) / math.sqrt(len(off))
    return mean - error if mean + error < 0 else 0.0


def _find_alarm(ranks: Values, half: float, threshold: float) -> tuple[int, int] | None:
    """The position where ranks are surely too low, and where that began."""
    detector = ChangeDetector()
    for position, rank in enumerate(ranks.tolist()):
        if detector.add(half - rank, worst=1 - half) >= threshold:
            backwards = np.cumsum(half - ranks[position::-1])
            return position, position - int(backwards.argmax())
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
    priced = {target.name: target for target in pool if target.has_price}
    targets = tuple(t.with_prices_of(priced[t.name]) if t.name in priced else t for t in running)
    repriced = {new.name for old, new in zip(running, targets, strict=True) if old != new}
    worse = _find_worse(state, changes, len(pool))
    avoidable = [change for change in worse if change.target in running.names]
    if not repriced and not avoidable:
        return None
    router = Router.load(place)
    if repriced:
        router = router.with_pool(replace(running, targets=targets, prices_date=day))
    router = _leave_targets(router, [change.target for change in avoidable])
    avoidable = [change for change in avoidable if change.target not in router.pool.names]
    if not repriced and not avoidable:
        return None
    prices = {
        change.target: change
        for change in changes
        if change.kind == "price" and change.target in repriced
    }
    answered = [*avoidable, *prices.values()]
    name = registry.add(
        router,
        {
            **version.model_dump(include={"data", "labels", "traffic", "changes"}),
            "charged": tuple(name for name in charged if name in router.pool.names),
            "notes": tuple(map(change_words, answered)),
        },
    )
    evidence = {change.id: {"since": change.since, **change.evidence} for change in answered}
    why = "; ".join(map(change_words, answered))
    registry.promote(name, evidence={"why": why, "changes": evidence})
    return name


def _leave_targets(router: Router, targets: Sequence[str]) -> Router:
    """The router without these targets, as far as two stay, at the lam that it had."""
    points, count = router.record.chosen, len(router.pool.names)
    for target in targets:
        with suppress(ConfigError):  # a router needs two targets
            router = remove_target(router, target)
    if points is None or len(router.pool.names) == count:
        return router
    return _keep_lam(router, points)


def _keep_lam(router: Router, points: OperatingPoints) -> Router:
    """The router with the lam that it had before targets left."""
    names, reference = router.pool.names, router.reference
    if points.best not in names:
        if reference is None:
            return router
        points = replace(points, best=names[int(np.nanargmax(reference.accuracy))])
    record = router.record.model_copy(update={"chosen": replace(points, thrifty=None)})
    return replace(router, record=record)


def _find_worse(
    state: VersionState, changes: Iterable[RecordedChange], targets: int
) -> list[RecordedChange]:
    """The changes for the worse that the version that serves doesn't know, and no step answered.

    Empty where more than half of the targets seem worse: then the judge is probably another.
    """
    answered = {change for step in state.steps for change in step.evidence.get("changes", ())}
    recorded = () if state.current is None else state[state.current].changes
    worse = [change for change in changes if change.evidence.get("direction") == "worse"]
    new = [change for change in worse if change.id not in recorded]
    if 2 * len({change.target for change in new}) > targets:
        return []
    return [change for change in new if change.id not in answered]


def follows_change(state: VersionState, version: str) -> bool:
    """Whether a version serves because of a change, and not because of labels."""
    return any("changes" in step.evidence for step in state.steps if step.version == version)


def fit_is_due(state: VersionState, changes: Iterable[RecordedChange]) -> bool:
    """Whether targets or traffic changed since any version was fitted."""
    recorded = {change for version in state.versions for change in version.changes}
    return any(change.kind != "price" and change.id not in recorded for change in changes)


def current_samples(
    samples: Mapping[str, LabelledSample], since: Mapping[str, float]
) -> dict[str, LabelledSample]:
    """Samples without the labels of answers that a target gave before it was another.

    Args:
        samples: The samples, by decision.
        since: By target, the time from which on its answers count, in seconds since 1970.
    """
    return {name: _drop_old_answers(sample, since) for name, sample in samples.items()}


def _drop_old_answers(sample: LabelledSample, since: Mapping[str, float]) -> LabelledSample:
    questions, answers = sample.questions, sample.answers
    if questions is None:
        return sample
    answered_at = {
        name: answers[name].at if name in answers else sample.sample.at for name in since
    }
    old = [name for name in since if answered_at[name] < since[name]]
    names = [name for name in questions.drawn if name not in old]
    chances = {**questions.propensity, **dict.fromkeys(old, 0.0)}
    return replace(sample, questions=replace(questions, drawn=names, propensity=chances))


def current_scores(
    scored: Iterable[tuple[Receipt, list[Feedback]]], since: Mapping[str, float]
) -> Iterator[tuple[Receipt, list[Feedback]]]:
    """Receipts without the feedback on such answers; arguments as in `current_samples`."""
    for receipt, scores in scored:
        start = since.get(receipt.outcome.target or "", -math.inf)
        yield receipt, scores if receipt.at >= start else []


def change_words(change: RecordedChange) -> str:
    """A change and its evidence, in words."""
    evidence, name = change.evidence, change.target
    when = datetime.fromtimestamp(change.since, UTC).isoformat(timespec="seconds")
    if change.kind == "quality":
        return (
            f"{name} is {evidence['direction']} since {when}: {evidence['observed']:.0%} of "
            f"{evidence['labels']:,} answers were right, and {evidence['expected']:.0%} were "
            "expected"
        )
    if change.kind == "mix":
        shift = f"predictions for {evidence['what']} are {evidence['direction']}"
        return f"the mix of requests is another since {when}: {shift}"
    if "answers" not in evidence:
        return f"{name} has other list prices since {when}"
    return f"{name} costs {evidence['times the list']:.3g} times its list price since {when}"
