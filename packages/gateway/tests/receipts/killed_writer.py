"""Keep receipts in forks of a process that has imported everything, and kill the forks.

Run as a program: `python -m packages.gateway.tests.receipts.killed_writer`. Each line of standard
input is a run, [database, first number, requests at once, ids, seconds]. The fork is killed
`seconds` after it has reported that many ids as kept. The printed line is the list of all ids that
it reported.
"""

import asyncio
import json
import os
import signal
import sys
import time
import traceback

from packages.gateway.tests.receipts.example_receipts import example_receipt, receipt_id
from prefill_router_gateway.receipts import ReceiptWriter, open_store

KEEP_DAYS = 36_500
"""Older receipts are deleted while the fork writes."""


async def serve(url: str, first: int, at_once: int, ids_out: int) -> None:
    writer = ReceiptWriter(open_store(url), wait_seconds=60, keep_days=KEEP_DAYS)

    async def client(number: int) -> None:
        while True:
            if not await writer.keep(example_receipt(number)):
                raise RuntimeError(f"receipt {number} wasn't kept")
            os.write(ids_out, f"{receipt_id(number)}\n".encode())
            number += at_once

    await asyncio.gather(*(client(first + n) for n in range(at_once)))


def run(url: str, first: int, at_once: int, ids: int, seconds: float) -> list[str]:
    ids_in, ids_out = os.pipe()
    child = os.fork()
    if not child:
        try:
            asyncio.run(serve(url, first, at_once, ids_out))
        finally:
            traceback.print_exc()
            os._exit(1)
    os.close(ids_out)
    with os.fdopen(ids_in) as lines:
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
