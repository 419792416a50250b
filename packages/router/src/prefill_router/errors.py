"""The exceptions of prefill-router.

Every message says what was wrong, what is accepted, and how to fix it.

    PrefillRouterError
    ├── ConfigError        options, pools or prices that contradict each other or make no sense
    │   ├── MissingExtraError   an optional package is needed and not installed
    │   └── PluginError    a part of another distribution can't be loaded
    ├── DataError          queries, labels or files of labels that can't be used
    │   ├── FormatError    a file isn't what its format says (carries the file and the line)
    │   ├── OverlapError   labels that an estimate needs couldn't be observed
    │   └── PromptError    one prompt can't be encoded (carries the query's id, never its text)
    ├── StoreError         a store of states, or a database, can't be used
    │   ├── CorruptError   what is on disk isn't what was written (also used for routers)
    │   └── ProvenanceError     states of another encoder, template, revision, layer or pooling
    ├── FitError           fitting has nothing to learn from, or didn't converge
    ├── EngineError        the workers that an engine runs work on died, again and again
    ├── SandboxError       programs can't be run safely here
    └── UpstreamError      an endpoint gave no answer (carries the reason, never the prompt or key)
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

EndpointFailure = Literal[
    "connect",
    "first_token_timeout",
    "answer_timeout",
    "rate_limited",
    "overloaded",
    "server_error",
    "broken_off",
    "malformed",
    "unauthorised",
    "unknown_model",
    "context_too_long",
    "unsupported",
    "refused",
]
"""Why an endpoint gave no answer, in the words of run databases and of receipts alike."""
FailureKind = Literal[EndpointFailure, "connect_timeout", "content_filter", "empty"]
"""The same, as `UpstreamError` says it; the guide on replies explains each."""
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


def upgrade_advice(newest: int) -> str:
    """What to do with a format that is newer than what this package reads.

    Args:
        newest: The newest version of the format that this package reads.
    """
    return (
        f"a newer prefill-router wrote it, and this one reads up to {newest}: upgrade this one, "
        "pip install --upgrade prefill-router"
    )


TROUBLESHOOTING = "docs/guides/troubleshooting.md"
"""The page "When something is wrong"."""


def refer(anchor: str) -> str:
    """Where to read on: a heading of the page "When something is wrong".

    Args:
        anchor: The heading as in its link, such as `disk-full`.
    """
    return f"see {TROUBLESHOOTING}#{anchor}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A suggestion, " (did you mean ...?)", of the most similar known name; empty where none is."""
    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


_IN_PYTHON = ContextVar("in_python", default=False)


@contextmanager
def addressing_python() -> Iterator[None]:
    """A context in which errors name arguments of functions, not options of the command line."""
    token = _IN_PYTHON.set(True)
    try:
        yield
    finally:
        _IN_PYTHON.reset(token)


def name_option(option: str, python: str | None = None) -> str:
    """An option, or words of an error with one, as the reader of the error would give it.

    Args:
        option: As on the command line, such as `--template plain`.
        python: As in Python, where `addressing_python` is; by default without hyphens.
    """
    if not _IN_PYTHON.get():
        return option
    name, space, value = option.removeprefix("--").partition(" ")
    return f"{name.replace('-', ' ')}{space}{value}" if python is None else python


class PrefillRouterError(Exception):
    """Base class of everything that this package raises on purpose.

    Args:
        messages: What is wrong: one message per problem, where several were found at once.

    Attributes:
        messages: The same messages; `str()` of the error has one line for each.
    """

    def __init__(self, *messages: str) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages

    def reword(self, change: Callable[[str], str]) -> None:
        """Change every message, where more is known than where the error was raised."""
        self.messages = tuple(map(change, self.messages))
        self.args = ("\n".join(self.messages),)

    def __reduce__(self) -> tuple[Any, ...]:
        """The error as another process gets it, whatever its class is made from."""
        return _restore_error, (type(self), self.args, self.__dict__)


def _restore_error(
    kind: type[PrefillRouterError], args: tuple[Any, ...], state: dict[str, Any]
) -> Any:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class ConfigError(PrefillRouterError):
    """Options, pools or prices that contradict each other or make no sense."""


class MissingExtraError(ConfigError):
    """An optional package is needed and not installed.

    Attributes:
        requirement: What to install, as `pip install` takes it.
    """

    def __init__(
        self,
        package: str,
        *,
        extra: str | None,
        needed_for: str,
        distribution: str = "prefill-router",
    ) -> None:
        requirement = f"--no-deps {package}" if extra is None else f"'{distribution}[{extra}]'"
        folder = distribution.removeprefix("prefill-router-").removeprefix("prefill-")
        here = "" if extra is None else f", or in a checkout './packages/{folder}[{extra}]'"
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed; "
            f"install it with: pip install {requirement}{here}"
        )
        self.package = package
        self.extra = extra
        self.requirement = requirement


class PluginError(ConfigError):
    """A part that another distribution adds can't be loaded."""


class DataError(PrefillRouterError):
    """Queries, labels or files of labels that can't be used."""


class FormatError(DataError):
    """A file isn't what its format says.

    Attributes:
        file: The file.
        line: The line (text) or record (JSON, Parquet) in it, from 1; None for the whole file.
    """

    def __init__(self, *messages: str, file: Path | str, line: int | None = None) -> None:
        place = f"{file}" if line is None else f"{file}:{line}"
        super().__init__(*(f"{place}: {message}" for message in messages))
        self.file = Path(file)
        self.line = line


class OverlapError(DataError):
    """Labels that an estimate needs had no chance to be observed, or too few were."""


class PromptError(DataError):
    """One prompt can't be encoded; the message names the query and never quotes the prompt."""

    def __init__(self, message: str, *, query_id: str) -> None:
        super().__init__(f"query {query_id!r}: {message}")
        self.query_id = query_id


class StoreError(PrefillRouterError):
    """A store of states, or of the gateway's receipts, can't be used."""


class CorruptError(StoreError):
    """What is on disk isn't what was written: a flipped byte, a truncated or missing file."""


class ProvenanceError(StoreError):
    """States that were made by another encoder, template, revision, layer or pooling."""


class FitError(PrefillRouterError):
    """Fitting has nothing to learn from, or didn't converge."""


class UpstreamError(PrefillRouterError):
    """An endpoint gave no answer, or only a part of one.

    Attributes:
        failure: Why there is no answer.
        status: The status of the HTTP response; None where none came.
        retry_after: Seconds until the next try, as the endpoint asked; None where it didn't.
        retriable: Whether the same call may succeed later.
        billed: Whether the call may have cost something; False where the endpoint refused before
            the first byte of an answer, or was never reached.
        partial: The part of the `Reply` that arrived; None where nothing did.
    """

    def __init__(
        self,
        message: str,
        *,
        failure: FailureKind,
        status: int | None = None,
        retry_after: float | None = None,
        retriable: bool = False,
        billed: Literal["no", "perhaps"] = "perhaps",
        partial: Any = None,
    ) -> None:
        super().__init__(message)
        self.failure = failure
        self.status = status
        self.retry_after = retry_after
        self.retriable = retriable
        self.billed = billed
        self.partial = partial


class EngineError(PrefillRouterError):
    """The workers that an engine runs work on died, again and again."""


class SandboxError(PrefillRouterError):
    """Programs can't be run safely here; none is run without the sandbox."""
