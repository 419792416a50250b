"""How annotations are checked while tests run: an int will do where a float is asked for.

jaxtyping's import hook puts `jaxtyping.jaxtyped` on each function of the package. `install` has it
put the `jaxtyped` below there, which checks the same and costs little: jaxtyping's own binds the
arguments of every call to a signature, and beartype compiles a function for each one that is
defined, which a function inside another is in each step of a solver. Here beartype compiles a test
of each annotation, which all functions share. A function that a test calls thousands of times is
checked in its first calls alone.
"""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import CodeType, SimpleNamespace
from typing import Any, ForwardRef, TypeGuard, TypeVar, get_origin, get_type_hints

import jaxtyping
from beartype import BeartypeConf
from beartype.door import is_bearable

_AXES = jaxtyping.jaxtyped("context")
_NUMBERS = BeartypeConf(is_pep484_tower=True)
Function = Callable[..., Any]
MOST_CALLS = 20
"""How many calls of one function are checked in each test."""
_test_count = 0


def install() -> None:
    """Have the import hook use what is below from now on."""
    jaxtyping.jaxtyped = jaxtyped


def begin_test() -> None:
    """Check the first calls of every function anew."""
    global _test_count
    _test_count += 1


def jaxtyped(*, typechecker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(what: Any) -> Any:
        if not inspect.isclass(what):
            return typechecker(what)
        init = vars(what).get("__init__")
        if dataclasses.is_dataclass(what) and init and init.__globals__ is not globals():
            what.__init__ = typechecker(init)
        return what

    return decorate


def with_numeric_tower(function: Function) -> Function:
    """Wrap the function so that it checks its annotations."""
    annotations = Annotations.of(function)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        if not annotations.are_due():
            return function(*args, **options)
        with annotations.axes:
            annotations.check_arguments(args, options)
            if annotations.is_coroutine:
                return _await_result(function, annotations, args, options)
            result = function(*args, **options)
            annotations.check("return", result)
            return result

    return call


async def _await_result(
    function: Function, annotations: "Annotations", args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    __tracebackhide__ = True
    result = await function(*args, **options)
    with annotations.axes:
        annotations.check("return", result)
    return result


class Annotations:
    """The annotations of a function, and how many of its calls were checked in this test."""

    def __init__(self, function: Function, code: CodeType) -> None:
        self._function, self._code = function, code
        self._test = self._calls = 0
        self.is_coroutine = bool(code.co_flags & inspect.CO_COROUTINE)
        count = code.co_argcount + code.co_kwonlyargcount
        self._positions, self._names = (
            code.co_varnames[: code.co_argcount],
            code.co_varnames[:count],
        )
        variadic = iter(code.co_varnames[count:])
        self._more_positions = next(variadic) if code.co_flags & inspect.CO_VARARGS else ""
        self._more_names = next(variadic) if code.co_flags & inspect.CO_VARKEYWORDS else ""

    @classmethod
    def of(cls, function: Any) -> "Annotations":
        """The annotations of the function's code; redefinitions of a function share its code."""
        code: CodeType = function.__code__
        if id(code) not in _ANNOTATIONS:
            _ANNOTATIONS[id(code)] = cls(function, code)
        return _ANNOTATIONS[id(code)]

    def are_due(self) -> bool:
        """Whether the call that begins is one of those that are checked."""
        if self._test != _test_count:
            self._test, self._calls = _test_count, 0
        self._calls += 1
        return self._calls <= MOST_CALLS and not jaxtyping.config.jaxtyping_disable

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The annotations that forbid anything, by the names of arguments, and `return`."""
        return {n: hint for n, hint in _resolve_hints(self._function).items() if hint is not Any}

    @functools.cached_property
    def axes(self) -> Any:
        """A context that gives each call its own sizes of the named axes."""
        return _AXES if "jaxtyping" in repr(self.hints) else nullcontext()

    def check_arguments(self, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Raise an error if an argument isn't what its annotation says."""
        __tracebackhide__ = True
        for place, value in enumerate(args):
            is_named = place < len(self._positions)
            self.check(self._positions[place] if is_named else self._more_positions, value)
        for name, value in options.items():
            self.check(name if name in self._names else self._more_names, value)

    def check(self, name: str, value: Any) -> None:
        """Raise an error if an argument, or what is returned, isn't what its annotation says."""
        __tracebackhide__ = True
        if name in self.hints and not is_bearable(value, self.hints[name], conf=_NUMBERS):
            raise jaxtyping.TypeCheckError(
                f"{name} of {self._code.co_qualname} is {value!r:.200}, of {type(value)}; "
                f"its annotation is {self.hints[name]}"
            )


_ANNOTATIONS: dict[int, Annotations] = {}


def _resolve_hints(function: Function) -> dict[str, Any]:
    """Annotations without strings; a name that isn't known while tests run allows anything."""
    each = {}
    for name, hint in function.__annotations__.items():
        holder = SimpleNamespace(__annotations__={name: hint})
        try:
            resolved_hint = get_type_hints(holder, function.__globals__, include_extras=True)[name]
        except (AttributeError, NameError):
            resolved_hint = Any
        each[name] = bool if get_origin(resolved_hint) is TypeGuard else _bind(resolved_hint)
    return each


def _bind(hint: Any) -> Any:
    """An annotation with the bounds of its type variables, where these are given as strings."""
    if isinstance(hint, TypeVar):
        bound = hint.__bound__
        is_string = isinstance(bound, ForwardRef)
        return getattr(sys.modules[hint.__module__], bound.__forward_arg__) if is_string else hint
    parameters = getattr(hint, "__parameters__", ())
    bounds = tuple(map(_bind, parameters))
    return hint if bounds == parameters else hint[bounds]
