"""The memory that this process has used."""

import sys
from contextlib import suppress

_UNIT = 1 if sys.platform == "darwin" else 1024


def peak_memory() -> int | None:
    """The most memory that this process has had so far, in bytes; None where no system says so."""
    with suppress(ImportError):  # Windows has no such module
        from resource import RUSAGE_SELF, getrusage

        return getrusage(RUSAGE_SELF).ru_maxrss * _UNIT
    return None
