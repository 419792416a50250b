"""A user's own table: which column holds what, and how its scores become labels in [0, 1]."""

import math
import re
from dataclasses import dataclass, replace
from typing import Final, Literal, final

from prefill_router.errors import ConfigError, DataError
from prefill_router.importers import values
from prefill_router.short_repr import short_repr

_NUMBER = r"[+-]?(?:\d*+\.)?\d++"
_ENDS = re.compile(rf"\s*({_NUMBER})\s*[-:]\s*({_NUMBER})\s*", re.ASCII)


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class Scale:
    """How scores become labels; words such as yes and no are labels on every scale.

    Attributes:
        ends: The worst and the best score, which are mapped linearly to labels 0 and 1. The best
            may be the lower number, as with grades.
        threshold: The score from which an answer counts as right.

    Raises:
        ConfigError: Neither is given, or they aren't finite or contradict each other.
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
            raise ConfigError(
                f"the scale's worst and best score are both {self.ends[0]:g}; give different ones"
            )
        if least is not None and not 0 < self._share(least) <= 1:
            raise ConfigError(
                f"the threshold {least:g} must be better than the worst score, {self.ends[0]:g}, "
                f"and no better than the best, {self.ends[1]:g}"
            )

    @classmethod
    def parse(cls, ends: str | None, threshold: float | None) -> "Scale | None":
        """The scale from two options, `ends` written as `1-5` or `-1:1`; None if both are None.

        Raises:
            ConfigError: The options are invalid.
        """
        if ends is None and threshold is None:
            return None
        match = None if ends is None else _ENDS.fullmatch(ends)
        if ends is not None and match is None:
            raise ConfigError(
                f"the scale is {ends!r}; write its worst and best score, such as 1-5 or -1:1"
            )
        pair = None if match is None else (float(match[1]), float(match[2]))
        return cls(ends=pair, threshold=threshold)

    def label(self, value: object, name: str) -> float | None:
        """The label of a cell, None where missing.

        Raises:
            DataError: The cell isn't a score, or is outside the scale.
        """
        word = values.verdict(value)
        number = values.score(value, name)
        if word is not None or number is None:
            return word
        share = self._share(number)
        if self.ends is not None and not 0 <= share <= 1:
            low, high = sorted(self.ends)
            raise DataError(
                f"{name} is {values.shown_cell(value)}; a score is from {low:g} to {high:g}"
            )
        return share if self.threshold is None else float(share >= self._share(self.threshold))

    def _share(self, score: float) -> float:
        """A score mapped linearly from worst and best to 0 and 1; unchanged without ends."""
        if self.ends is None:
            return score
        worst, best = self.ends
        return (score - worst) / (best - worst)


def advice(scores: list[float]) -> str:
    """The options that would read scores of which some are outside [0, 1]."""
    low, high = min(scores), max(scores)
    if not math.isfinite(low) or not math.isfinite(high):
        return "give their meaning with --scale WORST-BEST or --threshold"
    join = ":" if low < 0 else "-"
    least = low + 0.75 * (high - low)
    if least == round(least) or high - low >= 3:
        least = math.ceil(least)
    return (
        f"scores go from {low:g} to {high:g}: give the worst and the best with "
        f"--scale {low:g}{join}{high:g} (the other way round where low is good), or from which "
        f"score on an answer is right, such as --threshold {least:g}"
    )


TARGET: Final = "{target}"


@final
@dataclass(frozen=True, kw_only=True)
class Columns:
    """Column names of a long table (a row per query and target) or a wide one (a row per query).

    None means the column with the usual name, if the table has one; a column that is named must
    exist. In a wide table the names of label, token and cost columns contain `{target}`, as in
    `{target}|total_cost`.

    Attributes:
        prompt: Text, or in JSON Lines and Parquet a list of {role, content}. Usually `prompt`.
        query: Ids; without them a query is identified by its prompt. Usually `query_id`.
        benchmark: Usually `benchmark`.
        domain: Usually `domain`.
        target: The target's name; long tables only. Usually `target`, else `model`.
        correct: The label. Usually `correct`; in wide tables the target's name itself.
        input_tokens: Usually `input_tokens`.
        output_tokens: Usually `output_tokens`.
        cost: US dollars. Usually `cost`.
        targets: The targets of a wide table; guessed if not given.
        scale: How scores become labels; they are labels if not given.
        repeats: `mean` if rows of the same query and target are runs, of which the mean is used;
            otherwise a row that contradicts an earlier one is malformed.
    """

    prompt: str | None = None
    query: str | None = None
    benchmark: str | None = None
    domain: str | None = None
    target: str | None = None
    correct: str | None = None
    input_tokens: str | None = None
    output_tokens: str | None = None
    cost: str | None = None
    targets: tuple[str, ...] = ()
    scale: Scale | None = None
    repeats: Literal["mean"] | None = None

    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [name for name, value in vars(self).items() if value]

    def of_target(self, name: str) -> tuple[str, str | None, str | None, str | None]:
        """A target's columns in a wide table: label, input tokens, output tokens, cost.

        Raises:
            ConfigError: A column was named without `{target}`.
        """
        for option in ("correct", "input_tokens", "output_tokens", "cost"):
            value = getattr(self, option)
            if value is not None and TARGET not in value:
                raise ConfigError(
                    f"the {option} column of a wide table is {value!r}; it must contain {TARGET}, "
                    f"as in '{TARGET}|{option}'"
                )
        others = (self.input_tokens, self.output_tokens, self.cost)
        inputs, outputs, cost = (None if c is None else c.replace(TARGET, name) for c in others)
        return (self.correct or TARGET).replace(TARGET, name), inputs, outputs, cost

    def target_of(self, column: str) -> str | None:
        """The target whose labels this column of a wide table holds; None where it can't be one."""
        before, _, after = (self.correct or TARGET).partition(TARGET)
        name = column.removeprefix(before).removesuffix(after)
        return name if name and (self.correct or TARGET).replace(TARGET, name) == column else None

    def with_cost(self, column: str) -> "Columns":
        """The same columns with a column of costs."""
        return replace(self, cost=column)
