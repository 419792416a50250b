"""Encoding by workers of an engine, each with an encoder of its own.

A worker writes the shards of its chunks itself, with the function that one process uses, and
returns only the number of tokens. So the states never pass through the driver, and the store's
shards are what remains of a run whose workers or driver died.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

from prefill_router.activations import Layout, Provenance
from prefill_router.data import Query
from prefill_router.encoders.base import Encoder
from prefill_router.encoders.encoder_names import EncoderName
from prefill_router.encoders.load import load_encoder_for
from prefill_router.encoders.run import (
    EncodingPlan,
    EncodingReport,
    encode_chunk,
    prepare_encoding,
)
from prefill_router.encoders.threads import default_threads
from prefill_router.engines import RayEngine
from prefill_router.progress import Progress, SilentProgress
from prefill_router.remote import PathOrUrl

_Piece = tuple[list[Query], int]
"""The queries of a chunk, and the number of their tokens."""


@final
@dataclass(frozen=True)
class EncoderSource:
    """What a worker needs to load the same encoder.

    Attributes:
        provenance: The provenance of the encoder's states; the worker's must be the same.
        name: Its name, address or folder; the hub id and revision of the provenance if not given.
        layers: The layers that will be read.
        batch_tokens: The most tokens, padding included, in one batch.
        trust_remote_code: Whether code that comes with the weights may run.
        compile_blocks: Whether blocks on a GPU may be compiled.
    """

    provenance: Provenance
    name: str | None = None
    layers: tuple[int, ...] | None = None
    batch_tokens: int | None = None
    trust_remote_code: bool = False
    compile_blocks: bool = True

    @classmethod
    def of(
        cls,
        encoder: Encoder,
        name: str,
        layers: tuple[int, ...] | None = None,
        batch_tokens: int | None = None,
        *,
        trust_remote_code: bool = False,
        compile_blocks: bool = True,
    ) -> "EncoderSource":
        """What loads this encoder elsewhere, which `load_encoder` loaded with these arguments."""
        made_by = encoder.provenance
        is_hub = not made_by.revision.startswith(("sha256:", "sampled:")) and (
            not EncoderName.parse(name).is_remote
        )
        source = None if is_hub else name
        return cls(made_by, source, layers, batch_tokens, trust_remote_code, compile_blocks)

    def load(self, device: str) -> Encoder:
        """Load the encoder.

        Raises:
            ProvenanceError: It is another one.
            ConfigError: It isn't found.
        """
        return load_encoder_for(
            self.provenance,
            layers=self.layers,
            source=self.name,
            device=device,
            batch_tokens=self.batch_tokens,
            trust_remote_code=self.trust_remote_code,
            compile_blocks=self.compile_blocks,
        )


def run_encoding_on(
    engine: RayEngine,
    plan: EncodingPlan,
    source: EncoderSource,
    *,
    gpu_workers: tuple[int, int] = (0, 0),
    progress: Progress | None = None,
) -> EncodingReport:
    """Encode what a plan leaves to do, by the workers of an engine.

    Workers, nodes and this process may be killed at any moment; the next run goes on from the
    shards that are there.

    Args:
        engine: Where the workers are. The store is at the same path for all of them.
        plan: The plan.
        source: The encoder.
        gpu_workers: The least and the most workers that have a GPU, beside the engine's others.
        progress: Shows the number of tokens done.

    Raises:
        ProvenanceError: The store holds states of another encoder, other sites or another type, or
            a worker has another encoder.
        StoreError: The folder isn't a store, the disk is full, or a state isn't finite.
        EngineError: The workers died again and again.
    """
    prepare_encoding(plan, source.provenance)
    start = time.perf_counter()
    make = partial(_writer, plan.out, plan.layout, source.load)
    pieces = ((plan.queries_of(chunk), plan.tokens_of(chunk)) for chunk in plan.chunks)
    with (progress or SilentProgress()).task("tokens", total=float(plan.tokens_left)) as advance:
        for tokens in engine.stream(make, pieces, gpu_workers=gpu_workers):
            advance(float(tokens))
    return EncodingReport(plan.left, plan.tokens_left, time.perf_counter() - start)


def _writer(
    out: PathOrUrl, layout: Layout, load: Callable[[str], Encoder], device: str
) -> Callable[[_Piece], int]:
    return partial(_write, out, layout, load(device).with_workers(default_threads()))


def _write(out: PathOrUrl, layout: Layout, encoder: Encoder, piece: _Piece) -> int:
    queries, tokens = piece
    encode_chunk(out, layout, encoder, queries, wait=True)
    return tokens
