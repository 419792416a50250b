"""The store of hidden states on disk.

    STORE/
      manifest.json                the states' provenance, sites and type
      shards/NAME.safetensors      one tensor per site
      shards/NAME.json             the rows' prompts, and digests; written last, commits the shard

Everything is written whole or not at all, every file is checked against its SHA-256 when it is
read, and each site can be read without the others. Files that aren't committed are ignored.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Bool, Float32, Int
from numpy.typing import NDArray

from prefill_router.activations.base import ROUNDINGS, Activations, Provenance, Rounding
from prefill_router.activations.shard import (
    SHARDS,
    Digests,
    KeyIndex,
    Layout,
    Shard,
    checksummed_json,
    fetch_tensors,
    key_digests,
    read_checksummed_json,
    read_remote_shards,
    read_shard,
)
from prefill_router.activations.sites import Site
from prefill_router.errors import (
    ConfigError,
    CorruptError,
    ProvenanceError,
    StoreError,
    upgrade_advice,
)
from prefill_router.files import write_text, writer_lock
from prefill_router.remote import PathOrUrl, RemotePath, find_files, is_free, location, reading

MANIFEST = "manifest.json"
VERSION = 1


@final
class ActivationStore(Activations):
    """A store opened for reading; shards that are added after `open` aren't seen."""

    def __init__(
        self, path: PathOrUrl, provenance: Provenance, shards: Sequence[Shard], layout: Layout
    ) -> None:
        self._path = path
        self._provenance = provenance
        self._shards = tuple(shards)
        self._layout = layout
        self._starts = np.cumsum([0, *(len(shard.keys) for shard in self._shards)])
        self._index = KeyIndex(
            np.concatenate([key_digests(()), *(shard.keys for shard in self._shards)])
        )
        self._verified: set[tuple[int, Site]] = set()

    @classmethod
    def open(cls, path: PathOrUrl | str) -> "ActivationStore":
        """Open a store; of one at a URL, tensors are copied to the cache when they are first read.

        Raises:
            StoreError: There is no store.
            CorruptError: A file is missing, or isn't what was written.
            ConfigError: The URL can't be read.
        """
        place = location(path)
        with reading(place, [MANIFEST]) as folder:
            provenance, layout = read_manifest(folder)
        if isinstance(place, RemotePath):
            return cls(place, provenance, read_remote_shards(place / SHARDS, layout), layout)
        sidecars = sorted(p for p in (place / SHARDS).glob("*.json") if not p.name.startswith("."))
        return cls(place, provenance, [read_shard(p, layout) for p in sidecars], layout)

    @property
    def name(self) -> str:
        """The name for it in messages."""
        return f"the store {self._path}"

    @property
    def path(self) -> PathOrUrl:
        """The store's folder."""
        return self._path

    @property
    def provenance(self) -> Provenance:
        """How the states were made."""
        return self._provenance

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites whose states are available, sorted."""
        return self._layout.sites

    @property
    def rounding(self) -> Rounding:
        """The type that states are stored in."""
        return self._layout.rounding

    @property
    def keys(self) -> tuple[str, ...]:
        """The content keys of the prompts in the store, in the order of the shards."""
        sidecars = (shard.path.with_suffix(".json") for shard in self._shards)
        listed = (read_checksummed_json(path)["keys"] for path in sidecars)
        return tuple(dict.fromkeys(chain.from_iterable(listed)))

    def __len__(self) -> int:
        return len(self._index)

    def __repr__(self) -> str:
        content = f"{len(self):,} prompts, {len(self.sites)} sites of {self.provenance.encoder}"
        return f"<ActivationStore: {content}, in {self._path}>"

    def missing(self, keys: Iterable[str]) -> list[str]:
        """The keys among these whose states are missing, in order."""
        key_list = list(keys)
        absent = np.flatnonzero(~self.holds(key_digests(key_list)))
        return [key_list[place] for place in absent.tolist()]

    def holds(self, digests: Digests) -> Bool[NDArray[np.bool_], " key"]:
        """Whether the states of each of these keys, given by digest, are available."""
        return self._index.holds(digests)

    def read(self, site: Site, keys: Sequence[str]) -> Float32[NDArray[np.float32], "query hidden"]:
        """The states of these prompts at a site, in the order of the keys; keys may repeat.

        Raises:
            StoreError: Some states are missing.
            CorruptError: The content on disk isn't what was written.
        """
        shard_of, row_of = self._places(site, keys)
        fetch_tensors([self._shards[number] for number in np.unique(shard_of)], site)
        states = np.empty((len(keys), self._layout.hidden), dtype=np.float32)
        order = np.argsort(shard_of, kind="stable")
        ends = np.flatnonzero(np.diff(shard_of[order])) + 1
        for numbers in np.split(order, ends) if len(order) else ():
            tensor = self._tensor(int(shard_of[numbers[0]]), site)
            states[numbers] = tensor[row_of[numbers]]
        return states

    def tokens(self, keys: Sequence[str]) -> Int[NDArray[np.int64], " query"]:
        """The number of tokens of each prompt, with the template and before truncation."""
        counts = [np.zeros(0, dtype=np.int64), *(shard.tokens for shard in self._shards)]
        return np.concatenate(counts)[self._positions(self.sites[:1], keys)]

    def truncated(self, keys: Sequence[str]) -> int:
        """The number of these prompts that were truncated."""
        flags = [np.zeros(0, dtype=np.bool_), *(shard.truncated for shard in self._shards)]
        return int(np.concatenate(flags)[self._positions(self.sites[:1], keys)].sum())

    def verify(self) -> None:
        """Read everything and check it.

        Raises:
            CorruptError: A file isn't what was written.
        """
        for shard in self._shards:
            shard.verify()

    def _positions(
        self, sites: Sequence[Site], keys: Sequence[str]
    ) -> Int[NDArray[np.int64], " query"]:
        """The position of each key among the rows of all shards."""
        positions = self._index.find(key_digests(keys))
        if (positions < 0).any() or not set(sites) <= set(self.sites):
            for site in sites:
                self.require(site, keys)
        return positions

    def _places(
        self, site: Site, keys: Sequence[str]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        positions = self._positions([site], keys)
        shard_of = np.searchsorted(self._starts, positions, side="right") - 1
        return shard_of, positions - self._starts[shard_of]

    def _tensor(self, number: int, site: Site) -> Float32[NDArray[np.float32], "row hidden"]:
        place = (number, site)
        states = self._shards[number].read(site, verify=place not in self._verified)
        self._verified.add(place)
        return states


def read_manifest(path: Path) -> tuple[Provenance, Layout]:
    """The provenance of a store's states, and the layout of its shards.

    Raises:
        StoreError: There is no store.
        CorruptError: The manifest isn't what was written, or is of a newer format.
    """
    if not (path / MANIFEST).is_file():
        what = "isn't a store of states" if path.exists() else "doesn't exist"
        raise StoreError(f"{path} {what}; make it with: prefill-router encode DIR --out {path}")
    value = read_checksummed_json(path / MANIFEST)
    if value.get("version") != VERSION:
        raise CorruptError(
            f"{path / MANIFEST} has format {value.get('version')}; {upgrade_advice(VERSION)}"
        )
    try:
        provenance = Provenance(**value["provenance"])
        sites = tuple(Site.parse(name) for name in value["sites"])
        layout = Layout(sites, provenance.hidden_size, value["dtype"])
    except (KeyError, TypeError, ConfigError) as error:
        raise CorruptError(
            f"{path / MANIFEST} lacks a field: {error}; copy the store again"
        ) from None
    if layout.rounding not in ROUNDINGS:
        raise CorruptError(f"{path / MANIFEST} names the unknown type {layout.rounding!r}")
    return provenance, layout


def prepare_store(path: PathOrUrl, provenance: Provenance, layout: Layout) -> None:
    """Make an empty store, or check that states can be added to the existing one.

    Raises:
        ProvenanceError: It holds states of another encoder, other sites, or another type.
        StoreError: The folder holds something else.
        CorruptError: Its manifest isn't what was written.
        ConfigError: The URL can't be written.
    """
    if find_files(path, [MANIFEST]):
        with reading(path, [MANIFEST]) as folder:
            existing, existing_layout = read_manifest(folder)
        provenance.require(existing, what=f"the store {path}")
        if existing.computed_by != provenance.computed_by:
            raise ProvenanceError(
                f"the states in {path} were computed by {existing.computed_by or 'this package'}, "
                f"not by {provenance.computed_by or 'this package'}; give --out another folder"
            )
        if existing_layout != layout:
            raise ProvenanceError(
                f"the store {path} holds {_describe(existing_layout)}, not {_describe(layout)}; "
                "ask for the same, or give --out another folder"
            )
        return
    _refuse_others(path)
    manifest = {
        "format": "prefill-router activations",
        "version": VERSION,
        "provenance": provenance.to_dict(),
        "sites": [site.name for site in layout.sites],
        "dtype": layout.rounding,
    }
    if not _write_first(path, checksummed_json(manifest)):
        # another process, started at the same time, may need a different layout
        prepare_store(path, provenance, layout)


def _refuse_others(path: PathOrUrl) -> None:
    if isinstance(path, RemotePath):
        is_other = not is_free(path)
    else:
        is_other = path.is_dir() and any(not p.name.startswith(".") for p in path.iterdir())
        if path.exists() and not path.is_dir():
            raise StoreError(f"{path} is a file; a store is a folder: give --out another name")
    if is_other and not find_files(path, [MANIFEST]):  # it is one if another process was faster
        raise StoreError(f"{path} exists and isn't a store; give --out another folder")


def _write_first(path: PathOrUrl, manifest: str) -> bool:
    """Write a store's manifest, unless another process has done so; whether it was written."""
    if isinstance(path, RemotePath):
        return (path / MANIFEST).exchange(manifest.encode(), None)
    with writer_lock(path, MANIFEST, wait=True):
        is_first = not (path / MANIFEST).is_file()
        if is_first:
            write_text(path / MANIFEST, manifest)
    return is_first


def _describe(layout: Layout) -> str:
    return f"{', '.join(site.name for site in layout.sites)} as {layout.rounding}"
