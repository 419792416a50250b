"""A process that stays connected to a cluster, and calls what each line of its input names.

A line is JSON: a name and arguments. So is an answer, after `REPLY`. Ray prints there, too.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from packages.router.tests.commands import run
from packages.router.tests.engines import encoding_job
from packages.router.tests.engines.conftest import REPLY
from packages.router.tests.engines.ray_work import die, die_once, measure, on, refuse_task
from prefill_router import engines
from prefill_router.activations import Site
from prefill_router.engines import RayEngine
from prefill_router.errors import EngineError, PromptError, StoreError
from prefill_router.router import EncoderSources
from prefill_router.testing import FakeEncoder, make_routing_dataset
from prefill_router_lab.reproduce import ReproduceMeans, ReproduceOptions, reproduction, to_dict


def command(*words: str) -> dict[str, Any]:
    return vars(run(*words))


def encode(address: str, store: str) -> None:
    encoding_job.encode(address, Path(store))


def devices(address: str, folder: str) -> dict[str, Any]:
    """The devices that did the work, and the errors."""
    engine, refused = RayEngine(address=address, workers=(1, 1)), []
    make = partial(on, Path(folder), 2)
    results = list(engine.stream(make, range(40), gpu_workers=(1, 1)))
    engines.RETRIES, usual = 1, engines.RETRIES
    for items in ([-1], [-2]):
        try:
            list(engine.stream(partial(on, Path(folder), 1), items))
        except (StoreError, EngineError) as error:
            refused.append(f"{type(error).__name__}: {error}")
    engines.RETRIES = usual
    items = sorted(item for item, _ in results)
    return {
        "items": items,
        "devices": sorted({device for _, device in results}),
        "refused": refused,
    }


def count_held(address: str) -> int:
    """The most items that were taken from an endless supply and not done yet."""
    engine, supply_count, most = RayEngine(address=address, workers=(2, 2)), 0, 0

    def supply() -> Any:
        nonlocal supply_count
        while supply_count < 200:
            supply_count += 1
            yield np.zeros(1 << 20)

    for count, size in enumerate(engine.stream(measure, supply())):
        assert size == 1 << 20
        most = max(most, supply_count - count)
    return most


def tasks(address: str, folder: str) -> dict[str, Any]:
    """The results of tasks whose workers died, and the errors of tasks that refuse."""
    engine = RayEngine(address=address, workers=(2, 2))
    squares = engine.map(die_once, Path(folder), range(6), finish=lambda _, result: result)
    engines.RETRIES, usual = 1, engines.RETRIES
    refused = []
    for task in (refuse_task, die):
        try:
            engine.map(task, np.zeros(3), [7], finish=lambda _, result: result)
        except (PromptError, EngineError) as error:
            refused.append(f"{type(error).__name__}: {error}")
    engines.RETRIES = usual
    return {"squares": squares, "refused": refused}


def paper(address: str | None) -> str:
    """The paper's tables for three routers, on a cluster or in this process."""
    encoder = FakeEncoder()
    means = ReproduceMeans(
        encoders=("fake",), embedding="fake", sources=EncoderSources(loaded=(encoder,))
    )
    options = ReproduceOptions(seeds=2, resamples=20, dim=4, quick=True)
    sites = [Site(layer, pooling) for layer in range(2, 5) for pooling in ("last", "mean")]
    engine = None if address is None else RayEngine(address=address, workers=(2, 2))
    answers = make_routing_dataset(queries=100, seed=5)
    recipes = reproduction.make_recipes(means.encoders, means.embedding, options)
    few = {name: recipes[name] for name in ("SharedTrunkNet", "kNN majority", "kNN score")}
    with patch.object(reproduction, "make_recipes", return_value=few):
        runs = reproduction.reproduce(
            "mmlu-pro",
            answers,
            [encoder.encode(answers.queries, sites, rounding="float32")],
            options=options,
            means=means,
            studies=(),
            engine=engine,
        )
    return json.dumps(to_dict(runs), sort_keys=True)


def main() -> None:
    calls = {call.__name__: call for call in (command, encode, devices, count_held, tasks, paper)}
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        answer = calls[name](*arguments)  # type: ignore[operator]
        sys.stdout.write(f"{REPLY}{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
