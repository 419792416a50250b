"""The command line's frame: the application, its errors and exit codes, what it prints with.

Exit codes: 0 done; 1 the input or the options can't be used (the message says why); 2 the command
line is malformed; 130 interrupted, in which case what was finished is kept.
"""

import json
import os
import sys
from typing import Any

import typer
from rich.console import Console

from prefill_router.errors import PrefillRouterError

out = Console(highlight=False)
"""Results: standard output."""
err = Console(stderr=True, highlight=False)
"""Progress, warnings and errors: standard error."""

app = typer.Typer(
    name="prefill-router",
    help="Decides, for each request, which language model should answer it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_json(value: Any) -> None:
    """Print a value for programs: one JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def main() -> None:
    """Run the command line and exit."""
    try:
        app()
    except PrefillRouterError as error:
        err.print(f"[bold red]error[/]: {_escape(str(error))}")
        sys.exit(1)
    except KeyboardInterrupt:
        err.print("interrupted; what was finished is kept, the same command goes on from there")
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone, as with: ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
