"""One command per stage, each a thin call of one library function.

A command is a file of this package that decorates its function with `app.command`; importing it
here puts it on the command line, in this order. Heavy imports (torch, matplotlib) belong inside the
command's function, so that `--help` answers at once.
"""

from prefill_router.cli import encode as _encode  # noqa: F401
from prefill_router.cli.app import app, main

__all__ = ["app", "main"]
