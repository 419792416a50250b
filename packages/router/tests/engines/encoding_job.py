"""Encodes with the workers of a cluster, no more shards than a file beside the store allows.

Run as a program, with the cluster's address and the store.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._large_world import LATENTS, LatentEncoder
from packages.router.tests.fakes.wrapped_encoder import WrappedEncoder
from prefill_router.activations import Provenance, Site
from prefill_router.data import Query
from prefill_router.encoders import (
    Encoder,
    EncodingPlan,
    States,
    TokenizedPrompt,
    plan_encoding,
    run_encoding_on,
)
from prefill_router.engines import RayEngine
from prefill_router.progress import BarProgress, Progress

SITES = [Site(layer, pooling) for layer in (1, 2) for pooling in ("last", "mean")]
EVERYTHING = 1000
"""More shards than there are."""


def plan_of(out: Path) -> EncodingPlan:
    """Some 35 chunks."""
    words = " ".join(str(10 + number) for number in range(LATENTS))
    queries = [Query(f"q{i}", f"{i} {words}{' more' * (i % 8)}") for i in range(120)]
    return plan_encoding(queries, LatentEncoder(8), out, sites=SITES, chunk_tokens=40)


def shards(store: Path) -> int:
    return len(list(store.glob("shards/[0-9a-f]*.json")))


def allow(store: Path, count: int) -> None:
    """Let workers write so many shards, and wait before those that follow."""
    allowed = store.with_suffix(".written")
    allowed.write_text(str(count))
    allowed.rename(store.with_suffix(".allowed"))


class GatedEncoder(WrappedEncoder):
    """Waits until a shard is allowed."""

    def __init__(self, inner: Encoder, store: Path) -> None:
        super().__init__(inner)
        self.store = store

    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> Mapping[Site, States]:
        while shards(self.store) >= int(self.store.with_suffix(".allowed").read_text()):
            time.sleep(0.02)
        return super().states(prompts, sites, progress=progress)


@dataclass(frozen=True)
class GatedSource:
    """Loads an encoder that waits until a shard is allowed."""

    inner: Any
    store: Path

    @property
    def provenance(self) -> Provenance:
        return self.inner.provenance

    def load(self, device: str) -> Encoder:
        return GatedEncoder(self.inner.load(device), self.store)


class LatentSource:
    """Loads the encoder of a made-up dataset."""

    provenance = LatentEncoder(8).provenance

    def load(self, device: str) -> Encoder:
        del device
        return LatentEncoder(8)


def encode(address: str, store: Path) -> None:
    source: Any = GatedSource(LatentSource(), store)
    engine = RayEngine(address=address, workers=(1, 2))
    run_encoding_on(engine, plan_of(store), source, progress=BarProgress())


if __name__ == "__main__":
    from packages.router.tests.engines import (
        encoding_job,  # so that workers find the encoder by its module
    )

    encoding_job.encode(sys.argv[1], Path(sys.argv[2]))
