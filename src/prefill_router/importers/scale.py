"""From the scores of a user's own table to labels in [0, 1]."""

import math
import re
from dataclasses import dataclass
from typing import final

from prefill_router.brief import brief
from prefill_router.errors import ConfigError, DataError
from prefill_router.importers import values

_NUMBER = r"[+-]?(?:\d*+\.)?\d++"
_ENDS = re.compile(rf"\s*({_NUMBER})\s*[-:]\s*({_NUMBER})\s*", re.ASCII)


@brief
@final
@dataclass(frozen=True, kw_only=True)
class Scale:
    """How scores become labels; words such as yes and no are labels on every scale.

    Attributes:
        ends: The worst and the best score; between them a label grows evenly from 0 to 1. Where
            the best is the lower number, as with grades, so be it.
        threshold: An answer is right from this score on, and else wrong.

    Raises:
        ConfigError: Neither is given, they aren't finite, or contradict each other.
    """

    ends: tuple[float, float] | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        least = self.threshold
        if self.ends is None and least is None:
            raise ConfigError("a scale has neither ends nor a threshold; give one of them")
        if not all(map(math.isfinite, (*(self.ends or ()), 0.0 if least is None else least))):
            raise ConfigError(f"the scale {self} isn't finite; give finite numbers")
        if self.ends is None:
            return
        if self.ends[0] == self.ends[1]:
            raise ConfigError(f"a scale from {self.ends[0]:g} to itself; give its worst and best")
        if least is not None and not 0 < self._share(least) <= 1:
            raise ConfigError(
                f"the threshold {least:g} must lie above the worst of the scale, {self.ends[0]:g}, "
                f"up to the best, {self.ends[1]:g}"
            )

    @classmethod
    def parse(cls, ends: str | None, threshold: float | None) -> "Scale | None":
        """The scale of two options, the first as `1-5` or `-1:1`; None of neither.

        Raises:
            ConfigError: They make no sense.
        """
        if ends is None and threshold is None:
            return None
        match = None if ends is None else _ENDS.fullmatch(ends)
        if ends is not None and match is None:
            raise ConfigError(
                f"the scale is {ends!r}; write its worst and its best score, such as 1-5 or -1:1"
            )
        pair = None if match is None else (float(match[1]), float(match[2]))
        return cls(ends=pair, threshold=threshold)

    def label(self, value: object, name: str) -> float | None:
        """The label of a cell, None where missing.

        Raises:
            DataError: It is no score, or lies outside the scale.
        """
        word = values.verdict(value)
        number = values.score(value, name)
        if word is not None or number is None:
            return word
        share = self._share(number)
        if self.ends is not None and not 0 <= share <= 1:
            low, high = sorted(self.ends)
            raise DataError(f"{name} is {values.show(value)}; a score is from {low:g} to {high:g}")
        return share if self.threshold is None else float(share >= self._share(self.threshold))

    def _share(self, score: float) -> float:
        """How far a score is on the way from the worst to the best; itself without ends."""
        if self.ends is None:
            return score
        worst, best = self.ends
        return (score - worst) / (best - worst)


def advice(scores: list[float]) -> str:
    """Which options would read scores of which some lie outside [0, 1]."""
    low, high = min(scores), max(scores)
    if not math.isfinite(low) or not math.isfinite(high):
        return "say what they mean with --scale WORST-BEST or --threshold"
    join = ":" if low < 0 else "-"
    least = low + 0.75 * (high - low)
    if least == round(least) or high - low >= 3:
        least = math.ceil(least)
    return (
        f"scores go from {low:g} to {high:g}: say the worst and the best with "
        f"--scale {low:g}{join}{high:g} (the other way round where low is good), or from which "
        f"score on an answer is right, such as --threshold {least:g}"
    )
