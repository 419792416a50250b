"""The options of commands whose work an engine can run: `--engine` and what belongs to it."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from prefill_router.cli.application import out
from prefill_router.cli.usage import UsageError, one_of

if TYPE_CHECKING:
    from prefill_router.engines import RayEngine

Command = TypeVar("Command", bound=Callable[..., None])
ENGINES = ("local", "ray")
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def with_engine(command: Command) -> Command:
    """Give a command the options of engines; it gets the engine as `engine`, None for local."""
    own, added = inspect.signature(command), inspect.signature(_engine)

    @wraps(command, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def _run(**given: Any) -> None:
        engine = _engine(**{name: given.pop(name) for name in added.parameters})
        with nullcontext() if engine is None else _results_apart():
            command(**given, engine=engine)

    parameters = [one for one in own.parameters.values() if one.name != "engine"]
    parameters += added.parameters.values()
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    _run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    _run.__annotations__ = {one.name: one.annotation for one in parameters}
    return _run  # type: ignore[return-value]


@contextmanager
def _results_apart() -> Iterator[None]:
    """A context in which what an engine prints goes to standard error, and results don't."""
    out.file = sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        out.file = None  # type: ignore[assignment]  # whatever standard output is


def worker_range(option: str, text: str | None) -> tuple[int, int] | None:
    """The least and the most workers of an option such as `4` or `1-8`.

    Raises:
        UsageError: It says something else.
    """
    if text is None:
        return None
    found = _RANGE.fullmatch(text)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if not low <= high or not high:
        raise UsageError(f"{option} is {text!r}; write a number such as 4, or a range such as 1-8")
    return low, high


def _engine(
    engine: Annotated[
        str, typer.Option(help="local, this machine without any engine, or ray.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="A running Ray cluster, HOST:PORT or auto; by default one starts here."),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(help="Workers of --engine ray, such as 4, or 1-8 where they come and go."),
    ] = None,
    worker_cpus: Annotated[
        int | None, typer.Option(help="Processors and threads of each worker, by default 1.")
    ] = None,
) -> "RayEngine | None":
    from prefill_router.engines import RayEngine

    one_of("--engine", engine, ENGINES)
    size = worker_range("--workers", workers)
    if engine == "ray":
        return RayEngine(address=address, workers=size, cpus=worker_cpus or 1)
    others = {"--address": address, "--workers": workers, "--worker-cpus": worker_cpus}
    if given := [option for option, value in others.items() if value is not None]:
        raise UsageError(f"{given[0]} is an option of --engine ray; add that, or leave it out")
    return None
