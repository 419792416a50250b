"""What numbers the options of all commands take: one table, so one error whatever the command."""

import math
from dataclasses import dataclass
from typing import Any, final

from prefill_router.cli.usage import UsageError


@final
@dataclass(frozen=True)
class Span:
    """The numbers that an option takes.

    Attributes:
        least: From here on.
        most: As far as this; None for no end.
        above: Whether `least` itself is left out.
        below: Whether `most` itself is left out.
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


_ANY, _COUNT, _POSITIVE = Span(), Span(1), Span(above=True)
SPANS: dict[str, Span] = {
    **dict.fromkeys(("--seed", "--resamples", "--assume-output-tokens", "--margin"), _ANY),
    **dict.fromkeys(("--backoff", "--patience", "--max-cost", "--judge-max-cost"), _ANY),
    **dict.fromkeys(("--encoder-price", "--reference-price", "--per-hour"), _ANY),
    **dict.fromkeys(("--routing-ms", "--reference-ms"), _ANY),
    **dict.fromkeys(("--minutes", "--dollars-per-day", "--dollars-per-hour"), _POSITIVE),
    **dict.fromkeys(("--attempts", "--jobs", "--judge-samples", "--sample", "--trials"), _COUNT),
    **dict.fromkeys(("--dim", "--bins", "--seeds", "--max-tokens", "--rounds"), _COUNT),
    **dict.fromkeys(("--batch-tokens", "--threads", "--max-batch"), _COUNT),
    **dict.fromkeys(("--requests-per-minute", "--concurrent"), _COUNT),
    "--folds": Span(2),
    "--questions": Span(200),
    "--lam": Span(0, 1),
    "--keep": Span(0, 1, above=True),
    "--step": Span(0, 1, above=True),
    "--confidence": Span(0, 1, above=True, below=True),
    "--port": Span(0, 65535),
}
"""By option, for all commands that have it."""
_OF_COMMANDS: dict[tuple[str, str], Span] = {
    ("import", "--threshold"): Span(-100_000),
    ("study seeds", "--count"): Span(2),
    ("study learning", "--draws"): Span(2),
    ("study learning", "--resamples"): _COUNT,
    ("minipool tasks", "--count"): _COUNT,
}
"""By command and option, where it takes others than elsewhere."""


def span_of(command: str, option: str) -> Span | None:
    """The numbers that an option of a command takes; None for one that takes none."""
    return _OF_COMMANDS.get((command, option)) or SPANS.get(option)


def check_numbers(command: str, params: list[Any], ctx: Any) -> None:
    """Check the numbers of a command line.

    Raises:
        UsageError: One isn't among those that its option takes.
    """
    for param in params:
        found = ctx.params.get(param.name)
        span = span_of(command, param.opts[0])
        for number in found if isinstance(found, list | tuple) else [found]:
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if is_number and span is not None and number not in span:
                told = number if isinstance(number, int) else f"{number:g}"
                raise UsageError(f"{param.opts[0]} is {told}; it must be {span}")
