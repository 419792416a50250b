"""Folders that are written as a whole: on the disk by a rename, at a URL by one small object.

    URL/generations/ID/...   the files of one write, which never change
    URL/CURRENT              JSON: the generation to read, and its files with sizes and SHA-256

`CURRENT` is written last, so that a reader finds either the old files or the new, even if the
writer is killed at any moment. The generation before stays until the next write, for those who are
reading it. Others are removed by a later writer once they are a day old, since until then they may
belong to a writer that is still at work. A folder without `CURRENT`, such as a copy by another
tool, is read as it is, and checked against its `SHA256SUMS` if it has one.

Readers copy the files that they need to the cache, check them, and go on as with a local folder.
"""

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import final
from uuid import uuid4

from prefill_router import files
from prefill_router.errors import CorruptError, PrefillRouterError, StoreError
from prefill_router.remote.path import PathOrUrl, RemotePath, location

POINTER = "CURRENT"
GENERATIONS = "generations"
ABANDONED_AFTER = timedelta(days=1)
_FORMAT = {"format": "prefill-router folder", "version": 1}
_ID = re.compile(r"[0-9a-f]{32}")
_LEFTOVER = re.compile(r"\..+\.([a-z0-9_]{8}\.(tmp|old)|lock)")
"""The names of locks, and of what isn't written yet."""
_ATTEMPTS = 3


@contextmanager
def reading(place: PathOrUrl | str, names: Sequence[str]) -> Iterator[Path]:
    """Yield a folder on the disk with those of these files that the place has, checked.

    Errors that are raised meanwhile name the place, not its copy.

    Raises:
        ConfigError: The URL can't be read.
        CorruptError: A file at the URL is missing, or isn't what was written.
    """
    place = location(place)
    if isinstance(place, Path):
        yield place
        return
    copy = _copy_files(place, names)
    try:
        yield copy
    except PrefillRouterError as error:
        error.reword(lambda message: message.replace(str(copy), str(place)))
        raise


@contextmanager
def replacing_folder(place: PathOrUrl | str, *, new: bool = False) -> Iterator[Path]:
    """Yield a temporary folder; on a clean exit it replaces the place, on an error it is removed.

    Args:
        place: A folder or URL.
        new: Whether nothing may be replaced.

    Raises:
        ConfigError: The URL can't be written; the message says where the files are kept.
        StoreError: Another process has replaced it meanwhile, or nothing may be replaced and
            something is there.
    """
    place = location(place)
    if new and not is_free(place):
        raise StoreError(f"{place} is there already; name another place")
    if isinstance(place, Path):
        with files.replacing_folder(place) as temporary:
            yield temporary
        return
    scratch = Path(tempfile.mkdtemp(prefix="prefill-router-"))
    try:
        before = None if new else (place / POINTER).read()
        yield scratch
        try:
            _publish_files(place, scratch, before)
        except PrefillRouterError as error:
            rescued = scratch.rename(scratch.with_name(f"{scratch.name}-kept"))
            error.reword(
                lambda message: f"{message}; the files that were to be written are in {rescued}"
            )
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def find_files(place: PathOrUrl | str, names: Sequence[str]) -> set[str]:
    """Those of these files that a folder has."""
    place = location(place)
    if isinstance(place, Path):
        return {name for name in names if (place / name).is_file()}
    return set(names) & _Contents.of(place).files.keys()


def is_free(place: PathOrUrl | str, *, own: Collection[str] = ()) -> bool:
    """Whether nothing is there except an empty folder or leftovers of killed writers.

    Args:
        place: A folder or URL.
        own: Names in it that don't count, since the writer makes them before it has finished.
    """
    place = location(place)
    if not isinstance(place, Path):
        return not place.entries().keys() - {GENERATIONS, *own}
    if not place.exists():
        return True
    return place.is_dir() and all(
        entry.name in own or _LEFTOVER.fullmatch(entry.name) for entry in place.iterdir()
    )


def check_place(place: PathOrUrl | str) -> None:
    """Check that a folder can be written there; worth doing before long work.

    Raises:
        ConfigError: It can't.
    """
    place = location(place)
    if isinstance(place, Path):
        files.check_place(place)
        return
    probe = place / GENERATIONS / uuid4().hex
    (probe / "probe").exchange(b"", None)
    probe.remove(["probe"])


@final
@dataclass(frozen=True)
class _StoredFile:
    size: int
    version: str
    digest: str | None


@final
@dataclass(frozen=True)
class _Contents:
    """The files of a folder at a URL, and the folder of their objects."""

    objects: RemotePath
    files: Mapping[str, _StoredFile]

    @classmethod
    def of(cls, place: RemotePath) -> "_Contents":
        pointer = (place / POINTER).read()
        if pointer is not None:
            return _read_pointer(place, pointer[0])
        entries = place.entries()
        if POINTER in entries:  # written since it was looked for
            return cls.of(place)
        listed = (place / files.CHECKSUMS).read() if files.CHECKSUMS in entries else None
        lines = [] if listed is None else listed[0].decode(errors="replace").splitlines()
        digests = dict(line.split("  ", 1)[::-1] for line in lines if "  " in line)
        return cls(
            place,
            {
                name: _StoredFile(info.size, info.version, digests.get(name))
                for name, info in entries.items()
            },
        )

    def key(self) -> str:
        """Differs for other contents."""
        versions = sorted((name, file.digest or file.version) for name, file in self.files.items())
        return hashlib.sha256(repr(versions).encode()).hexdigest()[:24]


def _read_pointer(place: RemotePath, content: bytes) -> _Contents:
    """What `CURRENT` names.

    Raises:
        CorruptError: It isn't what was written, or is of a newer format.
    """
    try:
        value = json.loads(content)
        if not _ID.fullmatch(value["generation"]) or value["version"] != _FORMAT["version"]:
            raise ValueError
        files_by_name = {
            name: _StoredFile(int(entry["bytes"]), str(entry["sha256"]), str(entry["sha256"]))
            for name, entry in value["files"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise CorruptError(
            f"{place / POINTER} isn't what was written, or is of a newer version; write the folder "
            "again"
        ) from None
    return _Contents(place / GENERATIONS / value["generation"], files_by_name)


def _copy_files(place: RemotePath, names: Sequence[str]) -> Path:
    """The cache's copy of these files, without those that the place doesn't have."""
    for _ in range(_ATTEMPTS):
        contents = _Contents.of(place)
        copy = files.default_cache() / "remote" / f"{place.name[:100]}-{contents.key()}"
        wanted = {name: contents.files[name] for name in names if name in contents.files}
        missing = {n: file for n, file in wanted.items() if not _is_whole(copy / n, file.digest)}
        try:
            with place.showing("downloading", sum(file.size for file in missing.values())) as moved:
                for name, file in missing.items():
                    with files.replacing_file(copy / name) as temporary:
                        (contents.objects / name).get(temporary, moved)
                        if file.digest and not _is_whole(temporary, file.digest):
                            raise CorruptError(
                                f"{contents.objects / name} isn't what was written (its SHA-256 "
                                "differs); copy or make the folder again"
                            )
        except FileNotFoundError:  # the folder was replaced since its list was read
            continue
        return copy
    raise CorruptError(f"{place} lacks some of {', '.join(names)}; copy or make the folder again")


def _is_whole(path: Path, digest: str | None) -> bool:
    return path.is_file() and (digest is None or files.file_digest(path) == digest)


def _publish_files(place: RemotePath, folder: Path, before: tuple[bytes, str] | None) -> None:
    """Upload a folder's files, and then the object that makes them the current ones."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    sizes = {name: (folder / name).stat().st_size for name in names}
    target = place / GENERATIONS / uuid4().hex
    with place.showing("uploading", sum(sizes.values())) as moved:
        for name in names:
            (target / name).put(folder / name, moved)
    pointer = {
        **_FORMAT,
        "generation": target.name,
        "files": {
            name: {"bytes": sizes[name], "sha256": files.file_digest(folder / name)}
            for name in names
        },
    }
    if not (place / POINTER).exchange(files.as_json(pointer).encode(), before):
        raise StoreError(f"{place} was replaced by another process meanwhile; name another place")
    try:
        _remove_old(place, names, before)
    except (PrefillRouterError, OSError):
        return  # what is left is left to the next writer


def _remove_old(place: RemotePath, names: Sequence[str], before: tuple[bytes, str] | None) -> None:
    """Remove old generations, and the files of a folder without generations that was replaced."""
    current = _Contents.of(place).objects.name
    in_use = (
        {current} if before is None else {current, _read_pointer(place, before[0]).objects.name}
    )
    place.remove([name for name in place.entries() if name in names])
    generations = place / GENERATIONS
    for name in generations.entries().keys() - in_use:
        left = list((generations / name).entries(deep=True))
        newest = max(((generations / name / entry).modified() for entry in left), default=None)
        if newest is not None and newest < datetime.now(UTC) - ABANDONED_AFTER:
            (generations / name).remove(left)
