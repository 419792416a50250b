"""Neighbour features of many queries: time and peak memory, against plain ways.

- ours: the family as it is fitted and read;
- plain: scikit-learn's brute-force search, then a loop over queries and targets, on fewer queries;
- numpy: all distances in float64 at once per block of queries, sorted; the search alone. Ours must
  find the same rows.

Each way runs in a process of its own, whose greatest resident set is measured. Times are of the
processor, so that they hold on a busy machine.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._system import machine
from prefill_router import files
from prefill_router.activations import MemoryActivations, Provenance, Site
from prefill_router.data import Query, RoutingDataset
from prefill_router.features import PromptStates
from prefill_router.features.neighbours import NeighboursConfig
from prefill_router.neighbours import NeighbourIndex
from prefill_router.targets import Pool, Target

RESULT = Path(__file__).parent / "results" / "neighbours.json"
TRAIN, HIDDEN, TARGETS, KS = 8000, 384, 14, (5, 10, 25, 50, 100)
NEEDED_GIB = 4.0
SITE = Site(6, "mean")
PROVENANCE = Provenance(
    encoder="made-up",
    revision="0",
    template="plain",
    template_hash="0",
    max_tokens=256,
    dtype="float32",
    num_layers=6,
    hidden_size=HIDDEN,
)


def make_queries(count: int, *, start: int = 0) -> tuple[list[Query], MemoryActivations]:
    """Queries, and their states: clusters, as embeddings have them."""
    queries = [Query(f"q{i}", f"Question {i}?") for i in range(start, start + count)]
    centres = np.random.default_rng(0).normal(size=(60, HIDDEN))
    random = np.random.default_rng(1 + start)
    states = np.empty((count, HIDDEN), dtype=np.float32)
    for at in range(0, count, 4096):
        some = states[at : at + 4096]
        some[:] = centres[random.integers(0, 60, len(some))] + random.normal(size=some.shape)
    keys = PromptStates.of([query.prompt for query in queries], []).keys
    counts = np.full(count, 5, dtype=np.int64)
    return queries, MemoryActivations(PROVENANCE, keys, {SITE: states}, counts)


def train_part() -> tuple[RoutingDataset, MemoryActivations]:
    """Train rows with labels, some missing."""
    queries, states = make_queries(TRAIN)
    random = np.random.default_rng(2)
    correct = random.integers(0, 2, (TRAIN, TARGETS)).astype(np.float64)
    correct[random.random(correct.shape) < 0.05] = np.nan
    pool = Pool(tuple(Target(name=f"target-{k}") for k in range(TARGETS)))
    return RoutingDataset.of(queries, pool, correct), states


def ours(count: int) -> dict[str, float]:
    """Fit, then read `count` queries."""
    train, states = train_part()
    queries, activations = make_queries(count, start=TRAIN)
    reading = PromptStates.of([query.prompt for query in queries], [activations])
    before = peak_gib()
    start = time.process_time()
    family = NeighboursConfig(encoder="made-up", ks=KS).fit(train, [states])
    fitted = time.process_time()
    columns = family.read(reading)
    end = time.process_time()
    return {
        "fit_seconds": fitted - start,
        "seconds_per_thousand": 1000 * (end - fitted) / count,
        "columns": columns.shape[1],
        "gib_of_the_inputs": before,
    }


def plain(count: int) -> dict[str, float]:
    """scikit-learn's search, and a loop."""
    from sklearn.neighbors import NearestNeighbors

    vectors, queries, correct = arrays(count)
    start = time.process_time()
    search = NearestNeighbors(n_neighbors=KS[-1], algorithm="brute").fit(vectors)
    distances, rows = search.kneighbors(queries)
    searched = time.process_time()
    for d, near in zip(distances, rows, strict=True):
        of_one(d.astype(np.float64), correct[near])
    end = time.process_time()
    return {
        "search_seconds_per_thousand": 1000 * (searched - start) / count,
        "seconds_per_thousand": 1000 * (end - start) / count,
    }


def of_one(distances: NDArray[np.float64], labels: NDArray[np.float64]) -> list[float]:
    """The four statistics of each K and target of one query."""
    columns = []
    for k in KS:
        for target in range(TARGETS):
            known = ~np.isnan(labels[:k, target])
            d, y = distances[:k][known], labels[:k, target][known]
            w = 1 / np.maximum(d, 1e-3 * distances[k - 1])
            far = distances[k - 1]
            columns += [
                y.mean() if len(y) else 0.5,
                (w * y).sum() / w.sum() if len(y) else 0.5,
                (y * d).sum() / y.sum() if y.any() else far,
                ((1 - y) * d).sum() / (1 - y).sum() if (1 - y).any() else far,
            ]
    return columns


def numpy_search(count: int) -> dict[str, float]:
    """All distances in float64, and whether the index finds the same rows."""
    vectors, queries, _ = arrays(count)
    wide, squares = vectors.astype(np.float64), (vectors.astype(np.float64) ** 2).sum(axis=1)
    start = time.process_time()
    nearest = np.empty((count, KS[-1]), dtype=np.int64)
    for at in range(0, count, 500):
        some = queries[at : at + 500].astype(np.float64)
        distances = (some**2).sum(axis=1)[:, None] + squares - 2 * some @ wide.T
        nearest[at : at + 500] = np.argsort(distances, axis=1, kind="stable")[:, : KS[-1]]
    seconds = time.process_time() - start
    index = NeighbourIndex.of(vectors)
    start = time.process_time()
    _, rows = index.search(queries, KS[-1])
    return {
        "search_seconds_per_thousand": 1000 * seconds / count,
        "ours_search_seconds_per_thousand": 1000 * (time.process_time() - start) / count,
        "rows_that_differ": int((rows != nearest).sum()),
    }


def arrays(count: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float64]]:
    """Vectors of length 1, of train rows and of queries, and the labels."""
    train, states = train_part()
    vectors, queries = states.states[SITE], make_queries(count, start=TRAIN)[1].states[SITE]
    lengths = [np.linalg.norm(v, axis=1, keepdims=True) for v in (vectors, queries)]
    return vectors / lengths[0], queries / lengths[1], train.correct


def peak_gib() -> float:
    """The greatest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


WAYS = {"ours": ours, "plain": plain, "numpy": numpy_search}


def in_child(way: str, count: int) -> dict[str, Any]:
    """What a way measured in a process of its own."""
    program = [sys.executable, "-m", "benchmarks.neighbours", "--way", way, "--queries", f"{count}"]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"queries": count, **measured}


def main() -> None:
    """Run the ways and keep the result, or one of them for its parent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--queries", type=int, default=100_000)
    parser.add_argument("--plain", type=int, default=2000, help="queries of the slow ways")
    parser.add_argument("--way", choices=sorted(WAYS))
    options = parser.parse_args()
    if options.way:
        print(json.dumps({**WAYS[options.way](options.queries), "peak_gib": peak_gib()}))
        return
    figures = in_child("ours", options.queries)
    slow = {way: in_child(way, options.plain) for way in ("plain", "numpy")}
    result: dict[str, Any] = {
        "what": f"neighbour features against {TRAIN} rows of {HIDDEN} numbers and {TARGETS} "
        f"targets, K in {list(KS)}",
        "ours": figures,
        "needed_gib": NEEDED_GIB,
        "met": figures["peak_gib"] < NEEDED_GIB,
        **slow,
        "times_as_fast_as_plain": slow["plain"]["seconds_per_thousand"]
        / figures["seconds_per_thousand"],
        "machine": {**machine(), "threads": os.environ.get("OMP_NUM_THREADS", "default")},
        "load_average": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(result, indent=1))
    files.write_json(RESULT, result)


if __name__ == "__main__":
    main()
