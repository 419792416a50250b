"""The command line's frame: the application, its errors and exit codes, what it prints with."""

import atexit
import gc
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from prefill_router import __version__
from prefill_router.cli.codes import Code
from prefill_router.cli.commands import COMMANDS
from prefill_router.cli.group import HELP, MARKUP, Group
from prefill_router.cli.usage import UsageError
from prefill_router.errors import PrefillRouterError

NAME = "prefill-router"
out = Console(highlight=False, markup=False)
"""Results: standard output."""
err = Console(stderr=True, highlight=False, markup=False)
"""Progress, warnings and errors: standard error."""


class Root(Group):
    """All commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.list_these(COMMANDS)


app = typer.Typer(
    name=NAME,
    cls=Root,
    help="Decides, for each request, which language model should answer it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    context_settings=HELP,
)


def _print_version(asked: bool) -> bool:
    if asked:
        out.print(f"{NAME} {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and end.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Every command's --help has an example; the guide on the command line has the rules."""
    del version


def print_json(value: Any) -> None:
    """Print a value for programs: one JSON document on standard output, in ASCII alone."""
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


def main() -> None:
    """Run the command line and exit."""
    _collect_seldom()
    _print_whatever_comes()
    interruptions = _watched()
    try:
        code = app(prog_name=NAME, standalone_mode=False)
    except (PrefillRouterError, OSError, typer.TyperException) as error:
        code = Code.INTERRUPTED if interruptions else _tell(error)
    except (KeyboardInterrupt, typer.Abort):
        code = Code.INTERRUPTED
    finally:
        _flush()
        if interruptions and sys.exc_info()[0] is not None:
            _end_interrupted()
    if code == Code.INTERRUPTED:
        _end_interrupted()
    sys.exit(code or Code.DONE)


def _collect_seldom() -> None:
    """Half a second of processor time goes, else, into looking for garbage among what is imported.

    At the end nothing is looked for: the memory goes back whole.
    """
    gc.set_threshold(10_000)
    atexit.register(gc.freeze)


def _tell(error: Exception) -> int:
    """Say in a line what was wrong; the exit code."""
    usage = isinstance(error, UsageError | typer.TyperException)
    for told in _lines(error):
        line = " ".join(part.strip() for part in told.splitlines())
        err.print(Text.assemble(("error", "bold red"), ": ", line), soft_wrap=True)
    return Code.MALFORMED if usage else Code.UNUSABLE


def _lines(error: Exception) -> Sequence[str]:
    """What is wrong; nothing where only the help was asked for, which has been printed."""
    if isinstance(error, PrefillRouterError):
        return error.told
    if not isinstance(error, typer.TyperException):
        return [str(error)]  # of the system: no such name, no room, no right
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    place = NAME if context is None else context.command_path
    return [f"{message}; see: {place} --help"] if message else []


def _watched() -> list[int]:
    """The interruptions that will have come: libraries make errors of their own of them."""
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
        signal.signal(signal.SIGINT, interrupt)
    return seen


def _end_interrupted() -> NoReturn:
    err.print(
        "interrupted; what was finished is kept, the same command goes on from there",
        soft_wrap=True,
    )
    sys.exit(Code.INTERRUPTED)


def _print_whatever_comes() -> None:
    """Characters that the terminal lacks, and file names that are no text, are printed escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Write out what is left, if its reader is still there; it isn't in: ... | head."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
