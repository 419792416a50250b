"""Notices when a target isn't what it was, or traffic isn't: in quality, in price, in its mix.

Quality: each label of a target's answers is compared with the probability that the router
predicted, and each answer to an *anchor*, a question that is asked again at intervals, with the
target's earlier grades on it. Price: what the provider billed against the list price. Mix: each
request's predictions against those of earlier requests. Quality and mix are tested by betting
(`betting.ChangeDetector`), so that however long one watches, false alarms stay as rare as asked.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.betting import ChangeDetector
from prefill_router.data import CUT
from prefill_router.errors import ConfigError

Values = Float[NDArray[np.float64], " observation"]
_SURE = 0.98
"""No answer is expected with more certainty, nor with less than the rest."""
_STAY = 9.0, 1.0
"""Grades that were the same again and that weren't, assumed before any is known."""
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

    false_alarms: float = 0.05
    horizon: int = 10_000
    tolerance: float = 0.05
    reference: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.false_alarms < 1 or not 0 <= self.tolerance < 0.5:
            raise ConfigError(
                f"false_alarms is {self.false_alarms:g} and tolerance {self.tolerance:g}; they "
                "must be between 0 and 1, and from 0 to below 0.5"
            )
        if self.horizon < 1 or self.reference < 0:
            raise ConfigError(
                f"horizon is {self.horizon} and reference {self.reference}; they must be at least "
                "1 and 0"
            )

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


@final
class AnchorExpectation:
    """The expected next grade of an anchor, from how often a grade was the same again.

    Answers to the same question repeat themselves, so the last grade says most; how often right
    ones stay right, and wrong ones wrong, is learned from all anchors of the target. An anchor that
    was just seen to change tells little when it is asked again, and another tells more.
    """

    def __init__(self) -> None:
        self._right, self._wrong = list(_STAY), list(_STAY)  # the same again, and not

    def after(self, last: float) -> float:
        """The expected grade after this one."""
        (same, other), is_right = (self._right, True) if last >= CUT else (self._wrong, False)
        return (same if is_right else other) / (same + other)

    def add(self, last: float, following: float) -> None:
        """Learn from two grades in a row."""
        counts = self._right if last >= CUT else self._wrong
        counts[int((last >= CUT) != (following >= CUT))] += 1


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
