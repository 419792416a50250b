"""What a process that is going to be killed runs; apart, so that it can be started afresh."""

from pathlib import Path

from prefill_router.activations import Site
from prefill_router.data import RoutingDataset
from prefill_router.encoders import encode_dataset
from prefill_router.testing import FakeEncoder, make_routing_dataset

SITES = [Site(layer, p) for layer in (1, 2) for p in ("last", "mean")]


def dataset() -> RoutingDataset:
    return make_routing_dataset(queries=60)


def work(path: Path, shard: tuple[int, int], ready: object) -> None:
    queries, encoder = dataset(), FakeEncoder(num_layers=2, hidden_size=16)
    ready.set()  # type: ignore[attr-defined]
    encode_dataset(queries, encoder, path, sites=SITES, shard=shard, chunk_tokens=700)
