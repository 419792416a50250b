"""Errors in the command line itself, found before the files that it names are read.

One table has the range of every option's number, so that all commands refuse a number with the same
error. Options of earlier versions are refused with the one that replaced them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final

from prefill_router.errors import ConfigError
from prefill_router.lazy_imports import installed

Choice = TypeVar("Choice", bound=str)


class UsageError(ConfigError):
    """The command line itself is wrong; the exit code is 2."""


@contextmanager
def reading_words() -> Iterator[None]:
    """Turn errors into usage errors: within it nothing but the command line has been read."""
    try:
        yield
    except ConfigError as error:
        raise UsageError(*error.told) from None


def check_suffix(option: str, place: Path, known: Sequence[str]) -> None:
    """Check that a file's suffix fits its format.

    Raises:
        UsageError: It doesn't.
    """
    if place.suffix.lower() not in known:
        raise UsageError(f"{option} is {place}; name a file such as {place.stem}{known[0]}")


def one_of(option: str, text: str, choices: Sequence[Choice]) -> Choice:
    """The choice of this name.

    Raises:
        UsageError: There is none.
    """
    for choice in choices:
        if choice == text:
            return choice
    raise UsageError(f"{option} is {text!r}; it must be one of {', '.join(choices)}")


@final
@dataclass(frozen=True)
class NumberRange:
    """The numbers that an option takes.

    Attributes:
        least: The lower bound.
        most: The upper bound; None for none.
        above: Whether `least` itself is excluded.
        below: Whether `most` itself is excluded.
    """

    least: float = 0
    most: float | None = None
    above: bool = False
    below: bool = False

    def __contains__(self, number: float) -> bool:
        if not math.isfinite(number):
            return False
        low = number > self.least if self.above else number >= self.least
        if self.most is None:
            return low
        return low and (number < self.most if self.below else number <= self.most)

    def __str__(self) -> str:
        low = f"above {self.least:g}" if self.above else f"{self.least:g} or more"
        if self.most is None:
            return low
        if self.above or self.below:
            return f"{low} and {'below' if self.below else 'at most'} {self.most:g}"
        return f"from {self.least:g} to {self.most:g}"


_ANY, _COUNT, _POSITIVE = NumberRange(), NumberRange(1), NumberRange(above=True)
NUMBER_RANGES: dict[str, NumberRange] = {
    **dict.fromkeys(("--seed", "--resamples", "--assume-output-tokens", "--margin"), _ANY),
    **dict.fromkeys(("--backoff", "--patience", "--max-cost", "--judge-max-cost"), _ANY),
    **dict.fromkeys(("--per-day", "--robustness"), _ANY),
    **dict.fromkeys(("--encoder-price", "--reference-price", "--per-hour"), _ANY),
    **dict.fromkeys(("--routing-ms", "--reference-ms"), _ANY),
    **dict.fromkeys(("--minutes", "--dollars-per-day", "--dollars-per-hour"), _POSITIVE),
    **dict.fromkeys(("--attempts", "--jobs", "--judge-samples", "--sample", "--trials"), _COUNT),
    **dict.fromkeys(("--dim", "--bins", "--seeds", "--max-tokens", "--rounds"), _COUNT),
    **dict.fromkeys(("--batch-tokens", "--threads", "--max-batch", "--workers"), _COUNT),
    **dict.fromkeys(("--requests-per-minute", "--concurrent"), _COUNT),
    **dict.fromkeys(("--labels", "--caution", "--anchors-every"), _ANY),
    "--worker-cpus": _COUNT,
    "--deadline-seconds": NumberRange(0, 86_400, above=True),
    "--dollars-per-second": NumberRange(0, 1000),
    "--encoder-second-dollars": NumberRange(0),
    "--encoder-thousand-dollars": NumberRange(0),
    "--folds": NumberRange(2),
    "--questions": NumberRange(200),
    "--lam": NumberRange(0, 1),
    "--keep": NumberRange(0, 1, above=True),
    "--typos": NumberRange(0, 1, above=True),
    "--step": NumberRange(0, 1, above=True),
    "--confidence": NumberRange(0, 1, above=True, below=True),
    "--port": NumberRange(0, 65535),
}
"""The range of each option, in all commands that have it."""
_OF_COMMANDS: dict[tuple[str, str], NumberRange] = {
    ("replay", "--keep"): NumberRange(0, 1),
    ("import", "--threshold"): NumberRange(-100_000),
    ("quickstart", "--threshold"): NumberRange(-100_000),
    ("study seeds", "--count"): NumberRange(2),
    ("study learning", "--draws"): NumberRange(2),
    ("learn", "--judge-twice"): NumberRange(0, 1),
    ("learn", "--least-labels"): NumberRange(2),
    ("versions", "--steps"): NumberRange(0),
    ("promote", "--share"): NumberRange(0, 1, above=True, below=True),
    ("study learning", "--resamples"): _COUNT,
    ("minipool tasks", "--count"): _COUNT,
}
"""The range of an option in one command, where it differs from the others."""


def range_of(command: str, option: str) -> NumberRange | None:
    """The numbers that an option of a command takes; None for one that takes none."""
    return _OF_COMMANDS.get((command, option)) or NUMBER_RANGES.get(option)


def check_numbers(command: str, params: list[Any], ctx: Any) -> None:
    """Check the numbers of a command line.

    Raises:
        UsageError: A number is out of its option's range.
    """
    for param in params:
        found = ctx.params.get(param.name)
        span = range_of(command, param.opts[0])
        for number in found if isinstance(found, list | tuple) else [found]:
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if is_number and span is not None and number not in span:
                shown = number if isinstance(number, int) else f"{number:g}"
                raise UsageError(f"{param.opts[0]} is {shown}; it must be {span}")


def check_places(params: list[Any], ctx: Any) -> None:
    """Check that no path is a URL, but for those that may be one.

    Raises:
        UsageError: One is.
    """
    from prefill_router.files import refuse_url

    for param in params:
        found = ctx.params.get(param.name)
        for path in found if isinstance(found, list | tuple) else [found]:
            if isinstance(path, Path):
                with reading_words():
                    refuse_url(path)


_DRAWING = frozenset(
    {"calibration", "compare", "demo", "doctor", "layers", "replay", "reproduce", "search", "sweep"}
)
"""Commands that draw figures into the folder of their --out; every study does so, too."""


def check_drawing(command: str, options: Mapping[str, Any]) -> None:
    """Check that the plotting library is installed, before a command works for hours.

    Raises:
        MissingExtraError: It isn't installed.
    """
    draws = command in _DRAWING or command.startswith("study ")
    if draws and options.get("to") is not None:
        installed("matplotlib", needed_for="drawing figures")


@final
@dataclass(frozen=True)
class RetiredOption:
    """An option of an earlier version.

    Attributes:
        command: The command that had it.
        option: Its name.
        now: What to give instead.
    """

    command: str
    option: str
    now: str


RETIRED = (
    RetiredOption(
        "evaluate", "--split", "name the part with --part; a file of a split is for `fit`"
    ),
    RetiredOption("collect", "--limit", "give the dollars that it may cost with --max-cost"),
    RetiredOption(
        "grade", "--judge-limit", "give the dollars that it may cost with --judge-max-cost"
    ),
    *(
        RetiredOption(command, "--data", "the dataset comes first, by itself, without --data")
        for command in ("reproduce", "study dimensions", "study layers")
    ),
)


def check_spelling(command: str, args: list[str]) -> None:
    """Refuse a command line that has an option of an earlier version.

    Args:
        command: The command, `study seeds`.
        args: The arguments after it.

    Raises:
        UsageError: It has one; the message says what replaced it.
    """
    given = {arg.partition("=")[0] for arg in args}
    for old in RETIRED:
        if old.command == command and old.option in given:
            raise UsageError(f"{command} has no {old.option} any more: {old.now}")
    if command == "layers" and "--store" not in given and not [*args[:2], "-"][1].startswith("-"):
        store, data = args[:2]
        raise UsageError(
            f"a store is given with --store: prefill-router layers {data} --store {store}"
        )


def by_name(option: str, pairs: Sequence[str], form: str = "TARGET=VALUE") -> dict[str, str]:
    """The value of each name, from NAME=VALUE; a name may contain an = too.

    Args:
        option: The option that has them.
        pairs: What it was given.
        form: How a pair is written, for the error.

    Raises:
        UsageError: A pair is written in another way, or a name is given twice.
    """
    values: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.rpartition("=")
        if not name or not value:
            raise UsageError(f"{option} is {pair!r}; write it as {form}")
        if name in values:
            raise UsageError(f"{option} has {name!r} more than once; give each name once")
        values[name] = value
    return values
