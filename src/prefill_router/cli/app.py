"""The command line's frame: the application, its errors and exit codes, what it prints with.

Exit codes: 0 done; 1 the input or the options can't be used (the message says why); 2 the command
line is malformed; 3 no setting can be guaranteed (`keep`); 4 a router is no better than a fixed
choice, 5 that can't be told (`doctor`); 130 interrupted, in which case what was finished is kept.
"""

import io
import json
import os
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from prefill_router.errors import PrefillRouterError

NAME = "prefill-router"
INTERRUPTED = 130
out = Console(highlight=False, markup=False)
"""Results: standard output."""
err = Console(stderr=True, highlight=False, markup=False)
"""Progress, warnings and errors: standard error."""

app = typer.Typer(
    name=NAME,
    help="Decides, for each request, which language model should answer it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # so that paragraphs are wrapped anew
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_json(value: Any) -> None:
    """Print a value for programs: one JSON document on standard output, in ASCII alone."""
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


def main() -> None:
    """Run the command line and exit."""
    _print_whatever_comes()
    interruptions = _watched()
    try:
        app(prog_name=NAME)
    except KeyboardInterrupt:
        _end_interrupted()
    except SystemExit as ended:  # so typer ends, an interruption included
        if ended.code == INTERRUPTED:
            _end_interrupted()
        raise
    except (PrefillRouterError, OSError) as error:  # of the system: no such name, no room, no right
        if interruptions:
            _end_interrupted()
        for told in error.told if isinstance(error, PrefillRouterError) else (str(error),):
            line = " ".join(part.strip() for part in told.splitlines())
            err.print(Text.assemble(("error", "bold red"), ": ", line), soft_wrap=True)
        sys.exit(1)
    finally:
        _flush()
        if interruptions and sys.exc_info()[0] not in (None, SystemExit):
            _end_interrupted()


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
    sys.exit(INTERRUPTED)


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
