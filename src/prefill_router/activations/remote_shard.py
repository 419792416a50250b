"""Shards at a URL, uploaded as they are written on the disk, and read one tensor at a time.

There are no locks at a URL. Two writers that are given the same shard both encode it; the one that
ends last finds the other's and leaves it. Tensors that are read are kept in the cache.
"""

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router import files
from prefill_router.activations.base import Site, unpack
from prefill_router.activations.shard import Layout, Shard, read_checksummed_json, read_shard
from prefill_router.errors import CorruptError
from prefill_router.remote import ObjectRange, PathOrUrl, RemotePath, fetch_ranges, read_ranges

SHARDS = "shards"


@final
@dataclass(frozen=True, eq=False)
class RemoteShard(Shard):
    """A committed shard at a URL.

    Attributes:
        tensors: The object of its tensors.
        size: The object's size; None where it is missing.
    """

    tensors: RemotePath
    size: int | None

    def check_size(self) -> None:
        """Check, without reading it, that the object is there and complete.

        Raises:
            CorruptError: It is missing, or its size differs.
        """
        if self.size != self.layout.shard_bytes(len(self.keys)):
            found = "is missing" if self.size is None else "was truncated or extended"
            raise CorruptError(
                f"{self.tensors} {found}; copy the store again, or remove {self.tensors.stem}.json "
                "beside it and continue with: prefill-router encode"
            )

    def part(self, site: Site) -> ObjectRange:
        """The part of the object that is one site's tensor."""
        rows = len(self.keys)
        size = self.layout.tensor_bytes(rows)
        start = len(self.layout.header(rows)) + self.layout.sites.index(site) * size
        return ObjectRange(self.tensors, start, start + size, self.digests[site])

    def read(self, site: Site, *, verify: bool) -> Float32[NDArray[np.float32], "row hidden"]:
        """The tensor of one site, by its copy in the cache.

        Raises:
            CorruptError: The content isn't what was written.
        """
        part = self.part(site)
        fetch_ranges([part])
        content = part.copy.read_bytes()
        if verify and not part.is_whole(content):
            raise CorruptError(f"{part.copy} isn't what was downloaded; remove it")
        return unpack(content, self.layout.rounding, self.layout.hidden)

    def verify(self) -> None:
        """Read every tensor from the URL and check it.

        Raises:
            CorruptError: The content isn't what was written.
        """
        self.check_size()
        for site in self.layout.sites:
            read_ranges([self.part(site)])


def fetch_tensors(shards: Sequence[Shard], site: Site) -> None:
    """Copy a site's tensors to the cache, those of shards at a URL, several at once."""
    fetch_ranges([shard.part(site) for shard in shards if isinstance(shard, RemoteShard)])


def read_remote_shards(folder: RemotePath, layout: Layout) -> list[Shard]:
    """The committed shards in a folder at a URL, without their tensors.

    Raises:
        CorruptError: A file is missing, or isn't what was written.
        ConfigError: The URL can't be read.
    """
    there = folder.entries()
    sidecars = {n: one for n, one in there.items() if n.endswith(".json") and n[0] != "."}
    cache = files.default_cache() / "remote" / f"shards-{_digest(folder.url)}"
    copies = {n: cache / f"{_digest(one.version)}-{n}" for n, one in sorted(sidecars.items())}
    missing = {name: copy for name, copy in copies.items() if not copy.is_file()}
    if missing:
        _copy_sidecars(folder, missing, sum(sidecars[name].size for name in missing))
    shards = []
    for name, copy in copies.items():
        tensors = f"{name.removesuffix('.json')}.safetensors"
        size = there[tensors].size if tensors in there else None
        kind = partial(RemoteShard, tensors=folder / tensors, size=size)
        shards.append(read_shard(copy, layout, kind=kind))
    return shards


def _copy_sidecars(folder: RemotePath, copies: dict[str, Path], size: int) -> None:
    """Copy the JSON files of shards to the cache, each whole or not at all."""
    cache = next(iter(copies.values())).parent
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        new = {name: Path(scratch) / name for name in copies}
        with folder.showing("downloading", size) as moved:
            folder.get_all(new, moved)
        for name, copy in copies.items():
            try:
                read_checksummed_json(new[name])
            except CorruptError as error:
                error.retell(lambda told: told.replace(scratch, folder.url))
                raise
            new[name].replace(copy)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def shard_folder(
    store: PathOrUrl, name: str, *, wait: bool
) -> Iterator[Path | Literal["busy", "done"]]:
    """Yield the folder to write a shard into; at a URL it is uploaded on a clean exit.

    It yields "done" if the shard exists, and "busy" if another process is writing it.

    Args:
        store: The store.
        name: The shard's name.
        wait: Whether to wait for another process.

    Raises:
        ConfigError: The URL can't be written.
    """
    if isinstance(store, Path):
        with files.writer_lock(store / SHARDS, name, wait=wait) as is_mine:
            is_done = is_mine and (store / SHARDS / f"{name}.json").is_file()
            yield ("done" if is_done else store / SHARDS) if is_mine else "busy"
        return
    sidecar = store / SHARDS / f"{name}.json"
    if sidecar.read() is not None:
        yield "done"
        return
    with tempfile.TemporaryDirectory(prefix="prefill-router-") as scratch:
        yield Path(scratch)
        if sidecar.read() is None:  # else its tensors may not be replaced any more
            for suffix in ("safetensors", "json"):
                source = Path(scratch) / f"{name}.{suffix}"
                with sidecar.showing("uploading", source.stat().st_size) as moved:
                    (store / SHARDS / source.name).put(source, moved)
