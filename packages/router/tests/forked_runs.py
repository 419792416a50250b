"""Runs commands in forks of a process that has imported what they need, and stops them.

Each line of standard input is a run, [arguments, signal, seconds]; the line printed then is what
came of it, [exit code, seconds]. After so many seconds the signal is sent; signal 0 lets the
command end.
"""

import faulthandler
import gc
import json
import os
import signal
import sys
import time
import traceback

from prefill_router.cli import main

HANGS_AFTER = 100
"""Seconds."""


def answer_runs() -> None:
    """Run the commands of standard input, and end the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()  # forks skip the objects that they share
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(*json.loads(line))) + "\n")
        sys.stdout.flush()
    os._exit(0)  # what libraries do at the end takes seconds


def run(arguments: list[str], number: int, seconds: float) -> tuple[int, float]:
    begin = time.perf_counter()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until the fork is set up
    child = os.fork()
    if not child:
        work(arguments)
    if number:
        time.sleep(seconds)
        os.kill(child, number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, time.perf_counter() - begin


def work(arguments: list[str]) -> None:
    """Run the command in a fork and exit; a command that hangs prints its stack."""
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        sys.argv = ["prefill-router", *arguments]
        sys.stdout = sys.stderr
        main()
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        sys.stderr.flush()
        os._exit(code)
