"""Commands that a command runs in this process, each as a user could type it."""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, final

from prefill_router.cli.application import app, err
from prefill_router.errors import ConfigError

_PROGRAM = "from prefill_router.cli import main; main()"
_START_SECONDS = 60.0


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

    def do(self, *arguments: object, shown: bool = False) -> None:
        """Run one command; its output is shown, or goes to a file in the log folder.

        Raises:
            PrefillRouterError: It failed.
        """
        words = _announced(arguments)
        if shown:
            code = app(words, standalone_mode=False)
        else:
            code = self._logged(words, self._place(words))
        if code:
            raise ConfigError(f"prefill-router {words[0]} ended with exit code {code}; see above")

    def read(self, *arguments: object) -> tuple[int, dict[str, Any]]:
        """Run one command that prints JSON; its exit code, and what it printed.

        Raises:
            PrefillRouterError: It failed.
        """
        words = _announced([*arguments, "--json"])
        place = self._place(words)
        code = self._logged(words, place)
        told = place.read_text(encoding="utf-8")
        if not told:
            raise ConfigError(f"prefill-router {words[0]} ended with exit code {code}; see above")
        found: dict[str, Any] = json.loads(told)
        return code or 0, found

    @contextmanager
    def serving(self, *arguments: object, is_ready: Callable[[Path], bool]) -> Iterator[None]:
        """Run one command that serves, in a process of its own, until the block ends.

        Args:
            arguments: The command.
            is_ready: Whether it serves by now, given the file of what it printed.

        Raises:
            ConfigError: It didn't start.
        """
        words = _announced(arguments, end=" &")
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
                        told = f"prefill-router {words[0]} didn't start; {place} says why"
                        raise ConfigError(told)
                    time.sleep(0.05)
                yield
            finally:
                server.terminate()
                server.wait()

    def _place(self, words: list[str]) -> Path:
        return self.log / ("-".join([words[0], *(Path(w).name for w in words[1:2])]) + ".txt")

    def _logged(self, words: list[str], place: Path) -> int | None:
        with place.open("w", encoding="utf-8") as file, redirect_stdout(file):
            code: int | None = app(words, standalone_mode=False)
            return code


def _announced(arguments: Any, *, end: str = "") -> list[str]:
    words = [str(argument) for argument in arguments]
    err.say(f"$ prefill-router {shlex.join(words)}{end}", style="bold")
    return words
