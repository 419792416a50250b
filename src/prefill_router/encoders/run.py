"""Encoding of a whole dataset into a store, resumable and shared between processes.

The distinct prompts, sorted by length and key, are divided into chunks; each chunk is one shard of
the store, written whole. The plan depends only on the prompts, so every process makes the same one,
and process i of n takes every n-th chunk. Prompts that are in the store aren't encoded again.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from prefill_router.activations import (
    MANIFEST,
    SHARDS,
    ActivationStore,
    Layout,
    Rounding,
    Site,
    prepare_store,
    shard_folder,
    shard_name,
    write_shard,
)
from prefill_router.data import Query, RoutingDataset
from prefill_router.encoders.base import Encoder, TokenizedPrompt, distinct
from prefill_router.errors import ConfigError, StoreError
from prefill_router.files import remove_stale_locks
from prefill_router.progress import Progress, SilentProgress
from prefill_router.remote import PathOrUrl, held_files, location
from prefill_router.short_repr import short_repr

CHUNK_TOKENS = 32_768
CHUNK_ROWS = 2048
_KEY_BYTES = 90
_SPARE_BYTES = 64 << 20
Chunk = tuple[TokenizedPrompt, ...]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class EncodingPlan:
    """The work that `encode_dataset` will do.

    Attributes:
        out: The store.
        layout: The store's sites, width and type.
        chunks: The chunks that are left for this process.
        prompts: The number of distinct prompts.
        done: The number of them that are in the store already.
        truncated: The number of them that are truncated.
        total_tokens: The tokens of all of them, after truncation.
    """

    out: PathOrUrl
    layout: Layout
    chunks: tuple[Chunk, ...]
    prompts: int
    done: int
    truncated: int
    total_tokens: int

    @property
    def left(self) -> int:
        """The number of prompts that this process will encode."""
        return sum(map(len, self.chunks))

    @property
    def tokens_left(self) -> int:
        """The number of tokens that this process will encode."""
        return sum(len(prompt.ids) for chunk in self.chunks for prompt in chunk)

    @property
    def bytes_left(self) -> int:
        """The disk space that this process will use, in bytes."""
        row = self.layout.tensor_bytes(1) * len(self.layout.sites) + _KEY_BYTES
        return self.left * row

    def check_space(self) -> None:
        """Check that there is enough disk space; of a store at a URL nothing is known.

        Raises:
            StoreError: There isn't.
        """
        if not isinstance(self.out, Path):
            return
        folder = next(p for p in [self.out.absolute(), *self.out.absolute().parents] if p.exists())
        free = shutil.disk_usage(folder).free
        if self.bytes_left and free < self.bytes_left + _SPARE_BYTES:
            raise StoreError(
                f"{self.out} needs {self.bytes_left / 1e9:.2f} GB and the disk has "
                f"{free / 1e9:.2f} GB free; free some, choose another --out, or fewer --layers"
            )


@final
@dataclass(frozen=True)
class EncodingReport:
    """The result of an encoding run.

    Attributes:
        prompts: The number of prompts that were encoded.
        tokens: Their tokens, after truncation.
        seconds: The duration.
    """

    prompts: int
    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """The speed; 0 where nothing was left to do."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


def plan_encoding(
    queries: RoutingDataset | Sequence[Query],
    encoder: Encoder,
    out: PathOrUrl | str,
    *,
    sites: Sequence[Site],
    shard: tuple[int, int] = (0, 1),
    rounding: Rounding = "bfloat16",
    chunk_tokens: int = CHUNK_TOKENS,
) -> EncodingPlan:
    """Tokenise the queries, check what is in the store, and plan the rest; writes nothing.

    Args:
        queries: The queries to encode.
        encoder: The encoder.
        out: The store, which need not exist.
        sites: The sites to read.
        shard: `(i, n)`: the i-th of n processes, from 0.
        rounding: The type that states are stored in.
        chunk_tokens: Tokens per shard of the store; an interruption loses at most one shard.

    Raises:
        PromptError: A prompt can't be encoded.
        ConfigError: A site can't be read, or `shard` is invalid.
        StoreError: The folder exists and isn't a store.
    """
    index, count = shard
    if not 0 <= index < count:
        raise ConfigError(f"the shard is {index}/{count}; for n processes it must be 0/n to n-1/n")
    encoder.check_sites(sites)
    given = queries.queries if isinstance(queries, RoutingDataset) else queries
    prompts = distinct(encoder.tokenize(given))
    place = location(out)
    held = _held(place, [prompt.key for prompt in prompts])
    chunks = _chunks(prompts, chunk_tokens)[index::count]
    left = [tuple(p for p in chunk if p.key not in held) for chunk in chunks]
    return EncodingPlan(
        place,
        Layout(tuple(sorted(set(sites))), encoder.provenance.hidden_size, rounding),
        tuple(chunk for chunk in left if chunk),
        len(prompts),
        len(held),
        sum(prompt.truncated for prompt in prompts),
        sum(len(prompt.ids) for prompt in prompts),
    )


def run_encoding(
    plan: EncodingPlan, encoder: Encoder, *, progress: Progress | None = None
) -> EncodingReport:
    """Encode what a plan leaves to do. It can be interrupted, even killed, at any moment.

    Raises:
        ProvenanceError: The store holds states of another encoder, other sites or another type.
        StoreError: The folder isn't a store, the disk is full, or a state isn't finite.
    """
    prepare_store(plan.out, encoder.provenance, plan.layout)
    plan.check_space()
    if isinstance(plan.out, Path):
        for folder in (plan.out, plan.out / SHARDS):
            remove_stale_locks(folder)
    start = time.perf_counter()
    with (progress or SilentProgress()).task("tokens", total=float(plan.tokens_left)) as advance:
        busy = list(plan.chunks)
        for wait in (False, True):  # chunks of other processes are skipped first, then waited for
            chunks, busy = busy, []
            for chunk in chunks:
                if not _encode_chunk(plan, encoder, chunk, wait=wait):
                    busy.append(chunk)
                    continue
                advance(float(sum(len(prompt.ids) for prompt in chunk)))
    return EncodingReport(plan.left, plan.tokens_left, time.perf_counter() - start)


def encode_dataset(
    queries: RoutingDataset | Sequence[Query],
    encoder: Encoder,
    out: PathOrUrl | str,
    *,
    sites: Sequence[Site],
    shard: tuple[int, int] = (0, 1),
    rounding: Rounding = "bfloat16",
    chunk_tokens: int = CHUNK_TOKENS,
    progress: Progress | None = None,
) -> ActivationStore:
    """Plan, encode, and open the store. The arguments are those of `plan_encoding`."""
    plan = plan_encoding(
        queries,
        encoder,
        out,
        sites=sites,
        shard=shard,
        rounding=rounding,
        chunk_tokens=chunk_tokens,
    )
    run_encoding(plan, encoder, progress=progress)
    return ActivationStore.open(out)


def _encode_chunk(plan: EncodingPlan, encoder: Encoder, chunk: Chunk, *, wait: bool) -> bool:
    """Encode and write a chunk, unless it exists; False if another process is writing it."""
    keys = [prompt.key for prompt in chunk]
    with shard_folder(plan.out, shard_name(keys), wait=wait) as folder:
        if isinstance(folder, Path):
            write_shard(
                folder,
                plan.layout,
                keys=keys,
                tokens=np.array([prompt.count for prompt in chunk], dtype=np.int64),
                truncated=np.array([prompt.truncated for prompt in chunk], dtype=np.bool_),
                states=encoder.states(chunk, plan.layout.sites),
            )
    return folder != "busy"


def _held(out: PathOrUrl, keys: list[str]) -> set[str]:
    if not held_files(out, [MANIFEST]):
        return set()
    return set(keys) - set(ActivationStore.open(out).missing(keys))


def _chunks(prompts: Sequence[TokenizedPrompt], budget: int) -> list[Chunk]:
    """Chunks within the budget (or of one prompt), the longest prompts first."""
    chunks: list[list[TokenizedPrompt]] = [[]]
    used = 0
    for prompt in sorted(prompts, key=lambda p: (-len(p.ids), p.key)):
        if chunks[-1] and (used + len(prompt.ids) > budget or len(chunks[-1]) >= CHUNK_ROWS):
            chunks.append([])
            used = 0
        chunks[-1].append(prompt)
        used += len(prompt.ids)
    return [tuple(chunk) for chunk in chunks if chunk]
