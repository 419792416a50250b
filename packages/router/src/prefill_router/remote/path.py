"""A path at a URL, read and written through fsspec, and copies of parts of objects in the cache.

Credentials come from the environment or the provider's own files, never from a URL. Errors of the
libraries are told in our own words, and the URLs that they quote are cut to their places. A part of
an object is copied to the cache when it is first read, under the SHA-256 of its content.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, final

from typing_extensions import TypeAliasType

from prefill_router import files
from prefill_router.errors import ConfigError, CorruptError, PrefillRouterError
from prefill_router.lazy_imports import EXTRAS, find_module
from prefill_router.progress import Progress, SilentProgress

Moved = Callable[[float], object]
"""Called with the bytes that were moved since the last call."""

_PROGRESS_BYTES = 8_000_000
_AT_ONCE = 64
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_S3 = ("s3", "s3a")
_CREATING = (*_S3, "gs", "gcs", "memory")
"""Schemes whose file system can write an object on the condition that there is none."""
_ONE_BY_ONE = ("hf",)
"""Schemes whose file system removes no list of objects."""
_ERRORS = (
    ("aiohttp.client_exceptions", "ClientError"),
    ("azure.core.exceptions", "AzureError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("huggingface_hub.errors", "HTTPError"),
)


@final
@dataclass(frozen=True)
class ObjectInfo:
    """An object, or a folder of objects.

    Attributes:
        size: Bytes.
        version: Differs once the object was replaced.
    """

    size: int
    version: str


@final
@dataclass(frozen=True)
class RemotePath:
    """A path at a URL. It isn't an `os.PathLike`, so that nothing takes it for one on the disk.

    Attributes:
        url: The URL, without a slash at its end.
        progress: Shows transfers of more than a few megabytes.
    """

    url: str
    progress: Progress = field(default=SilentProgress(), compare=False, repr=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(f"{self.url}/{name}", self.progress)

    def __reduce__(self) -> Any:  # what shows progress stays in its process
        return RemotePath, (self.url,)

    @property
    def scheme(self) -> str:
        """The URL's scheme, such as `s3`."""
        return self.url.partition("://")[0].lower()

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.url.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The last part of the path, without a suffix."""
        return PurePosixPath(self.name).stem

    def resolve(self) -> "RemotePath":
        """The path itself, since a URL is absolute."""
        return self

    def read(self) -> tuple[bytes, str] | None:
        """The object's content, and a version that is at least as old; None if there is none."""
        with self._open_system("read") as (system, path):
            try:
                version = _read_version(system.info(path))
                return bytes(system.cat_file(path)), version
            except FileNotFoundError:
                return None

    def entries(self, *, deep: bool = False) -> dict[str, ObjectInfo]:
        """The objects and folders here, or all objects below, by their names from here."""
        with self._open_system("list") as (system, path):
            system.invalidate_cache()
            try:
                listing = (system.find if deep else system.ls)(path, detail=True)
            except FileNotFoundError:
                return {}
        named = {info["name"].rstrip("/"): info for info in (listing.values() if deep else listing)}
        return {
            name.removeprefix(f"{path}/"): ObjectInfo(
                int(info.get("size") or 0), _read_version(info)
            )
            for name, info in named.items()
            if name != path  # a listing of an object is the object
        }

    def modified(self) -> datetime:
        """The time of the last change of the object."""
        with self._open_system("read") as (system, path):
            changed: datetime = system.modified(path)
            return changed

    def get(self, target: Path, moved: Moved) -> None:
        """Copy the object to a file.

        Raises:
            FileNotFoundError: There is no such object.
        """
        with self._open_system("read") as (system, path):
            system.get_file(path, str(target), callback=_make_callback(moved))

    def get_all(self, targets: Mapping[str, Path], moved: Moved) -> None:
        """Copy many small objects below to these files, several at once.

        Raises:
            FileNotFoundError: One is missing.
        """
        with self._open_system("read") as (system, path):
            names = list(targets)
            for start in range(0, len(names), _AT_ONCE):
                some = names[start : start + _AT_ONCE]
                system.get([f"{path}/{name}" for name in some], [str(targets[n]) for n in some])
                moved(sum(targets[name].stat().st_size for name in some))

    @staticmethod
    def ranges(wanted: Sequence[tuple["RemotePath", int, int]]) -> list[bytes]:
        """Parts of objects of one store, each `(object, start, stop)`, read at once.

        Raises:
            FileNotFoundError: An object is missing.
        """
        paths, starts, stops = map(list, zip(*wanted, strict=True))
        with paths[0]._open_system("read") as (system, _):
            names = [system._strip_protocol(path.url) for path in paths]
            return list(map(bytes, system.cat_ranges(names, starts, stops, on_error="raise")))

    def put(self, source: Path, moved: Moved) -> None:
        """Write the object; in an object store, it is seen whole or not at all."""
        with self._open_system("write") as (system, path):
            system.put_file(str(source), path, callback=_make_callback(moved))

    def exchange(self, content: bytes, before: tuple[bytes, str] | None) -> bool:
        """Write a small object unless it has changed; whether this was done.

        In S3 the condition is part of the request. In Google Cloud Storage this is so for a new
        object only, and elsewhere for none: there a change in the moment before isn't noticed.

        Args:
            content: The new content, which nobody else writes.
            before: What `read` returned.
        """
        options: dict[str, Any] = {}
        if before is None and self.scheme in _CREATING:
            options = {"mode": "create"}
        elif before is not None and self.scheme in _S3:
            options = {"IfMatch": before[1]}
        if not options and self.read() != before:
            return False
        with self._open_system("write") as (system, path):
            try:
                system.pipe_file(path, content, **options)
            except _list_failures():
                now = self.read()
                if now is None or now[0] != content:  # else a repeated request met its own effect
                    if now != before:
                        return False
                    raise
        return True

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects below."""
        with self._open_system("remove from") as (system, path):
            paths = [f"{path}/{name}" for name in names]
            if self.scheme in _ONE_BY_ONE:
                for one in paths:
                    system.rm_file(one)
            elif paths:
                system.rm(paths)

    @contextmanager
    def showing(self, label: str, size: float) -> Iterator[Moved]:
        """Show the progress of moving so many bytes, unless they are few."""
        if size < _PROGRESS_BYTES:
            yield lambda _: None
            return
        with self.progress.task(f"{label} {self.name}, MB", total=size / 1e6) as advance:
            yield lambda moved: advance(moved / 1e6)

    @contextmanager
    def _open_system(self, doing: str) -> Iterator[tuple[Any, str]]:
        """The file system and its path.

        Raises:
            MissingExtraError: The package of the file system isn't installed.
            ConfigError: It can't be reached, or refuses.
            FileNotFoundError: There is no such object, or nothing that could hold it.
        """
        try:
            yield self._file_system()
        except PrefillRouterError:
            raise
        except FileNotFoundError:
            if doing != "write":
                raise
            raise ConfigError(
                f"can't write {self}: there is no such bucket; create it first"
            ) from None
        except PermissionError as error:
            raise ConfigError(
                f"no permission to {doing} {self}: {_explain_failure(error)}; check the "
                "credentials in the environment, and what they may do there"
            ) from None
        except _list_failures() as error:
            raise ConfigError(
                f"can't {doing} {self}: {_explain_failure(error)}; check the URL, the "
                "connection, and the credentials and endpoint in the environment"
            ) from None

    def _file_system(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs
        from fsspec.registry import get_filesystem_class, known_implementations

        home = known_implementations.get(self.scheme, {"class": ""})["class"].partition(".")[0]
        if home in EXTRAS:
            find_module(home, needed_for=f"{self.scheme}://")
        try:
            get_filesystem_class(self.scheme)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"{self} can't be opened: {error}; there are s3://, gs://, hf:// and the others of "
                "fsspec"
            ) from None
        system, path = url_to_fs(self.url, use_listings_cache=False)
        return system, path.rstrip("/")


PathOrUrl = TypeAliasType("PathOrUrl", Path | RemotePath)
"""A path on the disk or at a URL."""


def location(place: PathOrUrl | str, *, progress: Progress | None = None) -> Path | RemotePath:
    """The place that a text names: a path on the disk, or one at a URL.

    Raises:
        ConfigError: The URL has a password or a query, or is none of an object store.
    """
    if isinstance(place, RemotePath):
        return place
    match = None if isinstance(place, Path) else _URL.fullmatch(place)
    if match is None:
        files.refuse_url(Path(place))
        return Path(place)
    redacted_place, authority = redact(str(place)), match[2].partition("/")[0]
    if ":" in authority.rpartition("@")[0] or "?" in match[2]:
        raise ConfigError(
            f"{redacted_place} was given with a password or a query; leave them out: "
            "credentials come from the environment"
        )
    if match[1].lower() in ("file", "local") or not match[2].strip("/"):
        raise ConfigError(
            f"{redacted_place} names no place; write s3://bucket/path, or a path on the disk"
        )
    return RemotePath(f"{match[1].lower()}://{match[2].rstrip('/')}", progress or SilentProgress())


def redact(text: str) -> str:
    """A text whose URLs have lost their users, passwords and queries."""
    return re.sub(r"(://)[^/\s@'\"]*@|\?[^\s'\"]*", r"\1", text)


def _list_failures() -> tuple[type[Exception], ...]:
    """The errors of file systems, those of the libraries that are loaded among them."""
    loaded = ((sys.modules.get(module), name) for module, name in _ERRORS)
    theirs = (getattr(module, name) for module, name in loaded if module)
    return (OSError, ValueError, RuntimeError, *theirs)


def _explain_failure(error: Exception) -> str:
    text = redact(" ".join(str(error).split()))[:300].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _read_version(info: Mapping[str, Any]) -> str:
    """What tells two contents of one object apart: the store's own mark, or else times and size."""
    for mark in ("ETag", "etag", "md5Hash", "blob_id"):
        if info.get(mark):
            return str(info[mark])
    return str([info.get(name) for name in ("created", "mtime", "modified", "size")])


def _make_callback(moved: Moved) -> Any:
    from fsspec.callbacks import Callback

    reported = 0

    def _report_moved(size: int | None, value: int, **_: Any) -> None:
        del size
        nonlocal reported
        moved(value - reported)
        reported = value

    return Callback(hooks={"tell": _report_moved})


_BATCH_BYTES = 256_000_000


@final
@dataclass(frozen=True)
class ObjectRange:
    """A part of an object.

    Attributes:
        path: The object.
        start: Its first byte.
        stop: The byte after its last.
        digest: SHA-256 of its content.
    """

    path: RemotePath
    start: int
    stop: int
    digest: str

    @property
    def copy(self) -> Path:
        """The file of its copy in the cache."""
        return files.default_cache() / "remote" / "parts" / self.digest

    def is_whole(self, content: bytes) -> bool:
        """Whether the content is what was written."""
        return hashlib.sha256(content).hexdigest() == self.digest


def fetch_ranges(wanted: Sequence[ObjectRange]) -> None:
    """Copy those parts of one store's objects to the cache that have no copy yet.

    Raises:
        CorruptError: An object is missing, or isn't what was written.
    """
    missing = [part for part in wanted if not part.copy.is_file()]
    if not missing:
        return
    total = sum(part.stop - part.start for part in missing)
    with missing[0].path.showing("downloading parts of", total) as moved:
        for batch in _make_batches(missing):
            for part, content in zip(batch, read_ranges(batch), strict=True):
                with files.replacing_file(part.copy) as temporary:
                    temporary.write_bytes(content)
                moved(len(content))


def read_ranges(wanted: Sequence[ObjectRange]) -> list[bytes]:
    """The content of parts of one store's objects, from the URL.

    Raises:
        CorruptError: An object is missing, or isn't what was written.
    """
    try:
        contents = RemotePath.ranges([(part.path, part.start, part.stop) for part in wanted])
    except FileNotFoundError:
        names = ", ".join(sorted({part.path.name for part in wanted}))
        raise CorruptError(f"{wanted[0].path} lacks one of {names}; copy it again") from None
    for part, content in zip(wanted, contents, strict=True):
        if not part.is_whole(content):
            raise CorruptError(
                f"{part.path} isn't what was written (the SHA-256 of its bytes from {part.start:,} "
                f"to {part.stop:,} differs); copy it again"
            )
    return contents


def _make_batches(parts: Sequence[ObjectRange]) -> Iterator[list[ObjectRange]]:
    """Parts that are read at once, within a limit of memory."""
    batch: list[ObjectRange] = []
    for part in parts:
        if sum(other.stop - other.start for other in [*batch, part]) > _BATCH_BYTES and batch:
            yield batch
            batch = []
        batch.append(part)
    yield batch
