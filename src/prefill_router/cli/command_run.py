"""Commands that a command runs in this process, each as a user could type it."""

import json
import shlex
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, final

from prefill_router.cli.application import app, err
from prefill_router.errors import ConfigError


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
        found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        return code or 0, found

    def _place(self, words: list[str]) -> Path:
        return self.log / ("-".join([words[0], *(Path(w).name for w in words[1:2])]) + ".txt")

    def _logged(self, words: list[str], place: Path) -> int | None:
        with place.open("w", encoding="utf-8") as file, redirect_stdout(file):
            code: int | None = app(words, standalone_mode=False)
            return code


def _announced(arguments: Any) -> list[str]:
    words = [str(argument) for argument in arguments]
    err.say(f"$ prefill-router {shlex.join(words)}", style="bold")
    return words
