"""Names of a package that are imported when they are first used, as PEP 562 has it.

What a decision doesn't need, such as reports and tables, is so left out of `route` and `--help`.
"""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package.

    Args:
        package: Its name.
        homes: The module below it that each name comes from.
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return load
