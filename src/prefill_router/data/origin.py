"""What a dataset folder was made of, so that another one isn't replaced by mistake."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import final

from prefill_router import files
from prefill_router.short_repr import short_repr

FILE = "origin.json"


@short_repr
@final
@dataclass(frozen=True)
class Origin:
    """The command that makes a folder and what it reads.

    Attributes:
        command: Its name.
        sources: What it reads, each by the last part of its name.
        digest: SHA-256 of the command and of its sources' whole names, which may be private.
    """

    command: str
    sources: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, command: str, *sources: Path | str) -> "Origin":
        """That of a command; a source that is a path is the same from every folder."""
        whole = [str(s.resolve()) if isinstance(s, Path) else s for s in sources]
        told = tuple(_text(s.resolve().name) for s in sources if isinstance(s, Path))
        return cls(command, told, hashlib.sha256(repr((command, whole)).encode()).hexdigest())

    @classmethod
    def read(cls, folder: Path) -> "Origin | None":
        """That of a folder; None where it tells none."""
        try:
            value = json.loads((folder / FILE).read_bytes())
            return cls(value["command"], tuple(value["sources"]), value["digest"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def write(self, folder: Path) -> None:
        """Note it in a folder."""
        files.write_json(folder / FILE, {**vars(self), "sources": list(self.sources)})

    def __str__(self) -> str:
        return f"made by {self.command}{' of ' if self.sources else ''}{', '.join(self.sources)}"


def _text(name: str) -> str:
    """A name as text; one of a file may hold bytes that are none."""
    return name.encode(errors="backslashreplace").decode()
