"""The values of cells, and which column of a user's own table holds what.

None, an empty cell, NaN, and the words `null` and `nan` count as missing. `Scale` turns scores into
labels in [0, 1].
"""

import math
import re
from dataclasses import dataclass, replace
from typing import Final, Literal, final

from prefill_router.data import MOST_TOKENS, LabelMeaning, Message, Prompt
from prefill_router.errors import ConfigError, DataError, name_option
from prefill_router.short_repr import short_repr

LABELS = "a label is a number from 0 to 1, true or false, yes or no, pass or fail"
_DIGITS = re.compile(r"[+-]?(\d++(\.\d*+)?|\.\d++)([eE][+-]?\d++)?", re.ASCII)
_RIGHT = (
    *("true", "yes", "pass", "passed", "correct", "right", "good", "positive"),
    *("up", "thumbs up", "thumb up", "thumbs_up", "thumbsup", "upvote", "like", "liked", "👍"),
)
_WRONG = (
    *("false", "no", "fail", "failed", "incorrect", "wrong", "bad", "negative"),
    *("down", "thumbs down", "thumb down", "thumbs_down", "thumbsdown", "downvote", "dislike"),
    *("disliked", "👎"),
)
_WORDS = {**dict.fromkeys(_RIGHT, 1.0), **dict.fromkeys(_WRONG, 0.0)}
_RATING = re.compile(r"(\d++(?:\.\d++)?)\s*+(?:/\s*+\d++|out of\s++\d++|stars?|%)", re.ASCII)
_STARS = re.compile(r"([★⭐]{1,10})\ufe0f?[☆]{0,10}")
_MISSING = {"", "null", "nan", "none"}


def cell_text(value: object, name: str) -> str:
    """A text that can be encoded as UTF-8.

    Raises:
        DataError: The value isn't text, or can't be encoded.
    """
    if not isinstance(value, str):
        raise DataError(f"{name} is {_describe_kind(value)}; it must be text")
    try:
        if not value.isascii():
            value.encode()
    except UnicodeEncodeError:
        raise DataError(f"{name} isn't valid UTF-8; save the file as UTF-8") from None
    return value


def require_text(value: object, name: str) -> str:
    """A text that isn't empty.

    Raises:
        DataError: The value isn't text, or is empty.
    """
    result = cell_text(value, name)
    if not result or result.isspace():
        raise DataError(f"{name} is empty")
    return result


def label_text(value: object, name: str) -> str:
    """A text, empty where missing."""
    return "" if value is None else cell_text(value, name)


def identifier(value: object, name: str) -> str:
    """An id: a text, or a whole number.

    Raises:
        DataError: The value is missing or something else.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _format_digits(value, name)
    return require_text(value, name)


@final
class ScoreError(DataError):
    """A score outside its scale.

    Attributes:
        score: The score.
    """

    def __init__(self, message: str, *, score: float) -> None:
        super().__init__(message)
        self.score = score


def label(value: object, name: str) -> float | None:
    """A label in [0, 1], None where missing: a number, or a word such as yes.

    Raises:
        ScoreError: The value is a number outside [0, 1].
        DataError: The value is something else.
    """
    number = score(value, name)
    if number is not None and not 0 <= number <= 1:
        raise ScoreError(f"{name} is {show_cell(value)}; {LABELS}", score=number)
    return number


def score(value: object, name: str) -> float | None:
    """The score of an answer, on any scale; 1 or 0 for a word such as yes, or a boolean.

    `4/5`, `4 out of 5`, `4 stars` and `★★★★☆` are 4; `75 %` is 75.

    Raises:
        DataError: The value is neither a number nor such a word.
    """
    word = verdict(value)
    return _read_number(_read_rating(value), name, LABELS) if word is None else word


def _read_rating(value: object) -> object:
    """The number of a rating that is written in words or stars; other values unchanged."""
    if not isinstance(value, str):
        return value
    plain = value.strip().lower()
    if stars := _STARS.fullmatch(plain):
        return len(stars[1])
    number = _RATING.fullmatch(plain)
    return number[1] if number else value


def verdict(value: object) -> float | None:
    """1 for true, yes, pass and up; 0 for false, no, fail and down; None for anything else."""
    if isinstance(value, bool):
        return float(value)
    return _WORDS.get(value.strip().lower()) if isinstance(value, str) else None


def cell_amount(value: object, name: str, *, most: float = MOST_TOKENS) -> float | None:
    """A count of tokens, or an amount of money up to `most`, None where missing.

    Raises:
        DataError: The value isn't a number, or is negative, infinite or above `most`.
    """
    number = _read_number(value, name, "it must be a number")
    if number is not None and not 0 <= number < math.inf:
        raise DataError(f"{name} is {show_cell(value)}; it must be finite and not negative")
    if number is not None and number > most:
        raise DataError(
            f"{name} is {show_cell(value)}; more than {most:,.0f} is treated as a mistake"
        )
    return number


def cell_prompt(value: object, name: str) -> Prompt:
    """A prompt: a text, or a list of {role, content} texts.

    Raises:
        DataError: The value is neither, or empty.
    """
    if not isinstance(value, list):
        return require_text(value, name)
    turns = [turn for turn in value if isinstance(turn, dict)]
    if not turns or len(turns) != len(value):
        raise DataError(f"{name} is a list; it must hold one or more {{role, content}} messages")
    return tuple(
        Message(
            require_text(turn.get("role"), f"{name}: a role"),
            cell_text(turn.get("content"), f"{name}: a content"),
        )
        for turn in turns
    )


def _read_number(value: object, name: str, wanted: str) -> float | None:
    if isinstance(value, str):
        plain = value.strip().lower()
        if plain not in _MISSING and not _DIGITS.fullmatch(plain):
            raise DataError(f"{name} is {show_cell(value)}; {wanted}")
        value = None if plain in _MISSING else float(plain)
    if value is None:
        return None
    if isinstance(value, bool):
        raise DataError(f"{name} is {value}; {wanted}")
    if not isinstance(value, int | float):
        raise DataError(f"{name} is {_describe_kind(value)}; {wanted}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    return None if math.isnan(number) else number


def _format_digits(value: int, name: str) -> str:
    if abs(value) >= 10**30:
        raise DataError(f"{name} is a number of more than 30 digits; write such ids as text")
    return str(value)


def _describe_kind(value: object) -> str:
    if value is None:
        return "missing"
    return f"of the type {type(value).__name__}"


def show_cell(value: object) -> str:
    """A value for a message, truncated."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a huge number"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


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
            raise ConfigError("the scale is empty; give its worst and best score, or a threshold")
        if not all(map(math.isfinite, (*(self.ends or ()), 0.0 if least is None else least))):
            raise ConfigError(f"the scale {self} isn't finite; give finite numbers")
        if self.ends is None:
            return
        if self.ends[0] == self.ends[1]:
            raise ConfigError(
                f"the scale's worst and best score are both {self.ends[0]:g}; give different ones"
            )
        if least is not None and not 0 < self._scale_score(least) <= 1:
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
        word = verdict(value)
        number = score(value, name)
        if word is not None or number is None:
            return word
        share = self._scale_score(number)
        if self.ends is not None and not 0 <= share <= 1:
            low, high = sorted(self.ends)
            raise DataError(f"{name} is {show_cell(value)}; a score is from {low:g} to {high:g}")
        return (
            share if self.threshold is None else float(share >= self._scale_score(self.threshold))
        )

    @property
    def meaning(self) -> LabelMeaning:
        """What labels of this scale mean."""
        if self.threshold is not None:
            return LabelMeaning(threshold=self.threshold)
        worst, best = self.ends or (0.0, 1.0)
        return LabelMeaning(kind="score", worst=worst, best=best)

    def _scale_score(self, score: float) -> float:
        """A score mapped linearly from worst and best to 0 and 1; unchanged without ends."""
        if self.ends is None:
            return score
        worst, best = self.ends
        return (score - worst) / (best - worst)


def advice(scores: list[float]) -> str:
    """The options that would read scores of which some are outside [0, 1]."""
    low, high = min(scores), max(scores)
    if not math.isfinite(low) or not math.isfinite(high):
        option = name_option(" or --threshold", "")
        return f"give their meaning with {name_scale('WORST-BEST')}{option}"
    join = ":" if low < 0 else "-"
    least = low + 0.75 * (high - low)
    if least == round(least) or high - low >= 3:
        least = math.ceil(least)
    threshold = name_option(
        f"--threshold {least:g}", f"columns=Columns(scale=Scale(threshold={least:g}))"
    )
    return (
        f"scores go from {low:g} to {high:g}: give the worst and the best with "
        f"{name_scale(f'{low:g}{join}{high:g}', f'{low:g}, {high:g}')} (the other way round where "
        f"low is good), or from which score on an answer is right, such as {threshold}"
    )


def name_scale(ends: str, python: str = "WORST, BEST") -> str:
    """The option that gives the ends of a scale, such as 1-5, and in Python 1, 5."""
    return name_option(f"--scale {ends}", f"columns=Columns(scale=Scale(ends=({python})))")


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
        effort: The reasoning effort, of `EFFORTS` or a budget of tokens; long tables only. A model
            `m` with the effort `low` is the target `m:low`. Usually `reasoning_effort`.
        correct: The label. Usually `correct`; in wide tables the target's name itself.
        input_tokens: Usually `input_tokens`.
        output_tokens: Usually `output_tokens`.
        cost: US dollars. Usually `cost`.
        targets: The targets of a wide table; guessed if not given.
        scale: How scores become labels; they are labels if not given.
        repeats: `mean` if rows of the same query and target are runs, of which the mean is used.
            Otherwise a row that contradicts an earlier one is malformed.
    """

    prompt: str | None = None
    query: str | None = None
    benchmark: str | None = None
    domain: str | None = None
    target: str | None = None
    effort: str | None = None
    correct: str | None = None
    input_tokens: str | None = None
    output_tokens: str | None = None
    cost: str | None = None
    targets: tuple[str, ...] = ()
    scale: Scale | None = None
    repeats: Literal["mean"] | None = None

    def option_names(self) -> list[str]:
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
