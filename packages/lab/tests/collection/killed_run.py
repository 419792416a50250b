"""Runs `prefill-router collect` in forks of a process that has imported it, and stops them.

As `packages.router.tests.killed_process`, without torch: a line of standard input is a run,
[arguments, signal, seconds]; the line printed then is its exit code.
"""

import faulthandler
import json
import os
import signal
import sys
import time
import traceback

from packages.router.tests.preload import preload
from prefill_router.cli import main

preload(
    "cli.application",
    "cli.collect",
    "cli.labels",
    "data",
    "endpoints",
    "harness",
    "importers",
    "targets",
)


def work(arguments: list[str]) -> None:
    """The command, in a fork; never returns, and says where it is should it hang."""
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        faulthandler.dump_traceback_later(60, exit=True)
        sys.argv = ["prefill-router", *arguments]
        sys.stdout = sys.stderr
        main()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        sys.stderr.flush()
        os._exit(code)


def run(arguments: list[str], number: int, seconds: float) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until the fork is set up
    child = os.fork()
    if not child:
        work(arguments)
    if number:
        time.sleep(seconds)
        os.kill(child, number)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(*json.loads(line))) + "\n")
        sys.stdout.flush()
