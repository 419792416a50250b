"""The grader `python`: a function of the user's own."""

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, final

from prefill_router.data import prompt_text
from prefill_router.errors import ConfigError
from prefill_router.harness.grading.base import (
    Grade,
    Grader,
    GraderTraits,
    Settings,
    graded,
    shortened,
    unfit,
    ungraded,
)
from prefill_router.harness.records import Task

Function = Callable[[dict[str, Any], str], object]
"""Takes the task as a dictionary and the answer's text; returns a truth value or a number."""
_FORM = "path/to/file.py:function, or package.module:function"


@final
class FunctionGrader(Grader):
    """Grades with a function that the command line names, or the task's option `function`.

    The function is the user's own code and runs in this process with all its permissions: don't use
    it on tasks that you don't trust. If it raises an error, the answer is ungraded, with the
    error's name.

    Args:
        function: The function for all tasks; None where each task names its own.
    """

    def __init__(self, *, function: str | None = None) -> None:
        self.about = GraderTraits(name="python", version=1)
        self._function = function
        self._loaded: dict[str, Function] = {}
        if function is not None:
            self._load(function)

    def grade(self, task: Task, text: str) -> Grade:
        """Call the function."""
        name = self._function or task.options.get("function")
        if not isinstance(name, str):
            return unfit(f"the task names no function; give --grader-function as {_FORM}")
        function, caught = self._load(name), _UserErrors()
        said: object = None
        with caught:
            said = function(_plain(task), text)
        if caught.message:
            return ungraded("function_failed", caught.message)
        return _grade(said)

    def _load(self, name: str) -> Function:
        if name not in self._loaded:
            self._loaded[name] = load_function(name)
        return self._loaded[name]


def open_function(settings: Settings) -> Grader:
    """The grader that calls the user's function."""
    return FunctionGrader(function=settings.function)


def load_function(name: str) -> Function:
    """The function of this name, such as `grading/mine.py:grade` or `mine.grading:grade`.

    Raises:
        ConfigError: There is no such file, module or function.
    """
    place, function = place_and_name(name)
    module = _of_file(Path(place)) if place.endswith(".py") else _of_package(place)
    found = getattr(module, function, None)
    if not callable(found):
        raise ConfigError(f"{place} has no function {function!r}; name one that it has")
    return found  # type: ignore[no-any-return]


def place_and_name(name: str) -> tuple[str, str]:
    """The file or module of a function, and its name in it; neither is checked to exist.

    Raises:
        ConfigError: The text has another form.
    """
    place, _, function = name.rpartition(":")
    if not place or not function.isidentifier():
        raise ConfigError(f"a grader's function is {name!r}; write it as {_FORM}")
    return place, function


def _of_file(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(f"grader_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"no such file as {path}; a grader's function is named as {_FORM}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import does: dataclasses look their module up
    with _loading(str(path)):
        spec.loader.exec_module(module)
    return module


def _of_package(name: str) -> object:
    with _loading(name):
        return importlib.import_module(name)


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Turn any error that the user's code raises while it is loaded into a `ConfigError`."""
    caught = _UserErrors()
    with caught:
        yield
    if caught.message:
        raise ConfigError(f"{name} can't be loaded: {caught.message}")


class _UserErrors(AbstractContextManager["_UserErrors"]):
    """Catches any exception of the user's own code, but not an interruption.

    Attributes:
        message: The exception's name and text; empty where none was raised.
    """

    def __init__(self) -> None:
        self.message = ""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception | SystemExit):
            return False
        self.message = f"{type(error).__name__}: {error}"
        return True


def _plain(task: Task) -> dict[str, Any]:
    query = task.query
    chat = None if isinstance(query.prompt, str) else query.prompt
    messages = None if chat is None else [{"role": m.role, "content": m.content} for m in chat]
    return {
        "id": query.id,
        "prompt": prompt_text(query.prompt),
        "messages": messages,
        "benchmark": query.benchmark,
        "domain": query.domain,
        "answer": list(task.answer),
        "options": dict(task.options),
    }


def _grade(said: object) -> Grade:
    if inspect.isawaitable(said):
        return ungraded("function_failed", "the function is asynchronous; a plain one is needed")
    if hasattr(said, "item"):  # a number of NumPy
        said = said.item()
    if isinstance(said, bool):
        return graded(said)
    number = float(said) if isinstance(said, int | float) else math.nan
    if 0 <= number <= 1:
        return Grade(score=number)
    kind = shortened(type(said).__name__)
    return ungraded("function_failed", f"it returned {kind}; true, false or 0 to 1 is needed")
