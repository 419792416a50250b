"""Runs commands in forks of a process that has imported everything, and stops them.

Nothing of torch is run before a fork, since its threads don't survive one.

Run as a program, by its path. Each line of standard input is a run, [arguments, signal, seconds];
the line printed then is what came of it, [exit code, seconds]. After so many seconds the signal is
sent; signal 0 lets the command end.
"""

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from functools import partial

import torch
from transformers import AutoModel, AutoTokenizer, BertModel, PreTrainedTokenizerFast  # noqa: F401

from packages.router.tests.preload import preload
from prefill_router import encoders
from prefill_router.cli import main

preload("cli", "encoders", "evaluation", "features", "fitting", "reporting", "router")

with suppress(ModuleNotFoundError):
    from prefill_router_gateway.cli import learn

    learn._lower_priority = lambda **_: None  # other tests leave few idle moments
HANGS_AFTER = 100
"""Seconds."""


def work(arguments: list[str]) -> None:
    """The command, in a fork; never returns, and says where it is should it hang."""
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        sys.argv = ["prefill-router", *arguments]
        sys.stdout = sys.stderr
        main()
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Several shards, so that there is something to interrupt.
    encoders.plan_encoding = partial(encoders.plan_encoding, chunk_tokens=400)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(*json.loads(line))) + "\n")
        sys.stdout.flush()
