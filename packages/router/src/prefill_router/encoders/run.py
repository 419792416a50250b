"""Encoding of a whole dataset into a store, resumable and shared between processes.

The distinct prompts, sorted by length and key, are divided into chunks; each chunk is one shard of
the store, written whole. The plan depends only on the prompts, so every process makes the same one,
and process i of n takes every n-th chunk. Prompts that are in the store aren't encoded again. A
plan holds some numbers for each prompt (`PromptTable`), and a chunk's text is read when its turn
comes.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from prefill_router.activations import (
    MANIFEST,
    SHARDS,
    ActivationStore,
    Layout,
    Provenance,
    Rounding,
    Site,
    key_digests,
    prepare_store,
    shard_folder,
    shard_name,
    write_shard,
)
from prefill_router.data import Query, QueryFile, RoutingDataset, prompt_key
from prefill_router.encoders.base import Encoder
from prefill_router.encoders.prompt_table import PromptTable, PromptTexts, tokenise_queries
from prefill_router.encoders.threads import default_threads
from prefill_router.errors import ConfigError, CorruptError, StoreError, name_option
from prefill_router.files import remove_stale_locks
from prefill_router.progress import Progress, SilentProgress
from prefill_router.remote import PathOrUrl, find_files, location
from prefill_router.short_repr import short_repr

CHUNK_TOKENS = 32_768
CHUNK_ROWS = 2048
_KEY_BYTES = 90
_SPARE_BYTES = 64 << 20
Chunk = Int[NDArray[np.int64], " prompt"]
"""The positions of a chunk's prompts in the table of a plan."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class EncodingPlan:
    """The work that `encode_dataset` will do.

    Attributes:
        out: The store.
        layout: The store's sites, width and type.
        table: All distinct prompts.
        texts: Finds the queries of the table.
        chunks: The chunks that are left for this process.
        in_store: The number of prompts that are in the store already.
    """

    out: PathOrUrl
    layout: Layout
    table: PromptTable
    texts: PromptTexts
    chunks: tuple[Chunk, ...]
    in_store: int

    @property
    def prompts(self) -> int:
        """The number of distinct prompts."""
        return len(self.table)

    @property
    def truncated(self) -> int:
        """The number of them that are truncated."""
        return int(self.table.truncated.sum())

    @property
    def total_tokens(self) -> int:
        """The tokens of all of them, after truncation."""
        return int(self.table.lengths.sum(dtype=np.int64))

    @property
    def left(self) -> int:
        """The number of prompts that this process will encode."""
        return sum(map(len, self.chunks))

    @property
    def tokens_left(self) -> int:
        """The number of tokens that this process will encode."""
        return sum(map(self.tokens_of, self.chunks))

    def tokens_of(self, chunk: Chunk) -> int:
        """The number of tokens of a chunk."""
        return int(self.table.lengths[chunk].sum(dtype=np.int64))

    def queries_of(self, chunk: Chunk) -> list[Query]:
        """A query for each prompt of a chunk, read now.

        Raises:
            CorruptError: The cache doesn't hold the prompts that were planned.
        """
        queries = self.texts.at(self.table.places[chunk])
        keys = key_digests([prompt_key(query.prompt) for query in queries])
        if not np.array_equal(keys, self.table.keys[chunk]):
            raise CorruptError(
                "the cache doesn't hold the prompts that were planned; remove its folder plans, "
                "and encode again"
            )
        return queries

    @property
    def bytes_left(self) -> int:
        """The disk space that this process will use, in bytes."""
        row = self.layout.tensor_bytes(1) * len(self.layout.sites) + _KEY_BYTES
        return self.left * row

    def check_space(self) -> None:
        """Check that there is enough disk space; the space at a URL isn't known.

        Raises:
            StoreError: There isn't.
        """
        if not isinstance(self.out, Path):
            return
        folder = next(p for p in [self.out.absolute(), *self.out.absolute().parents] if p.exists())
        free = shutil.disk_usage(folder).free
        if self.bytes_left and free < self.bytes_left + _SPARE_BYTES:
            place, layers = name_option("--out", "folder"), name_option("--layers")
            raise StoreError(
                f"{self.out} needs {self.bytes_left / 1e9:.2f} GB and the disk has "
                f"{free / 1e9:.2f} GB free; free some, choose another {place}, or fewer {layers}"
            )


@final
@dataclass(frozen=True)
class EncodingReport:
    """The result of an encoding run.

    Attributes:
        prompts: The number of prompts that were encoded.
        tokens: Their tokens, after truncation.
        seconds: The duration.
        workers: The most batches that were computed at once, each by one thread.
    """

    prompts: int
    tokens: int
    seconds: float
    workers: int = 1

    @property
    def tokens_per_second(self) -> float:
        """The speed; 0 where nothing was left to do."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


def plan_encoding(
    queries: RoutingDataset | Sequence[Query] | QueryFile,
    encoder: Encoder,
    out: PathOrUrl | str,
    *,
    sites: Sequence[Site],
    shard: tuple[int, int] = (0, 1),
    rounding: Rounding = "bfloat16",
    chunk_tokens: int = CHUNK_TOKENS,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> EncodingPlan:
    """Tokenise the queries, check what is in the store, and plan the rest.

    Nothing is written, except to the cache for a file of queries.

    Args:
        queries: The queries to encode.
        encoder: The encoder.
        out: The store, which need not exist.
        sites: The sites to read.
        shard: `(i, n)`: the i-th of n processes, from 0.
        rounding: The type that states are stored in.
        chunk_tokens: Tokens per shard of the store; an interruption loses at most one shard.
        cache: Keeps what was tokenised of a file, so that the next plan is made in seconds.
        progress: Shows the number of prompts of a file that are tokenised.

    Raises:
        PromptError: A prompt can't be encoded.
        ConfigError: A site can't be read, or `shard` is invalid.
        StoreError: The folder exists and isn't a store.
    """
    index, count = shard
    if not 0 <= index < count:
        raise ConfigError(f"the shard is {index}/{count}; for n processes it must be 0/n to n-1/n")
    encoder.check_sites(sites)
    query_source = queries.queries if isinstance(queries, RoutingDataset) else queries
    table, texts = tokenise_queries(query_source, encoder, cache=cache, progress=progress)
    place = location(out)
    is_stored = np.zeros(len(table), dtype=np.bool_)
    if find_files(place, [MANIFEST]):
        is_stored = ActivationStore.open(place).holds(table.keys)
    chunks = table.chunks(chunk_tokens, CHUNK_ROWS)[index::count]
    chunks_left = (part.start + np.flatnonzero(~is_stored[part]) for part in chunks)
    return EncodingPlan(
        place,
        Layout(tuple(sorted(set(sites))), encoder.provenance.hidden_size, rounding),
        table,
        texts,
        tuple(chunk for chunk in chunks_left if len(chunk)),
        int(is_stored.sum()),
    )


def run_encoding(
    plan: EncodingPlan,
    encoder: Encoder,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> EncodingReport:
    """Encode what a plan leaves to do. It can be interrupted, even killed, at any moment.

    Args:
        plan: The plan.
        encoder: The encoder.
        workers: The most batches at once on a processor, each by one thread; by default one for
            each core that this process may use. With 1, the encoder's own threads share each batch.
        progress: Shows the number of tokens done.

    Raises:
        ProvenanceError: The store holds states of another encoder, other sites or another type.
        StoreError: The folder isn't a store, the disk is full, or a state isn't finite.
    """
    prepare_encoding(plan, encoder.provenance)
    encoder.expect_tokens(plan.tokens_left, progress=progress)
    start = time.perf_counter()
    encoder = encoder.with_workers(workers or default_threads())
    with (progress or SilentProgress()).task("tokens", total=float(plan.tokens_left)) as advance:
        busy = list(plan.chunks)
        for wait in (False, True):  # chunks of other processes are skipped first, then waited for
            chunks, busy = busy, []
            for chunk in chunks:
                queries = plan.queries_of(chunk)
                if not encode_chunk(plan.out, plan.layout, encoder, queries, wait=wait):
                    busy.append(chunk)
                    continue
                advance(float(plan.tokens_of(chunk)))
    seconds = time.perf_counter() - start
    return EncodingReport(plan.left, plan.tokens_left, seconds, encoder.workers)


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


def prepare_encoding(plan: EncodingPlan, provenance: Provenance) -> None:
    """Make the store, check that it suits the plan, and remove what killed writers left there."""
    prepare_store(plan.out, provenance, plan.layout)
    plan.check_space()
    if isinstance(plan.out, Path):
        for folder in (plan.out, plan.out / SHARDS):
            remove_stale_locks(folder)


def encode_chunk(
    out: PathOrUrl, layout: Layout, encoder: Encoder, queries: Sequence[Query], *, wait: bool
) -> bool:
    """Encode queries and write their shard, unless it exists.

    Args:
        out: The store, which is prepared.
        layout: The store's sites, width and type.
        encoder: The encoder.
        queries: The queries of one chunk of a plan; their prompts are distinct.
        wait: Whether to wait while another process is writing this shard.

    Returns:
        False where another process is writing it.
    """
    keys = [prompt_key(query.prompt) for query in queries]
    with shard_folder(out, shard_name(keys), wait=wait) as folder:
        if isinstance(folder, Path):
            prompts = encoder.tokenize(queries)
            write_shard(
                folder,
                layout,
                keys=keys,
                tokens=np.array([prompt.count for prompt in prompts], dtype=np.int64),
                truncated=np.array([prompt.truncated for prompt in prompts], dtype=np.bool_),
                states=encoder.states(prompts, layout.sites),
            )
    return folder != "busy"
