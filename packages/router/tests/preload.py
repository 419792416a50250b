"""Modules that are imported before a fork, so that what is forked begins at once."""

from importlib import import_module
from pkgutil import walk_packages


def preload(*packages: str) -> None:
    """Import every module of some packages, such as `prefill_router.cli`.

    Raises:
        ImportError: There is no such package.
    """
    for name in packages:
        package = import_module(name)
        for module in walk_packages(getattr(package, "__path__", ()), f"{name}."):
            import_module(module.name)
