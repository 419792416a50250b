"""A gateway is killed at any moment: all rows it reported as kept are whole.

Rows that it deleted for their age are gone with their scores.
"""

import json
import os
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from packages.gateway.tests.receipts import killed_writer
from packages.gateway.tests.receipts.example_receipts import (
    example_receipt,
    plain_values,
    receipt_id,
    write_receipts,
)
from prefill_router_gateway.receipts import Feedback, latest_feedback, read_receipts

pytestmark = pytest.mark.slow

PROGRAM = killed_writer.__name__
RUN_DISTANCE = 1_000_000
"""The distance between the numbers of two runs."""
OLD_NUMBERS = range(100 * RUN_DISTANCE, 100 * RUN_DISTANCE + 1500)
LONG_AGO = -5e9


@pytest.mark.parametrize("at_once", [1, 8])
def test_what_was_kept_survives_any_kill(tmp_path: Path, at_once: int) -> None:
    moments = random.Random(at_once)
    url = f"sqlite:///{tmp_path}/receipts.sqlite"
    write_receipts(
        tmp_path / "receipts.sqlite",
        [example_receipt(n, at=LONG_AGO) for n in OLD_NUMBERS],
        [Feedback(id=receipt_id(n), score=1, at=LONG_AGO + n % 2 * 1e10) for n in OLD_NUMBERS],
    )
    plans = [
        [url, run * RUN_DISTANCE, at_once, moments.randrange(60), moments.random() / 100]
        for run in range(12)
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(
        [sys.executable, "-m", PROGRAM],
        input="".join(json.dumps(plan) + "\n" for plan in plans),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stderr == ""
    ids_by_run = [set(json.loads(line)) for line in process.stdout.splitlines()]
    assert len(ids_by_run) == len(plans)
    assert sum(map(len, ids_by_run)) > 100  # enough rows that could be lost

    old = {receipt.choice.id for receipt in read_receipts(url, until=0)}
    assert len(old) < len(OLD_NUMBERS)  # some were deleted, each with its score
    assert old == latest_feedback(url).keys()

    stored_ids: dict[int, set[str]] = {run: set() for run in range(len(plans))}
    for receipt in read_receipts(url, since=0):
        number = int(receipt.choice.id.removeprefix("pr_"), 16)
        stored_ids[number // RUN_DISTANCE].add(receipt.choice.id)
        assert plain_values(receipt) == plain_values(example_receipt(number))
    for run, names in enumerate(ids_by_run):
        assert names <= stored_ids[run]
        assert len(stored_ids[run] - names) <= at_once  # not yet reported at the kill
    with closing(sqlite3.connect(tmp_path / "receipts.sqlite")) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
