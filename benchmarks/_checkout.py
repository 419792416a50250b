"""Lets a benchmark import the package from the checkout where only torch and transformers are.

The path of the package is added, and what it imports at its beginning and encoders don't use gets
a stand-in, if it isn't installed: shapes in annotations, faces of packages, models of settings.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import transformers
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
_OF_TRANSFORMERS = (
    "AttentionInterface",
    "AutoConfig",
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoTokenizer",
    "PreTrainedTokenizerFast",
)
_T = TypeVar("_T")


@contextmanager
def imports_from_checkout() -> Iterator[None]:
    """A context in which `prefill_router` can be imported.

    The stand-ins leave with it, since transformers asks what is installed.
    """
    source = str(ROOT / "packages" / "router" / "src")
    if source not in sys.path:
        sys.path.insert(0, source)
    for name in _OF_TRANSFORMERS:
        getattr(transformers, name)  # imported now, without the stand-ins
    absent = [name for name in _STAND_INS if not _is_usable(name)]
    sys.modules.update({name: _STAND_INS[name](name) for name in absent})
    yield
    for name in absent:
        del sys.modules[name]


def _is_usable(name: str) -> bool:
    """Whether a module is installed, and isn't too old for the installed NumPy."""
    try:
        module: Any = import_module(name)
        if name == "jaxtyping":
            module.Float32[NDArray[np.float32], "row"]
    except Exception:
        return False
    return True


class _Shape:
    """An annotation such as `Float32[NDArray, "row"]` is the array's type."""

    def __class_getitem__(cls, item: tuple[_T, str]) -> _T:
        return item[0]


def _shapes(name: str) -> ModuleType:
    return _module(name, lambda _: _Shape)


def _faces(name: str) -> ModuleType:
    return _module(name, lambda _: _attach_stub)


def _attach_stub(package: str, file: str) -> tuple[Callable[[str], object], Any, list[str]]:
    """The names of a package's stub, imported at their first use."""
    tree = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    names = {
        name.asname or name.name: f"{package}.{node.module}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
        for name in node.names
    }

    def attribute(name: str) -> object:
        if name not in names:
            raise AttributeError(f"{package} has no {name}")
        return getattr(import_module(names[name]), name)

    return attribute, lambda: list(names), list(names)


class _Model:
    """A model of settings, or a part of one, which nothing here reads or checks."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        del arguments, options

    def __init_subclass__(cls, **options: Any) -> None:
        del options

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


def _models(name: str) -> ModuleType:
    return _module(name, lambda attribute: _Model if attribute[0].isupper() else _pass_through)


def _pass_through(*arguments: Any, **options: Any) -> Any:
    """What a function of the library gives: of a function itself, else a model."""
    del options
    return arguments[0] if arguments and callable(arguments[0]) else _Model


def _module(name: str, attribute: Callable[[str], Any]) -> ModuleType:
    def read_attribute(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        return attribute(wanted)

    module = ModuleType(name)
    module.__getattr__ = read_attribute  # type: ignore[method-assign]
    return module


_STAND_INS: dict[str, Callable[[str], ModuleType]] = {
    "jaxtyping": _shapes,
    "lazy_loader": _faces,
    "pydantic": _models,
    "pydantic_core": _models,
}
