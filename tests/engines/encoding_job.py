"""Encodes with the workers of a cluster, slowly enough to be killed meanwhile.

Run as a program, with the cluster's address, the encoder's folder and the store.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefill_router.activations import Provenance, Site
from prefill_router.data import Query, RoutingDataset
from prefill_router.encoders import (
    Encoder,
    EncoderSource,
    EncodingPlan,
    TokenizedPrompt,
    load_encoder,
    plan_encoding,
    run_encoding_on,
)
from prefill_router.engines import RayEngine
from prefill_router.progress import BarProgress
from prefill_router.testing import make_routing_dataset

SITES = [Site(layer, pooling) for layer in (1, 2) for pooling in ("last", "mean")]
SECONDS = 0.3


def dataset() -> RoutingDataset:
    return make_routing_dataset(queries=120)


def plan_of(encoder: Encoder, out: Path) -> EncodingPlan:
    """Some 30 chunks."""
    return plan_encoding(dataset(), encoder, out, sites=SITES, chunk_tokens=400)


@dataclass
class SlowSource:
    """Loads an encoder that takes some time for every chunk."""

    source: EncoderSource

    @property
    def provenance(self) -> Provenance:
        return self.source.provenance

    def load(self, device: str) -> Any:
        return SlowEncoder(self.source.load(device))


@dataclass
class SlowEncoder:
    encoder: Encoder

    def tokenize(self, queries: list[Query]) -> list[TokenizedPrompt]:
        return self.encoder.tokenize(queries)

    def states(self, prompts: list[TokenizedPrompt], sites: list[Site]) -> Any:
        time.sleep(SECONDS)
        return self.encoder.states(prompts, sites)


def main() -> None:
    address, folder, out = sys.argv[1:]
    encoder = load_encoder(folder)
    engine = RayEngine(address=address, workers=(1, 2))
    slow: Any = SlowSource(EncoderSource.of(encoder, folder))
    run_encoding_on(engine, plan_of(encoder, Path(out)), slow, progress=BarProgress())


if __name__ == "__main__":
    from tests.engines import encoding_job  # so that workers find the encoder by its module

    encoding_job.main()
