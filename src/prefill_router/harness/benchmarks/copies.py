"""Copies of a benchmark's files: one that is here, or the one on the Hugging Face hub.

Nothing of a repository is run: only data files are fetched, of one commit, and kept in the hub's
own cache.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import final

from prefill_router.errors import ConfigError, FormatError

_REFUSED = (401, 403)


class Copy(ABC):
    """The files of a benchmark."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Where the files are from, with the commit where that is known."""

    @abstractmethod
    def find(self, names: Sequence[str]) -> list[Path]:
        """The files, in any folder of it, whose name is like one of these; sorted."""

    def one_file(self) -> Path | None:
        """The file, where a single file was named instead of a copy of all."""
        return None

    def need(self, names: Sequence[str]) -> list[Path]:
        """The files whose name is like one of these.

        Raises:
            FormatError: There is none.
        """
        found = self.find(names)
        if not found:
            raise FormatError(f"holds no file named {' or '.join(names)}", file=self.name)
        return found


@final
@dataclass(frozen=True)
class LocalCopy(Copy):
    """Files that are here.

    Attributes:
        path: A folder, or the one file that holds the questions.
    """

    path: Path

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise FormatError("no such file or folder", file=self.path)

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def one_file(self) -> Path | None:
        """The file, unless it is a folder."""
        return None if self.path.is_dir() else self.path

    def find(self, names: Sequence[str]) -> list[Path]:
        """The files of the folder, or those beside the one file."""
        around = self.path.rglob("*") if self.path.is_dir() else self.path.parent.iterdir()
        return _like(list(around), names)


@final
class HubCopy(Copy):
    """Files of a dataset repository, fetched when they are asked for.

    Args:
        repository: Its name.
        revision: A branch, tag or commit; the newest where None.
    """

    def __init__(self, repository: str, *, revision: str | None) -> None:
        self._repository = repository
        self._revision = revision
        self._is_commit = False

    @property
    def name(self) -> str:
        """The repository, with the commit once something of it is here."""
        commit = f"@{self._revision}" if self._is_commit else ""
        return f"{self._repository}{commit}"

    def find(self, names: Sequence[str]) -> list[Path]:
        """The files, all of the commit that was newest when the first was fetched.

        Raises:
            ConfigError: The hub can't be reached, or refuses.
        """
        patterns = [pattern for name in names for pattern in (name, f"*/{name}")]
        folder = _fetch(self._repository, self._revision, patterns)
        self._revision, self._is_commit = folder.name, True
        return _like(list(folder.rglob("*")), names)


def _like(paths: Sequence[Path], names: Sequence[str]) -> list[Path]:
    return sorted(
        path for path in paths if path.is_file() and any(fnmatch(path.name, name) for name in names)
    )


def _fetch(repository: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        return Path(
            snapshot_download(
                repository, repo_type="dataset", revision=revision, allow_patterns=patterns
            )
        )
    except (HTTPError, OSError, ValueError) as error:
        raise ConfigError(
            f"{repository} can't be had from the hub: {_reason(error, repository)}. "
            "A copy of its files that you have will do: NAME=FOLDER"
        ) from None


def _reason(error: Exception, repository: str) -> str:
    """What went wrong and what to do, in own words: the library's quote headers and tokens."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return _reason(error.__cause__, repository)
    if isinstance(error, RevisionNotFoundError):
        return "it has no such revision; leave it out for the newest"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, GatedRepoError) or status in _REFUSED:
        return (
            f"it is given only to those who accepted its terms (HTTP {status}); log in at "
            f"https://huggingface.co/datasets/{repository}, accept them, make a token that may "
            "read, and set HF_TOKEN to it"
        )
    if isinstance(error, RepositoryNotFoundError):
        return "there is no such repository there"
    if status is not None:
        return f"the hub answers with an error (HTTP {status}); try again later"
    if isinstance(error, OSError) and error.filename:
        return f"{error.strerror}: {error.filename}"
    return (
        f"it can't be reached ({type(error).__name__}); check the connection, HF_ENDPOINT and "
        "HF_TOKEN, and unset HF_HUB_OFFLINE"
    )
