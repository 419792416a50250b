"""Keeps receipts in forks of a process that has imported everything, and kills them.

Run as a program: `python -m packages.gateway.tests.receipts.killed_writer`. Each line of standard
input is a run, [database, first number, requests at once, ids, seconds]; when so many ids were told
to be kept, and so many seconds later, the fork is killed. The line printed then is the list of all
ids that it told.
"""

import asyncio
import json
import os
import signal
import sys
import time
import traceback

from packages.gateway.tests.receipts.receipts_made import made_receipt, name_of
from prefill_router_gateway.receipts import ReceiptWriter, open_store

KEPT_DAYS = 36_500
"""What is older is deleted meanwhile."""


async def serve(url: str, first: int, at_once: int, told: int) -> None:
    writer = ReceiptWriter(open_store(url), wait_seconds=60, keep_days=KEPT_DAYS)

    async def client(number: int) -> None:
        while True:
            if not await writer.keep(made_receipt(number)):
                raise RuntimeError(f"receipt {number} wasn't kept")
            os.write(told, f"{name_of(number)}\n".encode())
            number += at_once

    await asyncio.gather(*(client(first + n) for n in range(at_once)))


def run(url: str, first: int, at_once: int, ids: int, seconds: float) -> list[str]:
    heard, told = os.pipe()
    child = os.fork()
    if not child:
        try:
            asyncio.run(serve(url, first, at_once, told))
        finally:
            traceback.print_exc()
            os._exit(1)
    os.close(told)
    with os.fdopen(heard) as lines:
        names = [lines.readline().strip() for _ in range(ids)]
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        names += [line.strip() for line in lines if line.endswith("\n")]
    return names


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(*json.loads(line))) + "\n")
        sys.stdout.flush()
