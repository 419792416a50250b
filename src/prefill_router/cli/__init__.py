"""One command per stage, each a thin call of one library function.

A command is a file of this package that decorates its function with `app.command`; importing it
here puts it on the command line, in this order. Heavy imports (torch, matplotlib) belong inside the
command's function, so that `--help` answers at once.
"""

from prefill_router.cli import (  # noqa: F401
    describe as _describe,
    encode as _encode,
    evaluate as _evaluate,
    fit as _fit,
    import_ as _import,
    layers as _layers,
    reprice as _reprice,
    route as _route,
    show as _show,
    split as _split,
    sweep as _sweep,
)
from prefill_router.cli.app import app, main

__all__ = ["app", "main"]
