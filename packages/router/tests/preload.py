"""Modules that are imported before a fork, so that what is forked begins at once."""

from importlib import import_module
from pkgutil import walk_packages

import prefill_router


def preload(*packages: str) -> None:
    """Import every module of some packages of `prefill_router`."""
    names = tuple(f"prefill_router.{name}" for name in packages)
    for found in walk_packages(prefill_router.__path__, "prefill_router."):
        if found.name.startswith(names):
            import_module(found.name)
