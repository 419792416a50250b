"""How annotations are checked while tests run: an int will do where a float is asked for.

jaxtyping's import hook puts `jaxtyping.jaxtyped` on each function of the package. `install` has it
put the `jaxtyped` below there, which checks the same and costs little: jaxtyping's own binds the
arguments of every call to a signature, and compiles two more functions for each one that is
defined: up to a third of a test's time, and ten seconds of each process. A function that a test
calls thousands of times, such as a step of a solver, is checked in its first calls alone; checking
the rest took another third.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

with_numeric_tower = beartype(
    conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError)
)
_theirs, _AXES = jaxtyping.jaxtyped, jaxtyping.jaxtyped("context")
Function = Callable[..., Any]
MOST_CALLS = 100
"""How many calls of one function are checked in each test."""
_tests_begun = 0


def install() -> None:
    """Have the import hook use what is below from now on."""
    jaxtyping.jaxtyped = jaxtyped


def begin_test() -> None:
    """Check the first calls of every function anew."""
    global _tests_begun
    _tests_begun += 1


def jaxtyped(*, typechecker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(what: Any) -> Any:
        if inspect.isgeneratorfunction(what):  # not what it yields, but that it yields
            return _theirs(what, typechecker=typechecker)
        if not inspect.isclass(what):
            return _checked(what, typechecker)
        made = vars(what).get("__init__")
        if dataclasses.is_dataclass(what) and made and made.__globals__ is not globals():
            what.__init__ = _checked(made, typechecker)
        return what

    return decorate


def _checked(function: Function, typechecker: Callable[[Any], Any]) -> Function:
    """The function, made one that checks its annotations when it is first called."""
    checking: Function | None = None
    test = calls = 0

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        nonlocal calls, checking, test
        __tracebackhide__ = True
        if test != _tests_begun:
            test, calls = _tests_begun, 0
        calls += 1
        if calls > MOST_CALLS or jaxtyping.config.jaxtyping_disable:
            return function(*args, **options)
        if checking is None:
            written, function.__annotations__ = function.__annotations__, _resolved(function)
            checking = typechecker(function)
            function.__annotations__ = written
        with _AXES:  # each call has sizes of its own for the axes that annotations name
            return checking(*args, **options)

    return call


def _resolved(function: Function) -> dict[str, Any]:
    """Annotations without strings; anything goes where a name isn't known while tests run."""
    each = {}
    for name, hint in function.__annotations__.items():
        one = SimpleNamespace(__annotations__={name: hint})
        try:
            each |= get_type_hints(one, function.__globals__, include_extras=True)
        except (AttributeError, NameError):
            each[name] = Any
    return each
