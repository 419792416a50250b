"""The application behind the command line: its commands, errors, exit codes and output.

Commands are listed from the table in `cli.commands` and imported when they are called. The checks
of the command line, which all commands share, are there too. Here is the format of dollars and
counts, and how a command runs other commands in this process, each as a user could type it.
"""

import atexit
import gc
import io
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import copy
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, cast, final

import typer
from rich.console import Console, RenderableType
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from prefill_router import __version__
from prefill_router.cli.commands import (
    GROUP,
    CommandEntry,
    UsageError,
    all_commands,
    check_drawing,
    check_places,
)
from prefill_router.cli.usage_sentences import describe_usage
from prefill_router.errors import ConfigError, PluginError, PrefillRouterError
from prefill_router.plugins import suggest_distribution

if TYPE_CHECKING:
    from rich.table import Table


class ExitCode(IntEnum):
    """The exit code of a command; the guide on the command line has the same table.

    The command line alone decides on 2; on 1 the files, endpoints and targets that it names do.
    """

    DONE = 0, "done; `doctor`: the router is worth it"
    UNUSABLE = 1, "a file, endpoint or target can't be used: the last line says why"
    MALFORMED = (
        2,
        "the command line itself is wrong: a name, a number, options that exclude others",
    )
    NO_GUARANTEE = 3, "`guarantee`: no lam can be guaranteed"
    NO_BETTER = 4, "`doctor`: the router is not worth it"
    CANT_TELL = 5, "`doctor`: the data can't tell which"
    INTERRUPTED = 130, "interrupted; what was finished is kept"

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "ExitCode":
        """Make a code with its meaning."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code


HELP = {"help_option_names": ["-h", "--help"]}
MARKUP: Literal["markdown"] = "markdown"
"""The markup of help texts: it wraps paragraphs to the terminal's width."""


class Command(TyperCommand):
    """A command that checks the numbers and the paths of its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line of this command.

        Raises:
            UsageError: The number of an option is out of range, or its path is a URL.
        """
        from prefill_router.cli.ranges import check_numbers  # it loads pydantic

        rest = super().parse_args(ctx, args)
        check_numbers(self, ctx)
        check_places(self.params, ctx)
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command, if the plotting library that it needs is installed."""
        check_drawing(ctx.command_path.partition(" ")[2], ctx.params)
        return super().invoke(ctx)


class Group(TyperGroup):
    """Commands that `--help` lists from a table and that are imported when they are called."""

    def list_these(self, table: dict[str, CommandEntry]) -> None:
        """List these commands, in this order, instead of those that are imported."""
        self.commands = {name: _make_list_entry(name, entry) for name, entry in table.items()}
        self._table = table

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that is called; the error on a mistyped name suggests a likely one."""
        self.check_name(args)
        name, command, rest = super().resolve_command(ctx, args)
        if name in self._table and self._table[name].home:
            command = load(self._table[name].home, name)
        return name, command, rest

    def check_name(self, args: list[str]) -> None:
        """Check the name of the command that is called; any by default."""


def _make_list_entry(name: str, entry: CommandEntry) -> Any:
    """An entry of the list: a group, or a command with its summary and without options."""
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
        home: The module that holds it.
        name: The command's name in its group.
    """
    module = _import_home(home, name)
    for member in vars(module).values():
        for info in member.registered_commands if isinstance(member, typer.Typer) else ():
            called = info.callback
            if called is None or called.__module__ != module.__name__:
                continue  # imported from another file
            if (info.name or called.__name__) == name:
                info.cls = Command
                alone = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
                alone.registered_commands.append(info)
                return cast(Command, typer.main.get_command(alone))
    raise PluginError(f"{module.__name__} has no command {name!r}; fix that distribution")


def _import_home(home: str, name: str) -> ModuleType:
    try:
        return import_module(home)
    except PrefillRouterError:
        raise
    except Exception as error:  # whatever another distribution raises
        if home.partition(".")[0] == __name__.partition(".")[0]:
            raise
        raise PluginError(
            f"the command {name!r} can't be loaded from {home}: {type(error).__name__}: {error}; "
            "fix or uninstall its distribution"
        ) from error


NAME = "prefill-router"


class Terminal(Console):
    """The console that a command prints to."""

    def say(self, text: RenderableType, *, style: str | None = None) -> None:
        """Print text without adding line breaks, however narrow the terminal is."""
        self.print(text, style=style, soft_wrap=True)


out = Terminal(highlight=False, markup=False)
"""Results: standard output."""
err = Terminal(stderr=True, highlight=False, markup=False)
"""Progress, warnings and errors: standard error."""


class Root(Group):
    """All commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        commands, errors = all_commands()
        self.list_these(commands)
        if errors:
            self.epilog = "\n\n".join(str(error) for error in errors.values())

    def check_name(self, args: list[str]) -> None:
        """Say what to install where the command is one of another distribution.

        Raises:
            UsageError: It isn't installed.
        """
        name = args[0] if args else ""
        home = "" if name in self.commands else suggest_distribution(GROUP, name)
        if home:
            raise UsageError(f"there is no command {name!r} here{home}")


app = typer.Typer(
    name=NAME,
    cls=Root,
    help="Decides, for each request, which language model should answer it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    context_settings=HELP,
)


def _print_version(is_wanted: bool) -> bool:
    if is_wanted:
        out.print(f"{NAME} {__version__}")
        raise typer.Exit
    return is_wanted


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Every command's --help has an example; the guide on the command line has the rules."""
    del version


def columns(first: str, *numbers: str, fold: bool = False, no_wrap: bool = False) -> "Table":
    """A table without borders: names in the first column, numbers in the others.

    Args:
        first: The heading of the names.
        numbers: The headings of the numbers.
        fold: Whether names that are too long are wrapped, rather than cut.
        no_wrap: Whether numbers are never wrapped.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold" if fold else "ellipsis")
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=no_wrap)
    return table


def print_json(value: Any) -> None:
    """Print a value for programs: one JSON document on standard output, in ASCII alone."""
    out.file.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


def main() -> None:
    """Run the command line and exit."""
    _collect_garbage_seldom()
    _escape_unprintable()
    interruptions = _record_interruptions()
    try:
        code = _build_root()(prog_name=NAME, standalone_mode=False)
    except (PrefillRouterError, OSError, typer.TyperException) as error:
        code = ExitCode.INTERRUPTED if interruptions else _print_error(error)
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    finally:
        _flush_output()
        if interruptions and sys.exc_info()[0] is not None:
            _end_interrupted()
    if code == ExitCode.INTERRUPTED:
        _end_interrupted()
    sys.exit(code or ExitCode.DONE)


def _build_root() -> Any:
    """The application as a command, without building the imported ones, which its table has."""
    alone = copy(app)
    alone.registered_commands = []
    return typer.main.get_command(alone)


def _collect_garbage_seldom() -> None:
    """Run the garbage collector less often: at imports it takes half a second of processor time.

    At exit it doesn't run at all, since the process's whole memory is freed anyway.
    """
    gc.set_threshold(10_000)
    atexit.register(gc.freeze)


def _print_error(error: Exception) -> int:
    """Print an error, one line for each problem, and return the exit code."""
    usage = isinstance(error, UsageError | typer.TyperException)
    for problem in _list_problems(error):
        line = " ".join(part.strip() for part in problem.splitlines())
        err.print(Text.assemble(("error", "bold red"), ": ", line), soft_wrap=True)
    return ExitCode.MALFORMED if usage else ExitCode.UNUSABLE


def _list_problems(error: Exception) -> Sequence[str]:
    """What is wrong; empty where only the help was asked for, which has been printed."""
    if isinstance(error, PrefillRouterError):
        return error.messages
    if not isinstance(error, typer.TyperException):
        return [_describe_system_error(error)]
    message = describe_usage(error)
    context = getattr(error, "ctx", None)
    place = NAME if context is None else context.command_path
    return [f"{message}; see: {place} --help"] if message else []


def _describe_system_error(error: Exception) -> str:
    """No such file, no space left, no permission: the file, then what the system says."""
    if not isinstance(error, OSError) or error.filename is None or not error.strerror:
        return str(error)
    places = [error.filename, *([] if error.filename2 is None else [error.filename2])]
    return f"{', '.join(map(str, places))}: {error.strerror}"


def _record_interruptions() -> list[int]:
    """A list that fills with interruptions, which libraries may turn into errors of their own."""
    interruptions: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        interruptions.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller ignores it
        signal.signal(signal.SIGINT, interrupt)
    return interruptions


def _end_interrupted() -> NoReturn:
    err.print(
        "interrupted; what was finished is kept, the same command goes on from there",
        soft_wrap=True,
    )
    sys.exit(ExitCode.INTERRUPTED)


def _escape_unprintable() -> None:
    """Print characters that the terminal lacks, and file names that aren't text, as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush_output() -> None:
    """Flush standard output, unless its reader has gone, as in `... | head`."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def round_up(value: float) -> str:
    """A limit in dollars, rounded up to cents, or to two significant digits if it is below one."""
    digits = max(2, 1 - math.floor(math.log10(max(value, 1e-9))))
    step = 10.0**-digits
    return f"{math.ceil(value / step) * step:.{digits}f}"


def format_count(number: int, singular: str, several: str = "") -> str:
    """A number with its noun, in the singular or the plural."""
    return f"{number:,} {singular if number == 1 else several or singular + 's'}"


_PROGRAM = "from prefill_router.cli import main; main()"
_START_SECONDS = 180.0


@final
class CommandRun:
    """Runs commands in this process and prints each of them.

    Attributes:
        folder: The folder for all files.
        log: The folder for output that isn't shown.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder, self.log = folder, log
        log.mkdir(parents=True, exist_ok=True)

    def do(self, *arguments: object, is_shown: bool = False) -> None:
        """Run one command; its output is shown, or goes to a file in the log folder.

        Raises:
            PrefillRouterError: It failed.
        """
        words = _announce(arguments)
        if is_shown:
            code = app(words, standalone_mode=False)
        else:
            code = self._run_logged(words, self._log_path(words))
        if code:
            raise ConfigError(f"prefill-router {words[0]} ended with exit code {code}; see above")

    def read(self, *arguments: object) -> tuple[int, dict[str, Any]]:
        """Run one command that prints JSON; its exit code, and what it printed.

        Raises:
            PrefillRouterError: It failed.
        """
        words = _announce([*arguments, "--json"])
        place = self._log_path(words)
        code = self._run_logged(words, place)
        text = place.read_text(encoding="utf-8")
        if not text:
            raise ConfigError(f"prefill-router {words[0]} ended with exit code {code}; see above")
        result: dict[str, Any] = json.loads(text)
        return code or 0, result

    @contextmanager
    def serving(self, *arguments: object, is_ready: Callable[[Path], bool]) -> Iterator[None]:
        """Run one command that serves, in a process of its own, until the block ends.

        Args:
            arguments: The command.
            is_ready: Whether it serves by now, given the file of what it printed.

        Raises:
            ConfigError: It didn't start.
        """
        words = _announce(arguments, end=" &")
        place = self.log / ("-".join(w for w in words[:2] if w.isalpha()) + ".txt")
        with place.open("wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *words],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
            try:
                until = time.monotonic() + _START_SECONDS
                while not is_ready(place):
                    if server.poll() is not None or time.monotonic() > until:
                        message = f"prefill-router {words[0]} didn't start; {place} says why"
                        raise ConfigError(message)
                    time.sleep(0.05)
                yield
            finally:
                server.terminate()
                server.wait()

    def _log_path(self, words: list[str]) -> Path:
        return self.log / ("-".join([words[0], *(Path(w).name for w in words[1:2])]) + ".txt")

    def _run_logged(self, words: list[str], place: Path) -> int | None:
        with place.open("w", encoding="utf-8") as file, redirect_stdout(file):
            code: int | None = app(words, standalone_mode=False)
            return code


def _announce(arguments: Any, *, end: str = "") -> list[str]:
    words = [str(argument) for argument in arguments]
    err.say(f"$ prefill-router {shlex.join(words)}{end}", style="bold")
    return words
