"""Encoding in other processes, one of which kills itself at a given step."""

import os
import signal
import sys
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from prefill_router.activations import Site
from prefill_router.data import RoutingDataset
from prefill_router.encoders import encode_dataset
from prefill_router.testing import FakeEncoder, make_routing_dataset

SITES = [Site(layer, p) for layer in (1, 2) for p in ("last", "mean")]


def dataset() -> RoutingDataset:
    return make_routing_dataset(queries=36)


def work(path: Path, shard: tuple[int, int]) -> None:
    encoder = FakeEncoder(num_layers=2, hidden_size=16)
    encode_dataset(dataset(), encoder, path, sites=SITES, shard=shard, chunk_tokens=800)


def work_until(path: Path, last_step: int, steps: Synchronized) -> None:
    """Work until a step, then die; a step is the call of a function, or its return."""
    count = 0

    def step(*_: object) -> None:
        nonlocal count
        count += 1
        if count == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(step)
    work(path, (0, 1))
    sys.setprofile(None)
    steps.value = count
