"""Spellings of earlier versions: each is refused with the one that took its place."""

from dataclasses import dataclass
from typing import final

from prefill_router.cli.usage import UsageError


@final
@dataclass(frozen=True)
class Retired:
    """An option that is spelt otherwise now.

    Attributes:
        command: Whose it was.
        option: Its old spelling.
        now: What to say instead.
    """

    command: str
    option: str
    now: str


RETIRED = (
    Retired("evaluate", "--split", "name the part with --part; a file of a split is for `fit`"),
    Retired("collect", "--limit", "give the dollars that it may cost with --max-cost"),
    Retired("grade", "--judge-limit", "give the dollars that it may cost with --judge-max-cost"),
    *(
        Retired(command, "--data", "the dataset comes first, by itself, without --data")
        for command in ("reproduce", "study dimensions", "study layers")
    ),
)


def check_spelling(command: str, args: list[str]) -> None:
    """Check that nothing on a command line is spelt as it once was.

    Args:
        command: Its name, as `study seeds`.
        args: What stands behind it.

    Raises:
        UsageError: Something is; the message names the present spelling.
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
