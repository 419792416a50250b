"""A process that does jobs against a hub, each in a fork of its own, since the hub's library reads
its settings when it is imported.

Each line of its standard input is a job, [environment, arguments], each line printed its answer.
"""

import faulthandler
import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packages.router.tests.fakes.hub import FakeHub
from prefill_router.errors import PrefillRouterError

SECRET = "hf_secretsecretsecret"
_ROOT = Path(__file__).parents[4]
_HANGS_AFTER = 100
"""Seconds."""


@dataclass(frozen=True)
class HubWorker:
    """The process, and the file of its standard error."""

    process: subprocess.Popen[str]
    log: Path

    def do(
        self,
        hub: FakeHub,
        home: Path,
        arguments: Sequence[str | None],
        *,
        token: str | None,
        settings: Mapping[str, str],
    ) -> dict[str, Any]:
        """The answer to a job, which shows no `SECRET`.

        Args:
            hub: The hub.
            home: The folder of what is downloaded.
            arguments: Those of the program's function.
            token: The hub's token; None for none.
            settings: More variables of the environment.
        """
        environment = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",  # our hub keeps large files in the older way
            "NO_PROXY": "*",
            **settings,
        }
        environment |= {} if token is None else {"HF_TOKEN": token}
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([environment, arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert SECRET not in line
        assert SECRET not in self.log.read_text()
        assert "crashed" not in line, self.log.read_text()
        return dict(json.loads(line))


@contextmanager
def hub_worker(program: str, folder: Path) -> Iterator[HubWorker]:
    """A process that runs a module, which calls `do_jobs`."""
    log = folder / "stderr"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", program],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        yield HubWorker(process, log)


def do_jobs(work: Callable[..., dict[str, object]]) -> None:
    """Answer every line of standard input with what `work` returns, or the project's error."""
    _import_what_the_hub_needs()
    gc.freeze()  # forks skip the objects that they share
    for line in sys.stdin:
        child = os.fork()
        if not child:
            code = 1
            faulthandler.dump_traceback_later(_HANGS_AFTER, exit=True)
            try:
                _answer(work, *json.loads(line))
                code = 0
            except Exception:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        if os.waitpid(child, 0)[1]:
            sys.stdout.write('{"error": "it crashed", "message": "see the standard error"}\n')
        sys.stdout.flush()


def _import_what_the_hub_needs() -> None:
    """Import the hub's library and forget it, but not the libraries that it imports."""
    from huggingface_hub import HfApi, snapshot_download  # noqa: F401

    for name in [n for n in sys.modules if n.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[name]


def _answer(
    work: Callable[..., dict[str, object]], environment: dict[str, str], arguments: list[str]
) -> None:
    os.environ.update(environment)
    try:
        answer = work(*arguments)
    except PrefillRouterError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
