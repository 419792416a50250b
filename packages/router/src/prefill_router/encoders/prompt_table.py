"""The distinct prompts of a dataset as planning needs them: a row of numbers each, not their texts.

Prompts are tokenised in blocks, and of each only its digest, its length and its place are kept. The
texts of a file of many queries are copied to lines that can be read one by one, since Parquet can
only be read in groups of rows. That copy and the table are kept in the cache, so that an encoding
that was interrupted goes on without tokenising all prompts again.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Int, Int32
from numpy.typing import NDArray

from prefill_router import files
from prefill_router.activations import Digests, key_digests
from prefill_router.data import Message, Query, QueryFile
from prefill_router.encoders.base import Encoder
from prefill_router.encoders.tokenisation import TokenizedPrompt
from prefill_router.errors import CorruptError
from prefill_router.progress import Progress, SilentProgress
from prefill_router.short_repr import short_repr

PLANS = "plans"
"""The folder of the tables in the cache."""
_LINES, _VERSION = "prompts.jsonl", 1
Places = Int[NDArray[np.int64], " prompt"]


class PromptTexts(ABC):
    """Finds queries by the places in a `PromptTable`."""

    @abstractmethod
    def at(self, places: Places) -> list[Query]:
        """The queries at these places, in order."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class PromptTable:
    """Distinct prompts, the longest first, and equally long ones by key.

    Attributes:
        keys: The digests of their content keys.
        places: Where `PromptTexts` finds a query with each prompt.
        lengths: The number of tokens, after truncation.
        truncated: Whether the prompt was truncated.
    """

    keys: Digests
    places: Places
    lengths: Int32[NDArray[np.int32], " prompt"]
    truncated: Bool[NDArray[np.bool_], " prompt"]

    @classmethod
    def of(cls, blocks: Iterable[tuple[Sequence[TokenizedPrompt], Places]]) -> "PromptTable":
        """The table of tokenised prompts, which may repeat, and their places, in blocks."""
        parts = [cls._of_block(prompts, places) for prompts, places in blocks]
        keys, places, lengths, truncated = map(np.concatenate, zip(*parts, strict=True))
        parts.clear()
        order = np.lexsort((keys, -lengths))
        sorted_keys = keys[order]
        first = np.ones(len(order), dtype=np.bool_)
        first[1:] = sorted_keys[1:] != sorted_keys[:-1]
        rows = order[first]
        return cls(sorted_keys[first], places[rows], lengths[rows], truncated[rows])

    @staticmethod
    def _of_block(
        prompts: Sequence[TokenizedPrompt], places: Places
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        return (
            key_digests([prompt.key for prompt in prompts]),
            places,
            np.array([len(prompt.ids) for prompt in prompts], dtype=np.int32),
            np.array([prompt.truncated for prompt in prompts], dtype=np.bool_),
        )

    def __len__(self) -> int:
        return len(self.keys)

    def chunks(self, budget: int, most: int) -> list[slice]:
        """Consecutive prompts within a budget of tokens (or one prompt), at most so many each."""
        total = np.cumsum(self.lengths, dtype=np.int64)
        slices, start = list[slice](), 0
        while start < len(self):
            before = total[start] - self.lengths[start]
            fitting = int(np.searchsorted(total, before + budget, side="right"))
            end = min(max(fitting, start + 1), start + most)
            slices.append(slice(start, min(end, len(self))))
            start = end
        return slices


@final
@dataclass(frozen=True, eq=False)
class QueryList(PromptTexts):
    """Queries in memory; a place is a position."""

    queries: Sequence[Query]

    def at(self, places: Places) -> list[Query]:
        """The queries at these positions."""
        return [self.queries[place] for place in places.tolist()]


@final
@dataclass(frozen=True, eq=False)
class QueryLines(PromptTexts):
    """Queries in a file, one a line, as JSON; a place is the offset of a line."""

    path: Path

    def at(self, places: Places) -> list[Query]:
        """The queries at these offsets.

        Raises:
            CorruptError: A line isn't what was written.
        """
        try:
            with self.path.open("rb") as file:
                return [_read_query(file, place) for place in places.tolist()]
        except (OSError, ValueError, TypeError) as error:
            raise CorruptError(
                f"{self.path} can't be read: {error}; remove its folder, and encode again"
            ) from None


def tokenise_queries(
    queries: Sequence[Query] | QueryFile,
    encoder: Encoder,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> tuple[PromptTable, PromptTexts]:
    """Tokenise all prompts, unless that was done before and is in the cache.

    Args:
        queries: The queries.
        encoder: The encoder.
        cache: The folder for tables of files; without it a file is read whole.
        progress: Shows the number of prompts done.

    Raises:
        PromptError: A prompt can't be encoded.
    """
    if isinstance(queries, QueryFile) and cache is not None:
        return _cached_table(queries, encoder, cache, progress or SilentProgress())
    query_list = [*chain(*queries.blocks())] if isinstance(queries, QueryFile) else queries
    prompts = encoder.tokenize(query_list)
    return PromptTable.of([(prompts, np.arange(len(query_list)))]), QueryList(query_list)


def _cached_table(
    queries: QueryFile, encoder: Encoder, cache: Path, progress: Progress
) -> tuple[PromptTable, PromptTexts]:
    """The table in the cache, where one process at a time makes what is missing."""
    identity = [_VERSION, files.file_digest(queries.path), encoder.provenance.to_dict()]
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    folder = cache / PLANS / name
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # the prompts are private
    with files.writer_lock(folder.parent, name, wait=True):
        table = _read(folder)
        if table is None:
            with files.replacing_folder(folder) as temporary:
                _write(_write_lines(queries, encoder, temporary / _LINES, progress), temporary)
            table = _read(folder)
    if table is None:
        raise CorruptError(f"{folder} isn't what was just written; check the disk")
    return table, QueryLines(folder / _LINES)


def _write_lines(
    queries: QueryFile, encoder: Encoder, lines: Path, progress: Progress
) -> PromptTable:
    """Tokenise block after block, and write the queries to lines."""

    def blocks() -> Iterator[tuple[list[TokenizedPrompt], Places]]:
        with lines.open("wb") as file, progress.task("prompts", total=len(queries)) as advance:
            for block in queries.blocks():
                begin = file.tell()
                sizes = [file.write(_encode_query(query)) for query in block]
                yield encoder.tokenize(block), begin + np.cumsum([0, *sizes[:-1]])
                advance(len(block))

    return PromptTable.of(blocks())


def _encode_query(query: Query) -> bytes:
    plain = query.prompt
    if not isinstance(plain, str):
        return json.dumps([query.id, [[m.role, m.content] for m in plain]]).encode() + b"\n"
    return json.dumps([query.id, plain]).encode() + b"\n"


def _read_query(file: Any, offset: int) -> Query:
    file.seek(offset)
    name, plain = json.loads(file.readline())
    prompt = plain if isinstance(plain, str) else tuple(Message(*turn) for turn in plain)
    return Query(name, prompt)


_COLUMNS = {"keys": "S16", "places": "<i8", "lengths": "<i4", "truncated": "?"}


def _write(table: PromptTable, folder: Path) -> None:
    for name, kind in _COLUMNS.items():
        getattr(table, name).astype(kind, copy=False).tofile(folder / name)
    files.write_checksums(folder, list(_COLUMNS))


def _read(folder: Path) -> PromptTable | None:
    """The table, if it is there and whole; each line is checked by its key when it is read."""
    try:
        files.verify_checksums(folder, list(_COLUMNS))
    except CorruptError:
        return None
    if not (folder / _LINES).is_file():
        return None
    return PromptTable(*(np.fromfile(folder / name, kind) for name, kind in _COLUMNS.items()))
