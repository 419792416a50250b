"""The exceptions of prefill-router.

Every one says what was got, what would do, and how to mend it.

    PrefillRouterError
    ├── ConfigError        options, pools or prices that contradict each other or make no sense
    │   └── MissingExtraError   an optional package is needed and not installed
    ├── DataError          queries, labels or files of labels that can't be used
    │   ├── FormatError    a file isn't what its format says (carries the file and the line)
    │   └── PromptError    one prompt can't be encoded (carries the query's id, never its text)
    ├── StoreError         a store of activations can't be used
    │   ├── CorruptError   what is on disk isn't what was written (also used for routers)
    │   └── ProvenanceError     states of another encoder, template, revision, layer or pooling
    └── FitError           fitting has nothing to learn from, or didn't converge
"""

from pathlib import Path


class PrefillRouterError(Exception):
    """Base of everything that this package raises on purpose."""


class ConfigError(PrefillRouterError):
    """Options, pools or prices that contradict each other or make no sense."""


class MissingExtraError(ConfigError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, *, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed; "
            f"install it with: pip install 'prefill-router[{extra}]'"
        )
        self.package = package
        self.extra = extra


class DataError(PrefillRouterError):
    """Queries, labels or files of labels that can't be used."""


class FormatError(DataError):
    """A file isn't what its format says.

    Attributes:
        file: The file.
        line: The line (text) or record (JSON, Parquet) in it, from 1; None for the whole file.
    """

    def __init__(self, message: str, *, file: Path | str, line: int | None = None) -> None:
        place = f"{file}" if line is None else f"{file}:{line}"
        super().__init__(f"{place}: {message}")
        self.file = Path(file)
        self.line = line


class PromptError(DataError):
    """One prompt can't be encoded; the message names the query and never quotes the prompt."""

    def __init__(self, message: str, *, query_id: str) -> None:
        super().__init__(f"query {query_id!r}: {message}")
        self.query_id = query_id


class StoreError(PrefillRouterError):
    """A store of activations can't be used."""


class CorruptError(StoreError):
    """What is on disk isn't what was written: a flipped byte, a truncated or missing file."""


class ProvenanceError(StoreError):
    """States that were made by another encoder, template, revision, layer or pooling."""


class FitError(PrefillRouterError):
    """Fitting has nothing to learn from, or didn't converge."""
