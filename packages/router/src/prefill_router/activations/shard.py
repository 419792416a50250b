"""Shards of a store, on the disk or at a URL: the states of some prompts at every site.

`NAME.safetensors` holds one tensor `[row, hidden]` per site. `NAME.json` is written after it and
commits it: it has the prompts' keys and token counts and the SHA-256 of each tensor. The expected
header of the tensors follows from the manifest and the number of rows, so it is compared byte by
byte. The JSON files of a store contain their own SHA-256, so that any flipped byte is detected.

Keys are looked up by 16-byte digests: 24 bytes for each key, where a dictionary takes 200. Half of
a SHA-256 is enough: among a billion keys, two have equal halves with a chance of 1e-21.

A shard at a URL is written on the disk and then uploaded, and is read one tensor at a time. Tensors
that were read are kept in the cache. There are no locks at a URL. Two writers that are given the
same shard both encode it; the one that ends last finds the other's and leaves it.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Bool, Float32, Int, Shaped
from numpy.typing import NDArray

from prefill_router import files
from prefill_router.activations.base import (
    ITEM_BYTES,
    SAFETENSORS_NAME,
    Rounding,
    pack,
    unpack,
)
from prefill_router.activations.sites import Site
from prefill_router.errors import CorruptError
from prefill_router.remote import ObjectRange, PathOrUrl, RemotePath, fetch_ranges, read_ranges

Digests = Shaped[NDArray[np.bytes_], " key"]
"""The digest of each key, of the type S16; they sort like the keys."""
_TYPE = "S16"
_HEXADECIMAL = 64
_AT_ONCE = 1 << 20


def key_digests(keys: Sequence[str]) -> Digests:
    """The first half of each key, which is a SHA-256 in hexadecimal; any other text is hashed."""
    joined = "".join(keys)
    raw = _bytes_of(joined)
    if raw.hex() != joined or any(len(key) != _HEXADECIMAL for key in keys):
        raw = b"".join(map(_digest, keys))
    halves: NDArray[Any] = np.frombuffer(raw, dtype=_TYPE)[::2]
    return halves.copy()


def _digest(key: str) -> bytes:
    raw = _bytes_of(key)
    if len(key) == _HEXADECIMAL and raw.hex() == key:
        return raw
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _bytes_of(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


@final
class KeyIndex:
    """The last position of each key among some, by digest.

    Args:
        digests: The keys' digests; they may repeat.
    """

    def __init__(self, digests: Digests) -> None:
        self._order = np.argsort(digests, kind="stable")
        self._sorted = digests[self._order]

    def __len__(self) -> int:
        """The number of distinct keys."""
        return int((self._sorted[1:] != self._sorted[:-1]).sum()) + bool(len(self._sorted))

    def find(self, digests: Digests) -> Int[NDArray[np.int64], " key"]:
        """The position of each key, or -1 where it is absent."""
        positions = np.full(len(digests), -1, dtype=np.int64)
        for start in range(0, len(digests) if len(self._sorted) else 0, _AT_ONCE):
            block = digests[start : start + _AT_ONCE]
            rising = np.argsort(block)  # near keys are searched one after another, ten times faster
            sorted_block = block[rising]
            place = np.searchsorted(self._sorted, sorted_block, side="right") - 1
            is_present = self._sorted[place] == sorted_block
            positions[start + rising[is_present]] = self._order[place[is_present]]
        return positions

    def holds(self, digests: Digests) -> Bool[NDArray[np.bool_], " key"]:
        """Whether each key is present."""
        present: NDArray[np.bool_] = self.find(digests) >= 0
        return present


_FIELD = "sha256"
_BLANK = "0" * 64


def checksummed_json(value: dict[str, Any]) -> str:
    """The text of a JSON file that contains its own digest."""
    body = json.dumps({_FIELD: _BLANK, **value}, allow_nan=False, ensure_ascii=True) + "\n"
    digest = hashlib.sha256(body.encode()).hexdigest()
    return body.replace(_BLANK, digest, 1)


def read_checksummed_json(path: Path) -> dict[str, Any]:
    """Read a JSON file whose text `checksummed_json` made.

    Raises:
        CorruptError: The file is missing, or isn't byte for byte what was written.
    """
    try:
        content = path.read_bytes()
        value = json.loads(content)
    except FileNotFoundError:
        raise CorruptError(f"{path} is missing; copy or make the store again") from None
    except (ValueError, RecursionError):  # not UTF-8, or not JSON
        raise CorruptError(f"{path} isn't JSON; {_FIX}") from None
    digest = value.get(_FIELD) if isinstance(value, dict) else None
    if not isinstance(digest, str) or len(digest) != len(_BLANK):
        raise CorruptError(f"{path} doesn't contain its SHA-256; {_FIX}")
    blanked = content.replace(digest.encode(), _BLANK.encode(), 1)
    if hashlib.sha256(blanked).hexdigest() != digest:
        raise CorruptError(f"{path} isn't what was written (its SHA-256 differs); {_FIX}")
    del value[_FIELD]
    return dict(value)


_FIX = "copy it again, or remove it and continue with: prefill-router encode"


_ALIGNMENT = 8
_LENGTH_BYTES = 8


@final
@dataclass(frozen=True)
class Layout:
    """What every shard of a store has in common.

    Attributes:
        sites: One tensor for each, in this order.
        hidden: Width of each row.
        rounding: The type of the numbers.
    """

    sites: tuple[Site, ...]
    hidden: int
    rounding: Rounding

    def tensor_bytes(self, rows: int) -> int:
        """Size of one site's tensor."""
        return rows * self.hidden * ITEM_BYTES[self.rounding]

    def shard_bytes(self, rows: int) -> int:
        """Size of a shard's safetensors file."""
        return len(self.header(rows)) + len(self.sites) * self.tensor_bytes(rows)

    def header(self, rows: int) -> bytes:
        """The header of a shard's safetensors file, up to the first number."""
        size = self.tensor_bytes(rows)
        tensors = {
            site.name: {
                "dtype": SAFETENSORS_NAME[self.rounding],
                "shape": [rows, self.hidden],
                "data_offsets": [i * size, (i + 1) * size],
            }
            for i, site in enumerate(self.sites)
        }
        text = json.dumps(tensors, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        return len(text).to_bytes(_LENGTH_BYTES, "little") + text


@dataclass(frozen=True, eq=False)
class Shard:
    """A committed shard.

    Attributes:
        path: Its safetensors file.
        layout: The layout of its store.
        keys: The digest of the content key of each row's prompt.
        tokens: The number of tokens of each prompt, before truncation.
        truncated: Whether each prompt was truncated.
        digests: SHA-256 of each site's tensor.
    """

    path: Path
    layout: Layout
    keys: Digests
    tokens: Int[NDArray[np.int64], " row"]
    truncated: Bool[NDArray[np.bool_], " row"]
    digests: Mapping[Site, str]

    def check_size(self) -> None:
        """Check, without reading it, that the safetensors file is there and complete.

        Raises:
            CorruptError: It is missing, or its size differs.
        """
        expected_size = self.layout.shard_bytes(len(self.keys))
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            raise CorruptError(f"{self.path} is missing; {self._fix}") from None
        if size != expected_size:
            reason = self._difference() or "it was truncated or extended"
            raise CorruptError(
                f"{self.path} has {size} bytes, but {expected_size} were written: {reason}; "
                f"{self._fix}"
            )

    def read(self, site: Site, *, verify: bool) -> Float32[NDArray[np.float32], "row hidden"]:
        """The tensor of one site; the others aren't read.

        Raises:
            CorruptError: The content isn't what was written.
        """
        rows = len(self.keys)
        header, size = self.layout.header(rows), self.layout.tensor_bytes(rows)
        try:
            with self.path.open("rb") as file:
                actual_header = file.read(len(header))
                file.seek(len(header) + self.layout.sites.index(site) * size)
                content = file.read(size)
        except FileNotFoundError:
            raise CorruptError(f"{self.path} is missing; {self._fix}") from None
        if actual_header != header:
            reason = self._difference() or "its header isn't what was written"
            raise CorruptError(f"{self.path}: {reason}; {self._fix}")
        if len(content) != size or (
            verify and hashlib.sha256(content).hexdigest() != self.digests[site]
        ):
            raise CorruptError(
                f"{self.path}: the tensor {site.name} isn't what was written "
                f"(its SHA-256 differs); {self._fix}"
            )
        return unpack(content, self.layout.rounding, self.layout.hidden)

    def verify(self) -> None:
        """Read every tensor and check it.

        Raises:
            CorruptError: The content isn't what was written.
        """
        self.check_size()
        for site in self.layout.sites:
            self.read(site, verify=True)

    @property
    def _fix(self) -> str:
        return (
            f"copy the store again, or remove {self.path.stem}.json beside it and continue with: "
            "prefill-router encode"
        )

    def _difference(self) -> str | None:
        """How the header of the file differs from the expected one, in words."""
        expected = _tensors(self.layout.header(len(self.keys)))
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            tensors = _tensors(bytes(_LENGTH_BYTES) + file.read(min(length, 1 << 26)))
        if tensors is None or expected is None:
            return None
        if tensors.keys() != expected.keys():
            return f"it holds the tensors {sorted(tensors)}; expected are {sorted(expected)}"
        for name, tensor in expected.items():
            if tensors[name] != tensor:
                return f"the tensor {name} is {tensors[name]}; expected is {tensor}"
        return None


def write_shard(
    folder: Path,
    layout: Layout,
    *,
    keys: Sequence[str],
    tokens: Int[NDArray[np.int64], " row"],
    truncated: Bool[NDArray[np.bool_], " row"],
    states: Mapping[Site, Float32[NDArray[np.float32], "row hidden"]],
) -> Path:
    """Write a shard: the tensors, then the JSON file that commits them.

    The name follows from the keys, so repeating the same work replaces the leftovers of an
    interrupted run.

    Raises:
        StoreError: A state is beyond the range of the store's type.
    """
    path = folder / f"{shard_name(keys)}.safetensors"
    digests = {}
    with files.replacing_file(path) as temporary, temporary.open("wb") as file:
        file.write(layout.header(len(keys)))
        for site in layout.sites:
            content = pack(states[site], layout.rounding).tobytes()
            digests[site.name] = hashlib.sha256(content).hexdigest()
            file.write(content)
    sidecar = {
        "keys": list(keys),
        "tokens": tokens.tolist(),
        "truncated": np.flatnonzero(truncated).tolist(),
        "tensors": digests,
    }
    files.write_text(path.with_suffix(".json"), checksummed_json(sidecar))
    return path


def read_shard(sidecar: Path, layout: Layout, *, kind: Callable[..., Shard] = Shard) -> Shard:
    """Read the JSON file of a shard, without its tensors.

    Args:
        sidecar: The file.
        layout: The layout of its store.
        kind: Makes the shard.

    Raises:
        CorruptError: Either file isn't what was written.
    """
    value = read_checksummed_json(sidecar)
    try:
        truncated = np.zeros(len(value["keys"]), dtype=np.bool_)
        truncated[np.array(value["truncated"], dtype=np.int64)] = True
        shard = kind(
            sidecar.with_suffix(".safetensors"),
            layout,
            key_digests(value["keys"]),
            np.array(value["tokens"], dtype=np.int64),
            truncated,
            {Site.parse(name): digest for name, digest in value["tensors"].items()},
        )
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, OverflowError) as error:
        raise CorruptError(f"{sidecar} lacks a field: {error}; copy the store again") from None
    if set(shard.digests) != set(layout.sites) or len(shard.tokens) != len(shard.keys):
        raise CorruptError(f"{sidecar} doesn't fit the store's manifest; copy the store again")
    shard.check_size()
    return shard


def shard_name(keys: Sequence[str]) -> str:
    """The name of the shard of these prompts."""
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:24]


def _tensors(header: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(header[_LENGTH_BYTES:])
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return {name: tensor for name, tensor in value.items() if name != "__metadata__"}


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
            problem = "is missing" if self.size is None else "was truncated or extended"
            raise CorruptError(
                f"{self.tensors} {problem}; copy the store again, or remove "
                f"{self.tensors.stem}.json beside it and continue with: prefill-router encode"
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
    entries = folder.entries()
    sidecars = {n: entry for n, entry in entries.items() if n.endswith(".json") and n[0] != "."}
    cache = files.default_cache() / "remote" / f"shards-{_short_digest(folder.url)}"
    copies = {
        n: cache / f"{_short_digest(entry.version)}-{n}" for n, entry in sorted(sidecars.items())
    }
    missing = {name: copy for name, copy in copies.items() if not copy.is_file()}
    if missing:
        _copy_sidecars(folder, missing, sum(sidecars[name].size for name in missing))
    shards = []
    for name, copy in copies.items():
        tensors = f"{name.removesuffix('.json')}.safetensors"
        size = entries[tensors].size if tensors in entries else None
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
                error.reword(lambda message: message.replace(scratch, folder.url))
                raise
            new[name].replace(copy)


def _short_digest(text: str) -> str:
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
