"""The commands by name, which file holds each, and the checks of the command line that all share.

A command is a function of its file, decorated with `app.command`, `study.command` and so on. The
file is imported when the command is called, so that `--help` reads tables alone: the one here, and
those that other distributions add by entry points (`plugins`).

The checks find errors in the command line itself, before the files that it names are read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, final

from prefill_router.errors import ConfigError, PluginError
from prefill_router.lazy_imports import find_module
from prefill_router.plugins import Registry, describe_fault, find_plugins


@final
@dataclass(frozen=True)
class CommandEntry:
    """A command, or a group of them, in the list of commands.

    Typer would import every command to list them: `--help` would take 1.3 seconds of processor time
    instead of 0.4, and a distribution that can't be imported would break it.

    Attributes:
        summary: One sentence, the first of the command's own help.
        home: The module that holds it; empty for a group.
        panel: The heading under which it is listed.
        commands: The commands of a group, by name.
    """

    summary: str
    home: str = ""
    panel: str | None = None
    commands: "dict[str, CommandEntry]" = field(default_factory=dict)


def list_commands(
    package: str, panel: str | None, commands: Mapping[str, tuple[str, str]]
) -> dict[str, CommandEntry]:
    """Entries of commands of one package under one heading.

    Args:
        package: The package of the commands' files.
        panel: The heading; None in a group.
        commands: For each name, the file and the summary.
    """
    return {
        name: CommandEntry(summary, f"{package}.{file}", panel)
        for name, (file, summary) in commands.items()
    }


_HERE = "prefill_router.cli"
OWN_COMMANDS: dict[str, CommandEntry] = {
    **list_commands(
        _HERE,
        "Try it out",
        {
            "quickstart": (
                "quickstart",
                "Make a router of what you have: a table, logs of calls, or receipts.",
            ),
        },
    ),
    **list_commands(
        _HERE,
        "Collect and grade",
        {
            "prices": (
                "prices",
                "Refresh a pool's prices from OpenRouter's list of models, and date them.",
            ),
            "grade": ("grade", "Grade a run's answers and write a dataset folder."),
            "import": (
                "import_",
                "Read scored answers of another format and write a dataset folder.",
            ),
            "merge": (
                "datasets",
                "Join datasets by the ids of their queries and the names of their targets.",
            ),
        },
    ),
    **list_commands(
        _HERE,
        "Look at a dataset",
        {
            "describe": (
                "datasets",
                "Say what a dataset holds: queries, targets, accuracy, cost, oracle, consensus "
                "regimes.",
            ),
            "split": (
                "datasets",
                "Draw train and test parts, which every later command can use.",
            ),
        },
    ),
    **list_commands(
        _HERE,
        "Fit",
        {
            "encode": ("encode", "Read every prompt with an encoder and keep its hidden states."),
            "fit": (
                "fit",
                "Fit a router on scored answers, and say whether it is worth it.",
            ),
            "add-target": (
                "routers",
                "Add a target to a router from few labels, by asking it chosen questions.",
            ),
            "remove-target": ("routers", "Remove a target from a router without fitting it again."),
        },
    ),
    **list_commands(
        _HERE,
        "Judge",
        {
            "evaluate": ("evaluate", "Judge a router on queries with known outcomes."),
            "compare": (
                "evaluate",
                "Compare routers: fit those of a list on one split, or take two that are fitted.",
            ),
            "calibration": (
                "doctor",
                "Show how well a router is calibrated on its test part, and what calibrators would "
                "change.",
            ),
            "doctor": ("doctor", "Examine whether a router is more than a fixed choice."),
            "guarantee": (
                "guarantee",
                "Find the cheapest lam that keeps a share of the best single target's accuracy, "
                "guaranteed.",
            ),
        },
    ),
    **list_commands(
        _HERE,
        "Route",
        {
            "route": ("route", "Choose the target that should answer a request, and say why."),
            "assign": (
                "assign",
                "Assign a file of prompts to targets within a budget, and write a batch for each.",
            ),
            "check-assignment": (
                "check_assignment",
                "Compare the forecast of an assignment with the results of its batches.",
            ),
            "show": ("routers", "Check a router's folder and show its card."),
            "reprice": ("routers", "Change a router's prices without fitting it again."),
            "export": ("export", "Write a router in another project's format."),
        },
    ),
    "versions": CommandEntry(
        "List the versions of a router, add one, and choose the one that serves.",
        panel="Serve",
        commands=list_commands(
            _HERE,
            None,
            {
                "list": (
                    "routers",
                    "List the versions of a router, and the steps to the one that serves.",
                ),
                "add": ("routers", "Keep a router as the next version, which doesn't serve yet."),
                "promote": (
                    "routers",
                    "Let a version serve, at once or on a share of the conversations, without a "
                    "test.",
                ),
                "rollback": (
                    "routers",
                    "Go back to what served before: a version, or the default target.",
                ),
            },
        ),
    ),
}
"""The commands of this distribution."""
_PANELS = (
    *("Try it out", "Collect and grade", "Look at a dataset", "Fit", "Judge", "Route", "Serve"),
    *("Watch traffic", "Learn"),
)
"""The headings in the order of `--help`; those of other distributions come last."""
_FIRST = ("demo", "quickstart", "serve")
"""What comes first under its heading, whichever distribution has it."""


def all_commands() -> tuple[dict[str, CommandEntry], dict[str, PluginError]]:
    """The commands of all distributions by name, and the tables that can't be loaded."""
    tables, errors = Registry[dict[str, CommandEntry]]({}, GROUP, expects=dict).load_all()
    others: dict[str, CommandEntry] = {}
    for name, table in tables.items():
        if all(isinstance(entry, CommandEntry) for entry in table.values()):
            others |= table
        else:
            fault = "its table holds something else than a CommandEntry"
            errors[name] = describe_fault(find_plugins(GROUP)[name], fault)
    every = {**OWN_COMMANDS, **others, **OWN_COMMANDS}
    return dict(sorted(every.items(), key=_sort_key)), errors


def _sort_key(item: tuple[str, CommandEntry]) -> tuple[int, int]:
    """Where a command is listed; those of one heading keep their order."""
    name, entry = item
    panel = _PANELS.index(entry.panel) if entry.panel in _PANELS else len(_PANELS)
    return panel, _FIRST.index(name) if name in _FIRST else len(_FIRST)


GROUP: Final = "prefill_router.commands"


Choice = TypeVar("Choice", bound=str)


class UsageError(ConfigError):
    """The command line itself is wrong; the exit code is 2."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn errors into usage errors, for code that reads only the command line."""
    try:
        yield
    except ConfigError as error:
        raise UsageError(*error.messages) from None


def check_suffix(option: str, place: Path, suffixes: Sequence[str]) -> None:
    """Check that a file's suffix fits its format.

    Raises:
        UsageError: It doesn't.
    """
    if place.suffix.lower() not in suffixes:
        raise UsageError(f"{option} is {place}; name a file such as {place.stem}{suffixes[0]}")


def parse_choice(option: str, text: str, choices: Sequence[Choice]) -> Choice:
    """The choice of this name.

    Raises:
        UsageError: No choice has this name.
    """
    for choice in choices:
        if choice == text:
            return choice
    raise UsageError(f"{option} is {text!r}; it must be one of {', '.join(choices)}")


def check_places(params: list[Any], ctx: Any) -> None:
    """Check that no path is a URL, except those that may be one.

    Raises:
        UsageError: A path is a URL and may not be one.
    """
    from prefill_router.files import refuse_url

    for param in params:
        value = ctx.params.get(param.name)
        for path in value if isinstance(value, list | tuple) else [value]:
            if isinstance(path, Path):
                with usage_errors():
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
        find_module("matplotlib", needed_for="drawing figures")


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
