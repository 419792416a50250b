"""Groups of commands that are imported when they are called, and what all commands check."""

from importlib import import_module
from typing import Any, Literal, cast

import typer
from typer.core import TyperCommand, TyperGroup

from prefill_router.cli.commands import Listed
from prefill_router.cli.numbers import check_numbers
from prefill_router.cli.retired import check_spelling

HELP = {"help_option_names": ["-h", "--help"]}
MARKUP: Literal["markdown"] = "markdown"
"""Of the help of commands, so that paragraphs are wrapped anew."""


class Command(TyperCommand):
    """A command that knows the spellings of earlier versions, and what numbers its options take."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line of this command.

        Raises:
            UsageError: An option is spelt as it once was, or its number is none that it takes.
        """
        command = ctx.command_path.partition(" ")[2]
        check_spelling(command, args)
        rest = super().parse_args(ctx, args)
        check_numbers(command, self.params, ctx)
        return rest


class Group(TyperGroup):
    """Commands that `--help` lists from a table and that are imported when they are called."""

    def list_these(self, table: dict[str, Listed]) -> None:
        """Have these commands, in this order, instead of those that happen to be imported."""
        self.commands = {name: _listed(name, entry) for name, entry in table.items()}
        self._table = table

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called, imported now; a mistyped one is told its likely name."""
        name, found, rest = super().resolve_command(ctx, args)
        if name in self._table and self._table[name].home:
            found = load(self._table[name].home, name)
        return name, found, rest


def _listed(name: str, entry: Listed) -> Any:
    """What stands in the list: a group, or a command that has a summary and no options."""
    settings: dict[str, Any] = {
        "help": entry.summary,
        "context_settings": HELP,
        "rich_help_panel": entry.panel,
    }
    if entry.home:
        return TyperCommand(name, **settings)
    group = Group(name=name, no_args_is_help=True, **settings)
    group.list_these(entry.commands)
    return group


def load(home: str, name: str) -> Command:
    """Import a command.

    Args:
        home: The file of this package that holds it.
        name: The command, as it is called in its group.
    """
    module = import_module(f"prefill_router.cli.{home}")
    for held in vars(module).values():
        for info in held.registered_commands if isinstance(held, typer.Typer) else ():
            called = info.callback
            if called is None or called.__module__ != module.__name__:
                continue  # one that this file only knows of
            if (info.name or called.__name__) == name:
                info.cls = Command
                alone = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
                alone.registered_commands.append(info)
                return cast(Command, typer.main.get_command(alone))
    raise LookupError(f"{module.__name__} has no command {name!r}")
