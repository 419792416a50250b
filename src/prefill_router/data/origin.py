"""The origin of a dataset folder, recorded so that no other dataset is replaced by mistake."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import final

from prefill_router import files
from prefill_router.remote import PathOrUrl
from prefill_router.short_repr import short_repr

FILE = "origin.json"


@short_repr
@final
@dataclass(frozen=True)
class Origin:
    """The command that made a folder, and the sources that it read.

    Attributes:
        command: The command's name.
        sources: The last part of each source's name.
        digest: SHA-256 of the command and the sources' full names, which may be private.
    """

    command: str
    sources: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, command: str, *sources: PathOrUrl | str) -> "Origin":
        """The origin of a command's output; paths are made absolute."""
        whole = [s if isinstance(s, str) else str(s.resolve()) for s in sources]
        told = tuple(_text(s.resolve().name) for s in sources if not isinstance(s, str))
        return cls(command, told, hashlib.sha256(repr((command, whole)).encode()).hexdigest())

    @classmethod
    def read(cls, folder: Path) -> "Origin | None":
        """The origin of a folder; None where it isn't recorded."""
        try:
            value = json.loads((folder / FILE).read_bytes())
            return cls(value["command"], tuple(value["sources"]), value["digest"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def write(self, folder: Path) -> None:
        """Record the origin in a folder."""
        files.write_json(folder / FILE, {**vars(self), "sources": list(self.sources)})

    def __str__(self) -> str:
        return f"made by {self.command}{' from ' if self.sources else ''}{', '.join(self.sources)}"


def _text(name: str) -> str:
    """A name as valid text; a file name may contain bytes that aren't UTF-8."""
    return name.encode(errors="backslashreplace").decode()
