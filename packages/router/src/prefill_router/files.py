"""Atomic writes of files and folders (whole or not at all), and locks between writers.

Everything is written under a temporary name in the same folder, flushed to the disk and renamed. So
a reader finds either the old content or the new, even if the writer is killed at any moment.
Leftovers of killed processes, named `.NAME.xxxxxxxx.tmp`, are never read, and are removed when the
same path is next checked or written to. A leftover is recognised by its lock, which ended with its
writer. Where the file system has no locks, by not having changed for an hour.

`writer_lock` lets one process at a time write a file, in case two are given the same work. A lock
is released when its process ends, in whatever way. Where the file system has no locks, each process
must be given different work.
"""

import ctypes
import errno
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from prefill_router.errors import ConfigError, CorruptError

_ABANDONED_AFTER = 3600
_LONGEST_NAME = 240  # bytes; a temporary name is longer, and file systems allow 255
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
CHECKSUMS = "SHA256SUMS"
_LOOK = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_MOUNTS = Path("/proc/self/mountinfo")


@contextmanager
def replacing_file(path: Path, *, mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary path; on a clean exit it becomes `path`, on an error it is removed.

    The file gets the permissions `mode`, without those that the umask masks.
    """
    refuse_url(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path)
    temporary, descriptor = _make_temporary(path, ".tmp", is_folder=False)
    try:
        yield temporary
        _sync_to_disk(temporary)
        temporary.chmod(mode & ~_read_umask())
        temporary.replace(path)
        _sync_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder; on a clean exit it replaces `path`, whatever was there before.

    Where `path` is a symbolic link, the folder that it points to is replaced.
    """
    refuse_url(path)
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path)
    temporary, descriptor = _make_temporary(path, ".tmp", is_folder=True)
    try:
        yield temporary
        temporary.chmod(0o777 & ~_read_umask())
        for entry in temporary.rglob("*"):
            entry.chmod((0o777 if entry.is_dir() else 0o666) & ~_read_umask())
            _sync_to_disk(entry)
        _exchange_or_rename(temporary, path)
        _sync_to_disk(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(descriptor)


def check_place(path: Path, *, replaced: bool = True) -> None:
    """Check that a file or folder can be created here; worth doing before long work.

    Leftovers of killed writers of the same name are removed.

    Args:
        path: The file or folder; a symbolic link to a folder is followed.
        replaced: Whether it will be written as a whole, replacing what is there.

    Raises:
        ConfigError: A parent isn't a folder or isn't writable, the name is too long, or the path is
            a mount point, which can't be replaced.
    """
    refuse_url(path)
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise ConfigError(f"{path} can't be created: its name is too long; choose a shorter one")
    if path.is_dir():
        path = Path(os.path.realpath(path))
    if replaced and _is_mount(path):
        raise ConfigError(
            f"{path} is a mount point, which can't be replaced as a whole; name a path inside it, "
            f"such as {path / 'new'}, or another place"
        )
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise ConfigError(f"{path} can't be created: {parent} is a file; name another place")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{path} can't be created: {parent} isn't writable; name another place")
    remove_abandoned(path)


def refuse_url(path: Path) -> None:
    """Raise a `ConfigError` if a URL was made a path, which would be a folder such as `s3:`."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        raise ConfigError(
            f"{path} is a URL, and this must be a path on the disk; datasets, stores and routers "
            "alone may be at a URL, given as text"
        )


def _is_mount(path: Path) -> bool:
    """Whether the path is a mount point; includes bind mounts, also of files."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not on Linux
        return os.path.ismount(path)
    places = (line.split(" ")[4] for line in lines)
    there = str(path.absolute())
    return any(
        there == re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), place) for place in places
    )


def write_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write a text file, whole or not at all; `mode` as in `replacing_file`."""
    with replacing_file(path, mode=mode) as temporary:
        temporary.write_text(text, encoding="utf-8")


def as_json(value: Any) -> str:
    """The text of a JSON file; NaN is refused, since JSON has none."""
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all; NaN is refused, since JSON has none."""
    write_text(path, as_json(value))


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, names: list[str]) -> None:
    """Write `SHA256SUMS` for these files of a folder, as `sha256sum --check` reads it."""
    _write_checksums(folder, {name: file_digest(folder / name) for name in names})


def refresh_checksum(path: Path) -> None:
    """Update a file's line in its folder's `SHA256SUMS`, if it has one."""
    listed = read_checksums(path.parent) if (path.parent / CHECKSUMS).is_file() else {}
    if path.name in listed:
        listed[path.name] = file_digest(path)
        _write_checksums(path.parent, listed)


def verify_checksums(
    folder: Path, names: list[str], *, fix: str = "copy or make the folder again"
) -> None:
    """Check these files of a folder against its `SHA256SUMS`.

    Args:
        folder: The folder.
        names: The files.
        fix: The fix that an error offers.

    Raises:
        CorruptError: A file is missing, isn't listed, or isn't what was written.
    """
    listed = read_checksums(folder)
    for name in names:
        if not (folder / name).is_file():
            raise CorruptError(f"{folder} lacks the file {name}; {fix}")
        if name not in listed:
            raise CorruptError(f"{folder / CHECKSUMS} doesn't list {name}; copy the folder again")
        if file_digest(folder / name) != listed[name]:
            raise CorruptError(
                f"{folder / name} isn't what was written (its SHA-256 differs from {CHECKSUMS}); "
                f"{fix}"
            )


def read_checksums(folder: Path) -> dict[str, str]:
    """The digests in a folder's `SHA256SUMS`, by file.

    Raises:
        CorruptError: It isn't there, or isn't text.
    """
    try:
        text = (folder / CHECKSUMS).read_bytes().decode()
    except FileNotFoundError:
        raise CorruptError(f"{folder} lacks the file {CHECKSUMS}; copy the folder again") from None
    except UnicodeDecodeError:
        raise CorruptError(f"{folder / CHECKSUMS} isn't text; copy the folder again") from None
    pairs = [line.split("  ", 1) for line in text.split("\n") if "  " in line]
    return {name: digest for digest, name in pairs}


def _write_checksums(folder: Path, digests: dict[str, str]) -> None:
    lines = [f"{digests[name]}  {name}\n" for name in sorted(digests)]
    write_text(folder / CHECKSUMS, "".join(lines))


def _exchange_or_rename(new: Path, path: Path) -> None:
    """Replace `path` by `new`; afterwards `new` holds the old content, if there was any."""
    if not path.exists():
        try:
            new.rename(path)
            return
        except OSError:
            if not path.exists():  # else another process was faster, and its content is replaced
                raise
    if not _swap_paths(new, path):
        aside, descriptor = _make_temporary(path, ".old", is_folder=True)
        path.rename(aside / "old")
        new.rename(path)
        shutil.rmtree(aside)
        os.close(descriptor)


def _swap_paths(first: Path, second: Path) -> bool:
    """Swap two paths atomically (Linux's renameat2); False where the system can't."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    arguments = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if libc.renameat2(*arguments) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(code, os.strerror(code), str(second))


def remove_abandoned(path: Path) -> None:
    """Remove leftovers of killed writers of the same name.

    Old content that was moved aside is kept as long as nothing has replaced it.
    """
    pattern = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}\.(tmp|old)")
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:  # a folder can be writable without being readable
        return
    for match in filter(None, map(pattern.fullmatch, names)):
        if match[1] == "tmp" or path.exists():
            _remove_if_left(path.parent / match[0])


def _remove_if_left(left: Path) -> None:
    try:
        descriptor = os.open(left, _LOOK)
    except OSError:  # its writer has just finished, or it belongs to another user
        return
    try:
        state = take_lock(descriptor, wait=False)
        if state == "held" or (state == "unsupported" and _is_old(left)):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _is_old(left: Path) -> bool:
    try:
        newest = max(entry.lstat().st_mtime for entry in (left, *left.rglob("*")))
    except FileNotFoundError:  # its writer is alive and has renamed it
        return False
    return newest < time.time() - _ABANDONED_AFTER


def _make_temporary(path: Path, suffix: str, *, is_folder: bool) -> tuple[Path, int]:
    """A temporary name beside a path, and the open descriptor that holds its lock."""
    prefix, folder = f".{path.name}.", path.parent
    while True:
        if is_folder:
            temporary = Path(tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=folder))
            descriptor = os.open(temporary, os.O_RDONLY)
        else:
            descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=folder)
            temporary = Path(name)
        take_lock(descriptor, wait=True)
        if is_still(temporary, descriptor):
            return temporary, descriptor
        os.close(descriptor)  # another process removed it as a leftover before it was locked


def _sync_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


LockState = Literal["held", "busy", "unsupported"]
_HAS_LOCKS = importlib.util.find_spec("fcntl") is not None  # on Unix


def take_lock(descriptor: int, *, wait: bool) -> LockState:
    """Lock an open file or folder, until its descriptor is closed or the process ends."""
    if not _HAS_LOCKS:
        return "unsupported"
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return "busy"
    except OSError:
        return "unsupported"
    return "held"


def is_still(path: Path, descriptor: int) -> bool:
    """Whether this path still leads to the open file or folder."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


@contextmanager
def writer_lock(folder: Path, name: str, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a shard; yields False at once if another holds it and `wait` is false.

    Half-written files of an earlier, killed writer of the shard are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".{name}.lock"
    descriptor, state = _open_lock(path, wait=wait)
    try:
        if state == "held":
            _remove_unfinished(folder, name)
        yield state != "busy"
    finally:
        if state != "busy":
            path.unlink(missing_ok=True)
        os.close(descriptor)


def remove_stale_locks(folder: Path) -> None:
    """Remove the locks and half-written files of writers that were killed."""
    for path in folder.glob(".*.lock"):
        try:
            descriptor, state = _open_lock(path, wait=False)
        except PermissionError:  # another user's, who removes it
            continue
        if state == "held":
            _remove_unfinished(folder, path.name.removeprefix(".").removesuffix(".lock"))
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _remove_unfinished(folder: Path, name: str) -> None:
    for left in folder.glob(f".{name}.*.tmp"):
        _remove_if_left(left)


def _open_lock(path: Path, *, wait: bool) -> tuple[int, LockState]:
    """An open descriptor of the lock file, and the state of its lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        state = take_lock(descriptor, wait=wait)
        if state != "held" or is_still(path, descriptor):
            return descriptor, state
        os.close(descriptor)  # the previous holder has removed the file meanwhile


def default_cache() -> Path:
    """The default folder for what can be made again: encoded states, dequantised weights.

    `PREFILL_ROUTER_CACHE` if it is set, else `prefill-router` in the user's cache folder.
    """
    chosen = os.environ.get("PREFILL_ROUTER_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "prefill-router"
