"""The files that are named on the command line and the members of archives, within size limits.

Archives are read member by member in memory and nothing is ever extracted, so a member's path is
harmless. A member, or a JSON file, may have `MAX_DOCUMENT` bytes when unpacked, and an archive
`MAX_ARCHIVE` bytes in all, whatever its header claims.
"""

import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, final

from prefill_router.errors import FormatError

MAX_DOCUMENT = 2**29
"""The most bytes of one JSON file or archive member, unpacked."""
MAX_ARCHIVE = 2**36
"""The most bytes of one archive, unpacked."""
_BROKEN = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    RuntimeError,  # encrypted zips, and by a subclass unknown compression methods
    ValueError,
    OverflowError,
    KeyError,
    IndexError,
)


@final
class Document(NamedTuple):
    """A file, or a member of an archive, in memory.

    Attributes:
        name: The file, with the member after `!` where it is an archive.
        path: The path in the archive, or the file's.
        data: The bytes.
    """

    name: str
    path: PurePosixPath
    data: bytes


def expand(sources: Sequence[Path], suffixes: Sequence[str]) -> list[Path]:
    """The files of the sources: files as named, and the files in folders with these suffixes.

    Raises:
        FormatError: A source doesn't exist, or a folder holds no such file.
    """
    result: list[Path] = []
    for source in sources:
        if source.is_dir():
            paths = sorted(f for f in source.rglob("*") if _is_listed(f, suffixes))
            if not paths:
                raise FormatError(
                    f"holds no file whose name ends in {' or '.join(suffixes)}", file=source
                )
            result += paths
        elif source.is_file():
            result.append(source)
        else:
            raise FormatError("no such file or folder", file=source)
    return result


ZIPS: Final = (".zip", ".eval")
"""The names of zips; inspect_ai's logs are zips whose names end in `.eval`."""
_LITTLE, _BIG = b"\xff\xfe", b"\xfe\xff"


def encoding_of(head: bytes) -> str:
    """The encoding of a text by its first bytes: UTF-16 with or without a mark, else UTF-8."""
    if head[:2] in (_LITTLE, _BIG):
        return "utf-16"
    if len(head) < 2 or bool(head[0]) == bool(head[1]):
        return "utf-8-sig"
    return "utf-16-le" if head[0] else "utf-16-be"


def open_bytes(path: Path) -> io.BufferedReader:
    """A file's bytes, unpacked where its name ends in `.gz`."""
    if path.suffix.lower() == ".gz":
        return io.BufferedReader(gzip.open(path, "rb"))
    return path.open("rb")


@contextmanager
def open_text(path: Path, *, newline: str) -> Iterator[io.TextIOWrapper]:
    """A file's text in UTF-8 or UTF-16, unpacked where its name ends in `.gz`.

    Bytes that aren't UTF-8 become surrogates, as in `errors="surrogateescape"`.

    Raises:
        FormatError: The file is a broken gzip, or broken UTF-16.
    """
    try:
        with open_bytes(path) as file:
            encoding = encoding_of(file.read(2))
        errors = "surrogateescape" if encoding == "utf-8-sig" else "strict"
        with (
            open_bytes(path) as file,
            io.TextIOWrapper(file, encoding=encoding, errors=errors, newline=newline) as text,
        ):
            yield text
    except UnicodeDecodeError:
        raise FormatError("isn't valid UTF-16; save it as UTF-8", file=path) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(f"isn't a complete gzip: {first_line(error)}", file=path) from None


def documents(path: Path) -> Iterator[Document]:
    """A JSON file, plain or in gzip, or the JSON members of a zip, in order.

    Raises:
        FormatError: The file is broken, truncated, encrypted, or over a limit.
    """
    try:
        if path.suffix.lower() in ZIPS:
            yield from _zip_members(path)
        else:
            with open_bytes(path) as file:
                yield Document(str(path), PurePosixPath(path), _read_all(file.read, str(path)))
    except FormatError:
        raise
    except _BROKEN as error:
        raise FormatError(f"can't be read: {first_line(error)}", file=path) from None


def tar_documents(path: Path) -> Iterator[Document]:
    """The JSON members of a tar, plain or compressed, read as a stream.

    Raises:
        FormatError: The file is broken, truncated, or over a limit.
    """
    try:
        with tarfile.open(path, "r|*") as tar:
            total = 0
            for member in tar:
                total += member.size
                if total > MAX_ARCHIVE:
                    raise FormatError(
                        f"unpacks to more than {MAX_ARCHIVE:,} bytes; unpack what you need of it "
                        "yourself",
                        file=path,
                    )
                if member.isfile() and _is_json(PurePosixPath(member.name)):
                    name, file = f"{path}!{_make_printable(member.name)}", tar.extractfile(member)
                    if file is not None:
                        yield Document(name, PurePosixPath(member.name), _read_all(file.read, name))
    except FormatError:
        raise
    except _BROKEN as error:
        raise FormatError(f"isn't a complete tar: {first_line(error)}", file=path) from None


def parse(document: Document) -> Any:
    """The JSON of a document.

    Raises:
        FormatError: It isn't JSON in UTF-8 or UTF-16.
    """
    try:
        return json.loads(document.data.decode(encoding_of(document.data[:2])))
    except UnicodeDecodeError as error:
        line = document.data[: error.start].count(b"\n") + 1
        raise FormatError("isn't UTF-8; save it as UTF-8", file=document.name, line=line) from None
    except json.JSONDecodeError as error:
        raise FormatError(
            f"isn't JSON: {error.msg}", file=document.name, line=error.lineno
        ) from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"isn't JSON: {error}", file=document.name) from None


def parse_list(document: Document) -> list[Any]:
    """The JSON list of a document.

    Raises:
        FormatError: It isn't a JSON list.
    """
    value = parse(document)
    if not isinstance(value, list):
        raise FormatError(
            f"is a JSON {type(value).__name__}; it must be a list", file=document.name
        )
    return value


def _zip_members(path: Path) -> Iterator[Document]:
    with zipfile.ZipFile(path) as archive:
        total = 0
        for member in archive.infolist():
            inner = PurePosixPath(member.filename)
            if member.is_dir() or not _is_json(inner):
                continue
            name = f"{path}!{_make_printable(member.filename)}"
            with archive.open(member) as file:
                data = _read_all(file.read, name)
            total += len(data)
            if total > MAX_ARCHIVE:
                raise FormatError(f"unpacks to more than {MAX_ARCHIVE:,} bytes", file=path)
            yield Document(name, inner, data)


def _read_all(read: Callable[[int], bytes], name: str) -> bytes:
    """All bytes, in steps, so that a claimed size takes no memory before it is read."""
    pieces = io.BytesIO()
    while piece := read(2**20):
        pieces.write(piece)
        if pieces.tell() > MAX_DOCUMENT:
            raise FormatError(f"unpacks to more than {MAX_DOCUMENT:,} bytes", file=name)
    return pieces.getvalue()


def _is_listed(path: Path, suffixes: Sequence[str]) -> bool:
    return path.is_file() and path.name.lower().endswith(tuple(suffixes)) and path.name[0] != "."


def _is_json(path: PurePosixPath) -> bool:
    """Whether it is JSON, and not a metadata file that macOS adds to archives."""
    return path.suffix.lower() == ".json" and not path.name.startswith(".")


def _make_printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or the name of its class where it has no text."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
